"""The artefact's columns: their Arrow types, and numbers to and fro. What stands beside them is `arrow_format`'s.

A weight and a rate are one number a key or, where each variant has its own, a list of as many as there are variants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import ArtefactError

Array = npt.NDArray[Any]

OWN_VALUES = ("weight", "rate")
"""Columns with a number a key, or with one for each variant."""

COLUMNS = [
    pa.field("key", pa.binary(), nullable=False),
    pa.field("weight", pa.float32(), nullable=False),
    pa.field("variants", pa.uint32(), nullable=False),
    pa.field("rate", pa.float32(), nullable=False),
]
COMPACT_WEIGHT = pa.field("weight", pa.int16(), nullable=False)
JSON_COLUMNS = [
    pa.field("fid", pa.utf8(), nullable=False),
    pa.field("value", pa.float64(), nullable=False),
    pa.field("order", pa.uint32(), nullable=False),
]


def columns(*, compact: bool, width: int | None, from_json: bool) -> list[pa.Field]:
    """The columns of a model: weights in 16 bits or 32, single or (`width`) in lists, with JSON's or without."""
    key, weight, *rest = COLUMNS
    fields = [key, COMPACT_WEIGHT if compact else weight, *rest]
    if width is not None:
        fields = [f.with_type(list_of(f.type, width)) if f.name in OWN_VALUES else f for f in fields]
    return fields + JSON_COLUMNS if from_json else fields


def list_of(kind: pa.DataType, width: int) -> pa.DataType:
    """The type of lists of `width` numbers."""
    return pa.list_(pa.field("item", kind, nullable=False), width)


def weight_type(schema: pa.Schema) -> tuple[pa.DataType | None, int | None]:
    """The type of a stored weight, None if there is none, and how many a key has: None if it is no list."""
    place = schema.get_field_index("weight")
    kind = schema.field(place).type if place >= 0 else None
    if kind is not None and pa.types.is_fixed_size_list(kind):
        return kind.value_type, kind.list_size
    return kind, None


def to_arrow(numbers: Array) -> pa.Array:
    """A column of numbers [rows], or of lists [rows, width]."""
    if numbers.ndim == 1:
        return pa.array(numbers)
    flat = pa.array(numbers.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=list_of(flat.type, numbers.shape[1]))


def from_arrow(schema: pa.Schema, batches: list[pa.RecordBatch], name: str) -> Array:
    """A column's numbers, copied: [rows], or [rows, width] if it is one of lists. No number or list may be null."""
    kind = schema.field(name).type
    width = [kind.list_size] if pa.types.is_fixed_size_list(kind) else []
    parts = [batch.column(name) for batch in batches]
    flat = [(part.flatten() if width else part).to_numpy() for part in parts]
    empty = np.zeros(0, (kind.value_type if width else kind).to_pandas_dtype())
    return np.concatenate([empty, *flat]).reshape([sum(map(len, parts)), *width])


def refuse_nulls(batch: pa.RecordBatch) -> None:
    """Raise ArtefactError for a null: a null list would leave its numbers out, and move those of all later rows."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count:
            raise ArtefactError(f"the model file is damaged: column {name!r} has {column.null_count} nulls")


def columns_of(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """An Arrow array's bytes and offsets, copied, the first offset 0."""
    _, offsets_buffer, data_buffer = keys.buffers()
    width = np.int64 if keys.type in (pa.large_binary(), pa.large_utf8()) else np.int32
    if offsets_buffer is None or len(keys) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8)[begin:end].copy() if end > begin else np.zeros(0, np.uint8)
    return data, offsets - begin
