"""What stands beside an artefact's columns: the schema metadata, by name, and whether it is there and readable.

`arrow_format` reads and writes the columns. docs/artefact.md lists the names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from model_store.arrow_columns import columns, weight_type
from model_store.artefact import Artefact
from model_store.calibration import Calibration
from model_store.delta import Delta
from model_store.errors import ArtefactError, NewerFormat, SpecError
from model_store.manifest import DELTA, metrics_from_json, metrics_to_json
from model_store.spec import spec_from_json

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
