"""The bytes of an artefact: an Arrow IPC file with its own checks. docs/artefact.md is its description.

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
from model_store.arrow_columns import columns, columns_of, from_arrow, refuse_nulls, to_arrow, weight_type
from model_store.artefact import Array, Artefact, JsonSource
from model_store.artefact_checks import check
from model_store.calibration import Calibration
from model_store.errors import ArtefactError, SpecError
from model_store.manifest import metrics_from_json, metrics_to_json
from model_store.spec import spec_from_json

MAGIC = b"ARROW1"
BATCH_ROWS = 1 << 20
BATCH_KEY_BYTES = 1 << 30  # offsets within a batch are int32
FORMAT = b"ftrie.format"
ROWS = b"ftrie.rows"
SPEC = b"ftrie.spec"
SPEC_SHA256 = b"ftrie.spec_sha256"
METRICS = b"ftrie.metrics"
JSON_TYPE = b"ftrie.json_type"
CALIBRATION = b"ftrie.calibration"
SHA256 = b"ftrie.sha256"


def encode(artefact: Artefact) -> bytes:
    """The artefact's file."""
    metadata = _metadata(artefact)
    metadata[SHA256] = _digest(metadata, artefact).encode()
    fields = columns(
        compact=artefact.is_compact, width=_width(artefact), from_json=artefact.source is not None
    )
    schema = pa.schema(fields, metadata=dict(sorted(metadata.items())))
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    with pa.ipc.new_file(out, schema, options=options) as writer:
        for begin, end in pairwise(_batch_bounds(artefact.key_offsets)):
            writer.write_batch(_batch(artefact, schema, begin, end))
    return out.getvalue()


def decode(data: bytes | bytearray | memoryview) -> Artefact:
    """Read and verify a file's bytes. Raises ArtefactError."""
    try:
        schema, batches = _read(data)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise ArtefactError(f"the model file is damaged: {error}") from error
    metadata = schema.metadata
    artefact = _assembled(schema, batches)
    if str(artefact.rows).encode() != metadata[ROWS]:
        raise ArtefactError(
            f"the model file should have {_text(metadata[ROWS])} rows and has {artefact.rows}"
        )
    found = _digest(metadata, artefact)
    if found.encode() != metadata[SHA256]:
        raise ArtefactError(
            f"the model file is damaged: its content digest is {found}, not {_text(metadata[SHA256])}"
        )
    check(artefact)
    return artefact


# -- writing


def _metadata(artefact: Artefact) -> dict[bytes, bytes]:
    metadata = {
        FORMAT: str(artefact.FORMAT).encode(),
        ROWS: str(artefact.rows).encode(),
        SPEC: artefact.spec.to_json().encode(),
        SPEC_SHA256: artefact.spec.sha256.encode(),
        METRICS: metrics_to_json(artefact.metrics).encode(),
    }
    if artefact.source is not None:
        metadata[JSON_TYPE] = artefact.source.type.encode("utf-8", "surrogatepass")
    if artefact.calibration is not None:
        metadata[CALIBRATION] = artefact.calibration.to_json().encode()
    return metadata


def _digest(metadata: Mapping[bytes, bytes], artefact: Artefact) -> str:
    """SHA-256 over the metadata but the digest, then the raw columns; before each part its length, u64 LE."""
    digest = hashlib.sha256()
    for part in _digested(metadata, artefact):
        view = memoryview(part).cast("B") if len(part) else memoryview(b"")
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view)
    return digest.hexdigest()


def _digested(metadata: Mapping[bytes, bytes], artefact: Artefact) -> Iterator[Any]:
    for name in sorted(metadata):
        if name != SHA256:
            yield name
            yield metadata[name]
    yield artefact.key_offsets
    yield artefact.key_data
    yield _stored_weight(artefact)
    yield artefact.variants
    yield artefact.rate
    if artefact.source is not None:
        fid_data, fid_offsets = columns_of(artefact.source.fid)
        yield fid_offsets
        yield fid_data
        yield artefact.source.value
        yield artefact.source.order


def _batch_bounds(offsets: npt.NDArray[np.int64]) -> Iterator[int]:
    """Row numbers at which batches begin and end: as many rows as both limits allow."""
    rows = len(offsets) - 1
    begin = 0
    yield begin
    while begin < rows:
        by_bytes = int(np.searchsorted(offsets, offsets[begin] + BATCH_KEY_BYTES, side="right")) - 1
        begin = min(begin + BATCH_ROWS, by_bytes, rows)
        yield begin


