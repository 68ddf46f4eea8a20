"""The bytes of an artefact or a delta: an Arrow IPC file with its own checks, described in docs/formats/artefact.md.

`encode` takes and `decode` returns a `StoredModel`: rows and the metadata stored with them. Reading verifies the format
version, columns, row count, spec hash and content digest; Arrow's exceptions are raised as ArtefactError.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.artefact.calibration import Calibration
from model_store.artefact.rows import (
    OWN_VALUES,
    Array,
    JsonSource,
    ModelRows,
    columns_of,
    from_q213,
    to_q213,
)
from model_store.errors import ArtefactError, NewerFormat, SpecError
from model_store.keys import DELTA, metrics_from_json, metrics_to_json
from model_store.spec.spec import spec_from_json

SNAPSHOT_FORMAT, DELTA_FORMAT = 2, 3
"""The formats of snapshots and of deltas, the only ones so far."""
MAGIC = b"ARROW1"
BATCH_ROWS = 1 << 20
BATCH_KEY_BYTES = 1 << 30  # offsets within a batch are int32


@dataclass(frozen=True)
class Lineage:
    """A delta's parent version (0: not yet published), the parent's content digest and that of the new model."""

    parent: int
    parent_content: str
    content: str


@dataclass(frozen=True)
class StoredModel:
    """What a file holds: rows; a JSON model's extra columns; of a delta, its lineage."""

    rows: ModelRows
    source: JsonSource | None = None
    lineage: Lineage | None = None


def encode(model: StoredModel) -> bytes:
    """The file, deterministic: the same content gives the same bytes."""
    rows = model.rows
    metadata = _metadata(model)
    metadata[SHA256] = _digest(metadata, model).encode()
    width = rows.weight.shape[1] if rows.per_variant else None
    fields = columns(compact=rows.is_compact, width=width, from_json=model.source is not None)
    # Sorted: the order of the metadata is in the bytes.
    schema = pa.schema(fields, metadata=dict(sorted(metadata.items())))
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    with pa.ipc.new_file(out, schema, options=options) as writer:
        for begin, end in pairwise(_batch_bounds(rows.key_offsets)):
            writer.write_batch(_batch(model, schema, begin, end))
    return out.getvalue()


def decode(data: bytes | bytearray | memoryview) -> StoredModel:
    """Read and verify a file's bytes. Raises ArtefactError. The caller checks the rows' invariants."""
    try:
        schema, batches = _read(data)
    # What Arrow raises for damaged bytes is any of these: it takes lengths from them before it checks them.
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise ArtefactError(f"the model file is damaged: {error}") from error
    metadata = schema.metadata
    # The hash covers the stored text: a later ftrie writes the same spec with more keys, each at its default.
    if hashlib.sha256(metadata[SPEC]).hexdigest().encode() != metadata[SPEC_SHA256]:
        raise ArtefactError("the model file is damaged: its spec does not match its hash")
    model = _assembled(schema, batches)
    if str(model.rows.rows).encode() != metadata[ROWS]:
        raise ArtefactError(
            f"the model file should have {_text(metadata[ROWS])} rows and has {model.rows.rows}"
        )
    found = _digest(metadata, model)
    if found.encode() != metadata[SHA256]:
        raise ArtefactError(
            f"the model file is damaged: its content digest is {found}, not {_text(metadata[SHA256])}"
        )
    return model


# -- writing


def _digest(metadata: Mapping[bytes, bytes], model: StoredModel) -> str:
    """SHA-256 over the other metadata, then the raw columns; each part is preceded by its length, u64 LE."""
    parts: list[Any] = [
        part for name in sorted(metadata) if name != SHA256 for part in (name, metadata[name])
    ]
    rows = model.rows
    parts += [rows.key_offsets, rows.key_data, _stored_weight(rows), rows.variants, rows.rate]
    if (source := model.source) is not None:
        fid_data, fid_offsets = columns_of(source.fid)
        parts += [fid_offsets, fid_data, source.value, source.order]
    digest = hashlib.sha256()
    for part in parts:
        # An empty array cannot be cast.
        view = memoryview(part).cast("B") if len(part) else memoryview(b"")
        # The length first, so that bytes cannot move from one part to the next unnoticed.
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view)
    return digest.hexdigest()


def _batch_bounds(offsets: npt.NDArray[np.int64]) -> Iterator[int]:
    """Row numbers at which batches begin and end: as many rows as both limits allow."""
    rows = len(offsets) - 1
    begin = 0
    yield begin
    while begin < rows:
        # A key has at most 4 KiB, so that a batch always has a row.
        by_bytes = int(np.searchsorted(offsets, offsets[begin] + BATCH_KEY_BYTES, side="right")) - 1
        begin = min(begin + BATCH_ROWS, by_bytes, rows)
        yield begin


