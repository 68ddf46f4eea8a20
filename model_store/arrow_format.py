"""The bytes of an artefact or a delta: an Arrow IPC file with its own checks. docs/artefact.md is its description.

Reading trusts nothing: format version, columns, row count, content digest and order are checked before an
Artefact leaves here, and what Arrow raises leaves as ArtefactError.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store import fixed_point
from model_store.arrow_columns import columns, columns_of, from_arrow, refuse_nulls, to_arrow
from model_store.arrow_metadata import (
    JSON_TYPE,
    KIND,
    ROWS,
    SHA256,
    check_schema,
    check_spec_hash,
    fields_of,
    metadata_of,
    text,
)
from model_store.artefact import Artefact, JsonSource
from model_store.artefact_checks import check, check_delta
from model_store.delta import Delta
from model_store.errors import ArtefactError
from model_store.model_rows import Array, ModelRows

MAGIC = b"ARROW1"
BATCH_ROWS = 1 << 20
BATCH_KEY_BYTES = 1 << 30  # offsets within a batch are int32


def encode(artefact: Artefact | Delta) -> bytes:
    """The file of an artefact or a delta."""
    metadata = metadata_of(artefact)
    metadata[SHA256] = _digest(metadata, artefact).encode()
    fields = columns(
        compact=artefact.is_compact, width=_width(artefact), from_json=_source_of(artefact) is not None
    )
    schema = pa.schema(fields, metadata=dict(sorted(metadata.items())))
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    with pa.ipc.new_file(out, schema, options=options) as writer:
        for begin, end in pairwise(_batch_bounds(artefact.key_offsets)):
            writer.write_batch(_batch(artefact, schema, begin, end))
    return out.getvalue()


def decode(data: bytes | bytearray | memoryview) -> Artefact | Delta:
    """Read and verify a file's bytes. Raises ArtefactError."""
    try:
        schema, batches = _read(data)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise ArtefactError(f"the model file is damaged: {error}") from error
    metadata = schema.metadata
    check_spec_hash(metadata)
    read = _assembled(schema, batches)
    if str(read.rows).encode() != metadata[ROWS]:
        raise ArtefactError(f"the model file should have {text(metadata[ROWS])} rows and has {read.rows}")
    found = _digest(metadata, read)
    if found.encode() != metadata[SHA256]:
        raise ArtefactError(
            f"the model file is damaged: its content digest is {found}, not {text(metadata[SHA256])}"
        )
    if isinstance(read, Delta):
        check_delta(read)
    else:
        check(read)
    return read


# -- writing


def _digest(metadata: Mapping[bytes, bytes], artefact: Artefact | Delta) -> str:
    """SHA-256 over the metadata but the digest, then the raw columns; before each part its length, u64 LE."""
    digest = hashlib.sha256()
    for part in _digested(metadata, artefact):
        view = memoryview(part).cast("B") if len(part) else memoryview(b"")
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view)
    return digest.hexdigest()


def _digested(metadata: Mapping[bytes, bytes], artefact: Artefact | Delta) -> Iterator[Any]:
    for name in sorted(metadata):
        if name != SHA256:
            yield name
            yield metadata[name]
    yield artefact.key_offsets
    yield artefact.key_data
    yield _stored_weight(artefact)
    yield artefact.variants
    yield artefact.rate
    if (source := _source_of(artefact)) is not None:
        fid_data, fid_offsets = columns_of(source.fid)
        yield fid_offsets
        yield fid_data
        yield source.value
        yield source.order


def _batch_bounds(offsets: npt.NDArray[np.int64]) -> Iterator[int]:
    """Row numbers at which batches begin and end: as many rows as both limits allow."""
    rows = len(offsets) - 1
    begin = 0
    yield begin
    while begin < rows:
        by_bytes = int(np.searchsorted(offsets, offsets[begin] + BATCH_KEY_BYTES, side="right")) - 1
        begin = min(begin + BATCH_ROWS, by_bytes, rows)
        yield begin


