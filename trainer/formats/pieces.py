"""Pieces: rows as bytes that are small, and quick to read and hash again.

A piece is the columns of consecutive rows of one batch as an Arrow IPC stream of one record batch, compressed as a
whole. A column whose texts repeat is an array of codes and a dictionary, in the order of first appearance: whoever
reads it hashes each distinct text once. Values and their types are those of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.errors import InputError
from model_store.features.cells import CellSets, CellText, text_places
from trainer.formats import pieces_kernels
from trainer.formats.batch import LazyColumns

_CODEC = pa.Codec("lz4")
_MOST_CODES = 1 << 15
_SIZE = 8  # of the number before the compressed bytes: how many there are without compression


def to_bytes(columns: Mapping[str, Any], first: int, rows: int) -> bytes:
    """The piece of `rows` rows of a batch's columns, from `first` on. At least one column."""
    arrays = [_packed(_as_it_is(columns, name), first, rows) for name in columns]
    record = pa.RecordBatch.from_arrays(arrays, list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record.schema) as writer:
        writer.write_batch(record)
    data = sink.getvalue()
    compressed: bytes = _CODEC.compress(data, asbytes=True)
    return int(data.size).to_bytes(_SIZE, "little") + compressed


def joined(batches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The columns of batches one after the other; None if they are not of the same types."""
    if len(batches) < 2:
        return batches[0] if batches else {}
    arrays = {name: [_array(_as_it_is(columns, name)) for columns in batches] for name in batches[0]}
    if any(each.type != parts[0].type for parts in arrays.values() for each in parts):
        return None
    return {name: pa.concat_arrays(parts) for name, parts in arrays.items()}


def of_bytes(piece: bytes | memoryview, where: str) -> LazyColumns:
    """The columns of a piece whose checksum was verified. Raises InputError, with `where`, if it is none."""
    try:
        size = int.from_bytes(piece[:_SIZE], "little")
        data = _CODEC.decompress(pa.py_buffer(piece[_SIZE:]), size)
        record = pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InputError(f"{where} holds no rows of this version: {error}") from error
    return LazyColumns(dict(zip(record.schema.names, record.columns, strict=True)))


def _packed(column: Any, first: int, rows: int) -> Any:
    """The rows of a column as an array, coded if its texts repeat."""
    if isinstance(column, CellText) and column.block.kinds is None:
        return _coded(column, first, rows, pa.binary())
    array = _array(column).slice(first, rows)
    if array.type in (pa.binary(), pa.string()) and not array.null_count:
        return _coded(array, 0, rows, array.type)
    return array


def _as_it_is(columns: Mapping[str, Any], name: str) -> Any:
    return columns.as_it_is(name) if isinstance(columns, LazyColumns) else columns[name]


def _array(column: Any) -> Any:
    return column.values() if isinstance(column, CellText | CellSets) else column


def _coded(column: Any, first: int, rows: int, kind: Any) -> Any:
    data, offset, stride, gap, *_ = (int(each[0]) for each in text_places([column]))
    place = (data, offset + stride * first, stride, gap)
    codes, firsts = np.empty(rows, np.int32), np.empty(rows, np.int32)
    table = np.empty(1 << max(2 * rows - 1, 1).bit_length(), np.int32)
    distinct = int(pieces_kernels.code_texts(*place, table, codes, firsts))
    if distinct > _MOST_CODES or 2 * distinct > rows:
        return _texts(place, np.arange(rows, dtype=np.int32), kind)
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int16)), _texts(place, firsts[:distinct], kind)
    )


def _texts(place: tuple[int, int, int, int], rows: Any, kind: Any) -> Any:
    offsets = np.empty(rows.size + 1, np.int32)
    size = pieces_kernels.copy_texts(*place, rows, offsets, np.empty(0, np.uint8))
    text = np.empty(size, np.uint8)
    pieces_kernels.copy_texts(*place, rows, offsets, text)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(kind, rows.size, buffers)