def _batch(model: StoredModel, schema: pa.Schema, begin: int, end: int) -> pa.RecordBatch:
    rows = model.rows
    offsets = rows.key_offsets[begin : end + 1]
    local = (offsets - offsets[0]).astype(np.int32)
    data = rows.key_data[offsets[0] : offsets[-1]]
    keys = pa.BinaryArray.from_buffers(
        pa.binary(), end - begin, [None, pa.py_buffer(local), pa.py_buffer(data)]
    )
    weight = _stored_weight(rows, begin, end)
    arrays = [keys, *map(to_arrow, (weight, rows.variants[begin:end], rows.rate[begin:end]))]
    if (source := model.source) is not None:
        # A copy of the slice, so that it begins at 0 as the other columns do.
        arrays.append(pa.concat_arrays([source.fid.slice(begin, end - begin)]))
        arrays += [pa.array(source.value[begin:end]), pa.array(source.order[begin:end])]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stored_weight(rows: ModelRows, begin: int = 0, end: int | None = None) -> Array:
    weight = rows.weight[begin:end]
    return to_q213(weight) if rows.is_compact else weight


# -- reading


def _read(data: bytes | bytearray | memoryview) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    view = memoryview(data)
    if view[: len(MAGIC)] != MAGIC:
        raise ArtefactError("not a model file: it does not begin with ARROW1")
    # The footer is at the end: a file that was cut begins like a whole one.
    if view[-len(MAGIC) :] != MAGIC:
        raise ArtefactError(f"the model file is truncated: its {len(view):,} bytes do not end with ARROW1")
    reader = pa.ipc.open_file(pa.py_buffer(data))
    _check_schema(reader.schema)
    batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    for batch in batches:
        # Reading does not check offsets: damaged ones would lead beyond the buffers.
        batch.validate(full=True)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count:  # a null list has no numbers, so those of all later rows would shift
                raise ArtefactError(
                    f"the model file is damaged: column {name!r} has {column.null_count} nulls"
                )
    return reader.schema, batches


def _assembled(schema: pa.Schema, batches: list[pa.RecordBatch]) -> StoredModel:
    """One model of all batches. Arrays are copied: Arrow's are read-only, which numba compiles for separately."""
    key_parts = [columns_of(batch.column("key")) for batch in batches]
    starts = np.cumsum([0, *(len(data) for data, _ in key_parts)])
    offsets = [part[1:] + start for (_, part), start in zip(key_parts, starts, strict=False)]
    stored = from_arrow(schema, batches, "weight")
    columns: dict[str, Any] = {
        # The empty array gives the type where there are no batches.
        "key_data": np.concatenate([np.zeros(0, np.uint8), *(data for data, _ in key_parts)]),
        "key_offsets": np.concatenate([np.zeros(1, np.int64), *offsets]),
        "weight": from_q213(stored) if stored.dtype == np.int16 else stored,
        "variants": from_arrow(schema, batches, "variants"),
        "rate": from_arrow(schema, batches, "rate"),
    }
    metadata = schema.metadata
    source = lineage = calibration = None
    try:
        spec = spec_from_json(metadata[SPEC].decode())
        metrics = metrics_from_json(metadata[METRICS].decode())
        if CALIBRATION in metadata:
            calibration = Calibration.from_json(metadata[CALIBRATION].decode())
        if KIND in metadata:
            contents = metadata[PARENT_CONTENT].decode("ascii"), metadata[CONTENT].decode("ascii")
            lineage = Lineage(int(metadata[PARENT]), *contents)
        if JSON_TYPE in metadata:
            fids = [batch.column("fid") for batch in batches]
            source = JsonSource(
                type=metadata[JSON_TYPE].decode("utf-8", "surrogatepass"),
                fid=pa.concat_arrays(fids) if fids else pa.array([], pa.utf8()),
                value=from_arrow(schema, batches, "value"),
                order=from_arrow(schema, batches, "order"),
            )
    except (SpecError, ValueError, TypeError) as error:
        raise ArtefactError(f"the model file's metadata cannot be read: {error}") from error
    return StoredModel(
        ModelRows(**columns, spec=spec, metrics=metrics, calibration=calibration), source, lineage
    )


# -- columns

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
    """The columns of a file: weights of 16 or 32 bits, one per key or in lists of `width`; JSON columns if any."""
    key, weight, *rest = COLUMNS
    fields = [key, COMPACT_WEIGHT if compact else weight, *rest]
    if width is not None:
        fields = [f.with_type(list_of(f.type, width)) if f.name in OWN_VALUES else f for f in fields]
    return fields + JSON_COLUMNS if from_json else fields