def _batch(artefact: Artefact, schema: pa.Schema, begin: int, end: int) -> pa.RecordBatch:
    offsets = artefact.key_offsets[begin : end + 1]
    local = (offsets - offsets[0]).astype(np.int32)
    data = artefact.key_data[offsets[0] : offsets[-1]]
    keys = pa.BinaryArray.from_buffers(
        pa.binary(), end - begin, [None, pa.py_buffer(local), pa.py_buffer(data)]
    )
    weight = _stored_weight(artefact, begin, end)
    arrays = [keys, *map(to_arrow, (weight, artefact.variants[begin:end], artefact.rate[begin:end]))]
    if artefact.source is not None:
        source = artefact.source
        arrays.append(pa.concat_arrays([source.fid.slice(begin, end - begin)]))
        arrays += [pa.array(source.value[begin:end]), pa.array(source.order[begin:end])]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stored_weight(artefact: Artefact, begin: int = 0, end: int | None = None) -> Array:
    weight = artefact.weight[begin:end]
    return fixed_point.to_int16(weight) if artefact.is_compact else weight


def _width(artefact: Artefact) -> int | None:
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
    _check_schema(reader.schema)
    batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    for batch in batches:
        batch.validate(full=True)
        refuse_nulls(batch)
    return reader.schema, batches


def _check_schema(schema: pa.Schema) -> None:
    metadata = schema.metadata or {}
    if FORMAT not in metadata:
        raise ArtefactError("this is an Arrow file, but no model: it has no ftrie.format")
    try:
        version = int(metadata[FORMAT])
    except ValueError:
        raise ArtefactError(f"the model file's format version cannot be read: {metadata[FORMAT]!r}") from None
    if version > Artefact.FORMAT:
        raise ArtefactError(
            f"the model file has format {version}, newer than the {Artefact.FORMAT} "
            "this ftrie reads: upgrade ftrie"
        )
    missing = {ROWS, SPEC, SPEC_SHA256, METRICS, SHA256} - metadata.keys()
    if version < 1 or missing:
        raise ArtefactError(
            f"the model file's metadata is damaged (format {version}, missing {sorted(missing)})"
        )
    kind, width = weight_type(schema)
    compact = kind == pa.int16()
    if version < 2 and (compact or width is not None or CALIBRATION in metadata):
        raise ArtefactError(
            f"the model file says format {version}, and holds what only format 2 has (16-bit weights, a weight for "
            "each variant, calibration)"
        )
    expected = columns(compact=compact, width=width, from_json=JSON_TYPE in metadata)
    if not schema.equals(pa.schema(expected), check_metadata=False):
        raise ArtefactError(
            f"the model file's columns are {_columns(schema)}; expected {_columns(pa.schema(expected))}"
        )


def _text(metadata: bytes) -> str:
    return metadata.decode("utf-8", "backslashreplace")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _assembled(schema: pa.Schema, batches: list[pa.RecordBatch]) -> Artefact:
    """One artefact of all batches. Arrays are copies: Arrow's are read-only, another type to numba."""
    metadata = schema.metadata
    _check_spec_hash(metadata)
    key_parts = [columns_of(batch.column("key")) for batch in batches]
    starts = np.cumsum([0, *(len(data) for data, _ in key_parts)])
    offsets = [part[1:] + start for (_, part), start in zip(key_parts, starts, strict=False)]
    try:
        spec = spec_from_json(metadata[SPEC].decode())
        metrics = metrics_from_json(metadata[METRICS].decode())
        source = _source(schema, batches)
        calibration = _calibration(metadata)
    except (SpecError, ValueError, TypeError) as error:
        raise ArtefactError(f"the model file's metadata cannot be read: {error}") from error
    return Artefact(
        key_data=np.concatenate([np.zeros(0, np.uint8), *(data for data, _ in key_parts)]),
        key_offsets=np.concatenate([np.zeros(1, np.int64), *offsets]),
        weight=_weights(schema, batches),
        variants=from_arrow(schema, batches, "variants"),
        rate=from_arrow(schema, batches, "rate"),
        spec=spec,
        metrics=metrics,
        source=source,
        calibration=calibration,
    )


def _check_spec_hash(metadata: Mapping[bytes, bytes]) -> None:
    """Of the text as stored: a later ftrie writes the same spec with more keys, each at its default."""
    if hashlib.sha256(metadata[SPEC]).hexdigest().encode() != metadata[SPEC_SHA256]:
        raise ArtefactError("the model file is damaged: its spec does not have the hash it states")


def _weights(schema: pa.Schema, batches: list[pa.RecordBatch]) -> npt.NDArray[np.float32]:
    stored = from_arrow(schema, batches, "weight")
    return fixed_point.from_int16(stored) if stored.dtype == np.int16 else stored


def _calibration(metadata: Mapping[bytes, bytes]) -> Calibration | None:
    return Calibration.from_json(metadata[CALIBRATION].decode()) if CALIBRATION in metadata else None


def _source(schema: pa.Schema, batches: list[pa.RecordBatch]) -> JsonSource | None:
    if JSON_TYPE not in schema.metadata:
        return None
    fids = [batch.column("fid") for batch in batches]
    return JsonSource(
        type=schema.metadata[JSON_TYPE].decode("utf-8", "surrogatepass"),
        fid=pa.concat_arrays(fids) if fids else pa.array([], pa.utf8()),
        value=from_arrow(schema, batches, "value"),
        order=from_arrow(schema, batches, "order"),
    )