def _batch(artefact: Artefact | Delta, schema: pa.Schema, begin: int, end: int) -> pa.RecordBatch:
    offsets = artefact.key_offsets[begin : end + 1]
    local = (offsets - offsets[0]).astype(np.int32)
    data = artefact.key_data[offsets[0] : offsets[-1]]
    keys = pa.BinaryArray.from_buffers(
        pa.binary(), end - begin, [None, pa.py_buffer(local), pa.py_buffer(data)]
    )
    weight = _stored_weight(artefact, begin, end)
    arrays = [keys, *map(to_arrow, (weight, artefact.variants[begin:end], artefact.rate[begin:end]))]
    if (source := _source_of(artefact)) is not None:
        arrays.append(pa.concat_arrays([source.fid.slice(begin, end - begin)]))
        arrays += [pa.array(source.value[begin:end]), pa.array(source.order[begin:end])]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stored_weight(artefact: ModelRows, begin: int = 0, end: int | None = None) -> Array:
    weight = artefact.weight[begin:end]
    return fixed_point.to_int16(weight) if artefact.is_compact else weight


def _source_of(artefact: Artefact | Delta) -> JsonSource | None:
    return artefact.source if isinstance(artefact, Artefact) else None


def _width(artefact: ModelRows) -> int | None:
    """How many weights a key has: None for one that is no list."""
    return artefact.weight.shape[1] if artefact.per_variant else None


# -- reading


def _read(data: bytes | bytearray | memoryview) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    view = memoryview(data)
    if view[: len(MAGIC)] != MAGIC:
        raise ArtefactError("this is no model file: it does not begin with ARROW1")
    if view[-len(MAGIC) :] != MAGIC:
        raise ArtefactError(f"the model file is truncated: its {len(view):,} bytes do not end with ARROW1")
    reader = pa.ipc.open_file(pa.py_buffer(data))
    check_schema(reader.schema)
    batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    for batch in batches:
        batch.validate(full=True)
        refuse_nulls(batch)
    return reader.schema, batches


def _assembled(schema: pa.Schema, batches: list[pa.RecordBatch]) -> Artefact | Delta:
    """One artefact of all batches. Arrays are copies: Arrow's are read-only, another type to numba."""
    key_parts = [columns_of(batch.column("key")) for batch in batches]
    starts = np.cumsum([0, *(len(data) for data, _ in key_parts)])
    offsets = [part[1:] + start for (_, part), start in zip(key_parts, starts, strict=False)]
    fields: dict[str, Any] = {
        "key_data": np.concatenate([np.zeros(0, np.uint8), *(data for data, _ in key_parts)]),
        "key_offsets": np.concatenate([np.zeros(1, np.int64), *offsets]),
        "weight": _weights(schema, batches),
        "variants": from_arrow(schema, batches, "variants"),
        "rate": from_arrow(schema, batches, "rate"),
    }
    fields |= fields_of(schema.metadata)
    if KIND in schema.metadata:
        return Delta(**fields)
    return Artefact(**fields, source=_source(schema, batches))


def _weights(schema: pa.Schema, batches: list[pa.RecordBatch]) -> npt.NDArray[np.float32]:
    stored = from_arrow(schema, batches, "weight")
    return fixed_point.from_int16(stored) if stored.dtype == np.int16 else stored


def _source(schema: pa.Schema, batches: list[pa.RecordBatch]) -> JsonSource | None:
    if JSON_TYPE not in schema.metadata:
        return None
    fids = [batch.column("fid") for batch in batches]
    return JsonSource(
        type=_json_type(schema.metadata),
        fid=pa.concat_arrays(fids) if fids else pa.array([], pa.utf8()),
        value=from_arrow(schema, batches, "value"),
        order=from_arrow(schema, batches, "order"),
    )


def _json_type(metadata: Mapping[bytes, bytes]) -> str:
    try:
        return metadata[JSON_TYPE].decode("utf-8", "surrogatepass")
    except ValueError as error:
        raise ArtefactError(f"the model file's metadata cannot be read: {error}") from error