def list_of(kind: pa.DataType, width: int) -> pa.DataType:
    """The type of lists of `width` numbers."""
    # Not nullable, here and in COLUMNS: the schema is compared as a whole.
    return pa.list_(pa.field("item", kind, nullable=False), width)


def weight_type(schema: pa.Schema) -> tuple[pa.DataType | None, int | None]:
    """The type of a stored weight (None without the column), and the length of its lists (None for single weights)."""
    place = schema.get_field_index("weight")
    kind = schema.field(place).type if place >= 0 else None
    if kind is not None and pa.types.is_fixed_size_list(kind):
        return kind.value_type, kind.list_size
    return kind, None


def to_arrow(numbers: Array) -> pa.Array:
    """A column of numbers from [rows], or of lists from [rows, width]."""
    if numbers.ndim == 1:
        return pa.array(numbers)
    flat = pa.array(numbers.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=list_of(flat.type, numbers.shape[1]))


def from_arrow(schema: pa.Schema, batches: list[pa.RecordBatch], name: str) -> Array:
    """A column's numbers, copied: [rows], or [rows, width] for lists. Nulls must have been refused before."""
    kind = schema.field(name).type
    width = [kind.list_size] if pa.types.is_fixed_size_list(kind) else []
    parts = [batch.column(name) for batch in batches]
    flat = [(part.flatten() if width else part).to_numpy() for part in parts]
    empty = np.zeros(0, (kind.value_type if width else kind).to_pandas_dtype())
    return np.concatenate([empty, *flat]).reshape([sum(map(len, parts)), *width])


# -- metadata: entries of the Arrow schema, listed in docs/formats/artefact.md

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

_ALWAYS = {ROWS, SPEC, SPEC_SHA256, METRICS, SHA256}
_OF_DELTAS = {KIND, PARENT, PARENT_CONTENT, CONTENT}


def _metadata(model: StoredModel) -> dict[bytes, bytes]:
    """All metadata except SHA256, which covers it."""
    rows, lineage = model.rows, model.lineage
    metadata = {
        FORMAT: b"%d" % (SNAPSHOT_FORMAT if lineage is None else DELTA_FORMAT),
        ROWS: str(rows.rows).encode(),
        SPEC: rows.spec.to_json().encode(),
        SPEC_SHA256: rows.spec.sha256.encode(),
        METRICS: metrics_to_json(rows.metrics).encode(),
    }
    if rows.calibration is not None:
        metadata[CALIBRATION] = rows.calibration.to_json().encode()
    if lineage is not None:
        contents = {PARENT_CONTENT: lineage.parent_content.encode(), CONTENT: lineage.content.encode()}
        metadata |= contents | {KIND: DELTA.encode(), PARENT: str(lineage.parent).encode()}
    if model.source is not None:
        # A JSON text may hold a lone surrogate, which must come back.
        metadata[JSON_TYPE] = model.source.type.encode("utf-8", "surrogatepass")
    return metadata


def _check_schema(schema: pa.Schema) -> None:
    """Raise ArtefactError unless the format is known, the metadata complete, and the columns match it."""
    metadata = schema.metadata or {}
    if FORMAT not in metadata:
        raise ArtefactError("an Arrow file, but not a model: it has no ftrie.format")
    try:
        version = int(metadata[FORMAT])
    except ValueError:
        raise ArtefactError(f"the model file's format version cannot be read: {metadata[FORMAT]!r}") from None
    if version > DELTA_FORMAT:
        raise NewerFormat(
            f"the model file has format {version}, newer than the {DELTA_FORMAT} this ftrie reads: upgrade ftrie"
        )
    is_delta = KIND in metadata
    missing = (_ALWAYS | _OF_DELTAS if is_delta else _ALWAYS) - metadata.keys()
    if version != (DELTA_FORMAT if is_delta else SNAPSHOT_FORMAT) or missing:
        raise ArtefactError(
            f"the model file's metadata is damaged (format {version}, missing {sorted(missing)})"
        )
    if is_delta and (metadata[KIND] != DELTA.encode() or JSON_TYPE in metadata):
        raise ArtefactError(
            f"the model file has kind {_text(metadata[KIND])!r}; expected {DELTA!r} without JSON columns"
        )
    kind, width = weight_type(schema)
    compact = kind == pa.int16()
    expected = columns(compact=compact, width=width, from_json=JSON_TYPE in metadata)
    if not schema.equals(pa.schema(expected), check_metadata=False):
        raise ArtefactError(
            f"the model file's columns are {_listed(schema)}; expected {_listed(pa.schema(expected))}"
        )


def _text(metadata: bytes) -> str:
    return metadata.decode("utf-8", "backslashreplace")


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
