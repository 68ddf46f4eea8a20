"""The bytes of an artefact or a delta: an Arrow IPC file with its own checks. docs/artefact.md is its description.

Reading trusts nothing: format version, columns, row count, content digest and order are checked before an
Artefact leaves here, and what Arrow raises leaves as ArtefactError.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.artefact import rows as fixed_point
from model_store.artefact.artefact import Artefact, Delta, JsonSource
from model_store.artefact.calibration import Calibration
from model_store.artefact.checks import check, check_delta
from model_store.artefact.rows import (
    Array,
    ModelRows,
    columns,
    columns_of,
    from_arrow,
    refuse_nulls,
    to_arrow,
    weight_type,
)
from model_store.errors import ArtefactError, NewerFormat, SpecError
from model_store.redis.stored_values import shown
from model_store.spec.spec import spec_from_json

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


# --- What stands beside an artefact's columns: the schema metadata, by name, and whether it is there and
# readable ---
#
# `arrow_format` reads and writes the columns. docs/artefact.md lists the names.


FORMAT = b"ftrie.format"
ROWS = b"ftrie.rows"
SPEC = b"ftrie.spec"
SPEC_SHA256 = b"ftrie.spec_sha256"
METRICS = b"ftrie.metrics"
JSON_TYPE = b"ftrie.json_type"
CALIBRATION = b"ftrie.calibration"
KIND = b"ftrie.kind"
PARENT = b"ftrie.parent"
PARENT_CONTENT = b"ftrie.parent_content"
CONTENT = b"ftrie.content"
SHA256 = b"ftrie.sha256"

NEWEST = Delta.FORMAT
_ALWAYS = {ROWS, SPEC, SPEC_SHA256, METRICS, SHA256}
_OF_DELTAS = {KIND, PARENT, PARENT_CONTENT, CONTENT}


def metadata_of(rows: Artefact | Delta) -> dict[bytes, bytes]:
    """All of it but the content digest, which is of these too."""
    metadata = {
        FORMAT: str(rows.FORMAT).encode(),
        ROWS: str(rows.rows).encode(),
        SPEC: rows.spec.to_json().encode(),
        SPEC_SHA256: rows.spec.sha256.encode(),
        METRICS: metrics_to_json(rows.metrics).encode(),
    }
    if rows.calibration is not None:
        metadata[CALIBRATION] = rows.calibration.to_json().encode()
    if isinstance(rows, Delta):
        contents = {PARENT_CONTENT: rows.parent_content.encode(), CONTENT: rows.content.encode()}
        return metadata | contents | {KIND: DELTA.encode(), PARENT: str(rows.parent).encode()}
    if rows.source is not None:
        metadata[JSON_TYPE] = rows.source.type.encode("utf-8", "surrogatepass")
    return metadata


def check_schema(schema: pa.Schema) -> None:
    """Raise ArtefactError unless the metadata is that of a format we read, and the columns are those it says."""
    metadata = schema.metadata or {}
    version = _format(metadata)
    is_delta = KIND in metadata
    missing = (_ALWAYS | _OF_DELTAS if is_delta else _ALWAYS) - metadata.keys()
    if version < 1 or missing:
        raise ArtefactError(
            f"the model file's metadata is damaged (format {version}, missing {sorted(missing)})"
        )
    if is_delta and (metadata[KIND] != DELTA.encode() or JSON_TYPE in metadata):
        raise ArtefactError(
            f"the model file is of the kind {text(metadata[KIND])!r}; expected a plain {DELTA}"
        )
    kind, width = weight_type(schema)
    compact = kind == pa.int16()
    if version < 2 and (compact or width is not None or CALIBRATION in metadata):
        raise ArtefactError(
            f"the model file says format {version}, and holds what only format 2 has (16-bit weights, a weight for "
            "each variant, calibration)"
        )
    if is_delta and version < Delta.FORMAT:
        raise ArtefactError(
            f"the model file says format {version}, and is a delta: only format {Delta.FORMAT} has them"
        )
    expected = columns(compact=compact, width=width, from_json=JSON_TYPE in metadata)
    if not schema.equals(pa.schema(expected), check_metadata=False):
        raise ArtefactError(
            f"the model file's columns are {_columns(schema)}; expected {_columns(pa.schema(expected))}"
        )


def check_spec_hash(metadata: Mapping[bytes, bytes]) -> None:
    """Of the text as stored: a later ftrie writes the same spec with more keys, each at its default."""
    if hashlib.sha256(metadata[SPEC]).hexdigest().encode() != metadata[SPEC_SHA256]:
        raise ArtefactError("the model file is damaged: its spec does not have the hash it states")


def fields_of(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """What the metadata says of an Artefact's or a Delta's fields, by their names. Raises ArtefactError."""
    try:
        fields: dict[str, Any] = {
            "spec": spec_from_json(metadata[SPEC].decode()),
            "metrics": metrics_from_json(metadata[METRICS].decode()),
            "calibration": _calibration(metadata),
        }
        if KIND in metadata:
            fields["parent"] = int(metadata[PARENT])
            fields["parent_content"] = metadata[PARENT_CONTENT].decode("ascii")
            fields["content"] = metadata[CONTENT].decode("ascii")
        return fields
    except (SpecError, ValueError, TypeError) as error:
        raise ArtefactError(f"the model file's metadata cannot be read: {error}") from error


def text(metadata: bytes) -> str:
    """What stands in the metadata, whatever it is, to be shown."""
    return metadata.decode("utf-8", "backslashreplace")


def _format(metadata: Mapping[bytes, bytes]) -> int:
    if FORMAT not in metadata:
        raise ArtefactError("this is an Arrow file, but no model: it has no ftrie.format")
    try:
        version = int(metadata[FORMAT])
    except ValueError:
        raise ArtefactError(f"the model file's format version cannot be read: {metadata[FORMAT]!r}") from None
    if version > NEWEST:
        raise NewerFormat(
            f"the model file has format {version}, newer than the {NEWEST} this ftrie reads: upgrade ftrie"
        )
    return version


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _calibration(metadata: Mapping[bytes, bytes]) -> Calibration | None:
    return Calibration.from_json(metadata[CALIBRATION].decode()) if CALIBRATION in metadata else None


SNAPSHOT, DELTA = "snapshot", "delta"


Metrics = Mapping[str, Mapping[str, float]]


def plain_metrics(metrics: Metrics) -> dict[str, dict[str, float | None]]:
    """Metrics as JSON can say them: what is not finite becomes None."""
    return {
        variant: {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        for variant, values in metrics.items()
    }


def metrics_to_json(metrics: Metrics) -> str:
    """Canonical JSON of metrics; NaN becomes null."""
    return json.dumps(plain_metrics(metrics), sort_keys=True, separators=(",", ":"), allow_nan=False)


def metrics_from_json(text: str) -> dict[str, dict[str, float]]:
    """Read `metrics_to_json`'s text; null becomes NaN. Raises ValueError for anything else."""
    try:
        parsed = json.loads(text)
        return {
            variant: {name: math.nan if value is None else float(value) for name, value in values.items()}
            for variant, values in parsed.items()
        }
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        raise ValueError(f"metrics: got {shown(text)}, expected an object of objects of numbers") from None
