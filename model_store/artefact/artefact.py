"""The artefact: a trained model as sorted keys with a weight, a variant mask and a learning rate each; and deltas.

`Artefact` is a whole model, `Delta` what changed since a version of it. Both are immutable, are checked whenever they
are made or read, and convert to and from the bytes of `arrow_format`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact import arrow_format
from model_store.artefact.arrow_format import Lineage, StoredModel
from model_store.artefact.calibration import Calibration, check_fits
from model_store.artefact.rows import OWN_VALUES, Array, Content, JsonSource, ModelRows, own
from model_store.errors import ArtefactError
from model_store.files import write_whole
from model_store.spec.keys import MAX_KEY_BYTES
from model_store.spec.spec import ModelSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class Artefact(ModelRows):
    """A model, its rows sorted by key.

    Invariants, checked by `from_columns` and when reading:

    1. Rows are sorted by key, as unsigned bytes; keys are unique; a key has 1 to 4,096 bytes.
    2. `key_offsets[0] == 0`, offsets never decrease, and the last one is `len(key_data)`.
    3. Weights and rates are finite; no variant bit is set beyond the spec's variants.
    4. With the spec's values = "per_variant", weights and rates have one column per variant; the weight is 0 where the
       variant does not use the key.
    5. The calibration, if any, names variants of the spec, and slices by a field of the user's or context's side.
    """

    source: JsonSource | None = None

    FORMAT: ClassVar[int] = arrow_format.SNAPSHOT_FORMAT

    @classmethod
    def from_columns(
        cls,
        *,
        key_data: Array,
        key_offsets: Array,
        weight: Array,
        variants: Array,
        rate: Array,
        spec: ModelSpec,
        metrics: Mapping[str, Mapping[str, float]],
        source: JsonSource | None = None,
        calibration: Calibration | None = None,
    ) -> Artefact:
        """Build from columns in any row order: sort if needed (O(n log n)), then check every invariant.

        Raises ArtefactError naming the first wrong row or column.
        """
        artefact = cls(
            key_data=own(key_data, np.uint8),
            key_offsets=own(key_offsets, np.int64),
            weight=own(weight, np.float32),
            variants=own(variants, np.uint32),
            rate=own(rate, np.float32),
            spec=spec,
            metrics=metrics,
            source=source,
            calibration=calibration,
        )
        _check_shapes(artefact)
        _check_source(artefact)
        if not _is_sorted(artefact.key_array()):
            artefact = _sorted(artefact)
        _check(artefact)
        return artefact

    @property
    def expects_own(self) -> bool:
        """True if each variant should have its own weight and rate; never for a model imported from JSON."""
        return super().expects_own and self.source is None

    def weights_of(self, bit: int) -> npt.NDArray[np.float32]:
        """float32[rows]: each key's weight for variant number `bit`, 0 where the variant does not use it. O(rows)."""
        return np.where(self.used_by(bit), self.weight[:, bit] if self.per_variant else self.weight, 0)

    def rates_of(self, bit: int) -> npt.NDArray[np.float32]:
        """float32[rows]: each key's learning rate for variant number `bit`, 0 likewise. O(rows)."""
        return np.where(self.used_by(bit), self.rate[:, bit] if self.per_variant else self.rate, 0)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @cached_property
    def content(self) -> str:
        """The content digest of all rows that a variant uses (`rows.Content`). O(rows + key bytes)."""
        return str(self.rows_content())

    def changes_since(self, parent: Artefact, threshold: float = 0.0, *, version: int = 0) -> Delta:
        """The delta from `parent`, which is version number `version` (0: not published). O(rows of both).

        With threshold 0, the delta holds every key with any changed bit and produces this model. With a higher one, it
        holds a key only if a variant's weight moved by more, an absent key counting as weight 0; the delta's `content`
        is then that of the model it produces. Raises ArtefactError if the specs differ, and for imported JSON models.
        """
        from model_store.artefact.changes import changed_rows  # numba: imported only when needed

        _check_can_change(parent, self)
        changed = changed_rows(parent, self, threshold)
        return Delta.from_columns(
            key_data=changed.key_data,
            key_offsets=changed.key_offsets,
            **changed.after,
            spec=self.spec,
            metrics=self.metrics,
            calibration=self.calibration,
            parent=version,
            parent_content=parent.content,
            content=str(Content.parse(parent.content) + changed.content_change()),
        )

    def with_changes(self, delta: Delta) -> Artefact:
        """The model that the delta produces from this one, bit for bit, its content verified. O(rows).

        Raises ArtefactError unless the delta's parent has this model's content.
        """
        from model_store.artefact.changes import merged_rows

        if delta.spec.sha256 != self.spec.sha256:
            raise ArtefactError("the delta is of a model with another spec; load the snapshot of its version")
        _check_follows(self.content, delta)
        made = Artefact(
            **merged_rows(self, delta, delta.variants != 0),
            spec=delta.spec,
            metrics=delta.metrics,
            calibration=delta.calibration,
        )
        if made.content != delta.content:
            raise ArtefactError(
                f"the delta should produce a model with content {delta.content} and produces {made.content}; "
                "load the snapshot of its version"
            )
        return made

    def to_bytes(self) -> bytes:
        """The file, deterministic: the same content gives the same bytes. docs/formats/artefact.md describes it."""
        return arrow_format.encode(StoredModel(self, source=self.source))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Artefact:
        """Read and verify the bytes of a model. Raises ArtefactError, also for a delta."""
        read = decode(data)
        if not isinstance(read, Artefact):
            raise ArtefactError(
                "got a delta, which holds only changes since another version; expected a model"
            )
        return read

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all. Raises OutputError."""
        write_whole(Path(path), self.to_bytes())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Artefact:
        """Read and verify a file. Raises ArtefactError naming the file."""
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except OSError as error:
            raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
        except ArtefactError as error:
            raise ArtefactError(f"{path}: {error}") from error


@dataclass(frozen=True, eq=False, kw_only=True)
class Delta(ModelRows):
    """The keys that changed since a version, with their new values; metrics and calibration are the new model's.

    Invariants, checked by `from_columns` and when reading: those of an artefact, and

    1. A row with variants 0 removes its key; its weights and rates are 0. Any other row inserts or replaces its key.
    2. `parent_content` is the content digest of the model to change, `content` that of the model produced.
    3. `parent` is the version to change, 0 while unknown.
    """

    parent: int
    content: str
    parent_content: str

    FORMAT: ClassVar[int] = arrow_format.DELTA_FORMAT

    @classmethod
    def from_columns(cls, **columns: Any) -> Delta:
        """Build from the fields by name, rows in any order: sort if needed, then check every invariant.

        Raises ArtefactError for the first that does not hold.
        """
        kinds = {"key_data": "u1", "key_offsets": "i8", "weight": "f4", "variants": "u4", "rate": "f4"}
        delta = cls(**columns | {name: own(columns[name], kind) for name, kind in kinds.items()})
        _check_shapes(delta)
        if not _is_sorted(delta.key_array()):
            delta = replace(delta, **delta.columns_in_order()[0])
        _check_delta(delta)
        return delta

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file, deterministic: the same content gives the same bytes. docs/formats/artefact.md describes it."""
        lineage = Lineage(self.parent, self.parent_content, self.content)
        return arrow_format.encode(StoredModel(self, lineage=lineage))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Delta:
        """Read and verify the bytes of a delta. Raises ArtefactError, also for a whole model."""
        read = decode(data)
        if not isinstance(read, Delta):
            raise ArtefactError("got a whole model; expected a delta")
        return read

    def followed_by(self, later: Delta) -> Delta:
        """One delta that does what both do in turn. Raises ArtefactError unless `later` changes what this produces.

        A removed key stays in it, to be removed.
        """
        from model_store.artefact.changes import merged_rows

        _check_follows(self.content, later)
        return replace(
            later,
            **merged_rows(self, later, np.ones(later.rows, np.bool_)),
            parent=self.parent,
            parent_content=self.parent_content,
        )


def decode(data: bytes | bytearray | memoryview) -> Artefact | Delta:
    """Read and verify the bytes of a model or a delta. Raises ArtefactError naming what is wrong."""
    stored = arrow_format.decode(data)
    columns = {each.name: getattr(stored.rows, each.name) for each in fields(ModelRows)}
    if stored.lineage is not None:
        delta = Delta(**columns, **vars(stored.lineage))
        _check_delta(delta)
        return delta
    artefact = Artefact(**columns, source=stored.source)
    _check(artefact)
    return artefact


def _sorted(artefact: Artefact) -> Artefact:
    columns, order = artefact.columns_in_order()
    source, rows = artefact.source, order.to_numpy()
    if source is not None:
        source = JsonSource(source.type, source.fid.take(order), source.value[rows], source.order[rows])
    return replace(artefact, **columns, source=source)


# -- checks


def _check_can_change(parent: Artefact, model: Artefact) -> None:
    if parent.spec.sha256 != model.spec.sha256:
        raise ArtefactError("a delta cannot change the spec; publish a snapshot")
    if parent.source is not None or model.source is not None:
        raise ArtefactError("a model of the JSON form cannot have deltas; publish a snapshot")
    for rows in (parent, model):
        if not rows.variants.all():
            key = rows.key(int(np.argmin(rows.variants)))
            raise ArtefactError(
                f"no variant uses key {key!r}, which in a delta would mean its removal; drop the key"
            )


def _check_follows(content: str, delta: Delta) -> None:
    if delta.parent_content != content:
        raise ArtefactError(
            f"the delta changes a model with content {delta.parent_content}, and this one has {content}: "
            "a version in between is missing, or the delta belongs to another chain; load the snapshot of its version"
        )


def _check(artefact: Artefact) -> None:
    """Raise ArtefactError unless every invariant of `Artefact` holds. O(rows)."""
    _check_rows(artefact)
    _check_source(artefact)


def _check_delta(delta: Delta) -> None:
    """Raise ArtefactError unless every invariant of `Delta` holds. O(rows)."""
    _check_rows(delta)
    for content in (delta.content, delta.parent_content):
        Content.parse(content)
    numbers = (delta.weight != 0) | (delta.rate != 0)
    left = (numbers.any(axis=1) if delta.per_variant else numbers) & (delta.variants == 0)
    if left.any():
        row = int(np.argmax(left))
        raise ArtefactError(
            f"the delta removes key {delta.key(row)!r} but gives it weight {delta.weight[row]} and rate "
            f"{delta.rate[row]}; expected 0"
        )


def _check_rows(artefact: ModelRows) -> None:
    _check_shapes(artefact)
    keys = artefact.key_array()
    if not _is_sorted(keys):
        _raise_disorder(keys)
    bad = ~(np.isfinite(artefact.weight) & np.isfinite(artefact.rate))
    if bad.any():
        row, *bit = np.unravel_index(int(np.argmax(bad)), bad.shape)
        whose = f" for variant {list(artefact.spec.variants)[bit[0]]!r}" if bit else ""
        raise ArtefactError(
            f"key {artefact.key(int(row))!r} has weight {artefact.weight[row, *bit]} and rate "
            f"{artefact.rate[row, *bit]}{whose}; expected finite numbers"
        )
    count = len(artefact.spec.variants)
    if artefact.rows and int(np.bitwise_or.reduce(artefact.variants)) >> count:
        raise ArtefactError(f"a key is used by a variant beyond the {count} of the spec")
    _check_unused(artefact)
    if artefact.calibration is not None:
        fields = artefact.spec.fields.items()
        request_fields = [name for name, field in fields if field.side != "item"]
        check_fits(artefact.calibration, artefact.spec.variants, request_fields)


def _check_shapes(artefact: ModelRows) -> None:
    """Raise ArtefactError unless the columns' lengths match, rows in any order. O(rows)."""
    rows, offsets = artefact.rows, artefact.key_offsets
    for name in ("variants", "rate"):
        if len(getattr(artefact, name)) != rows:
            raise ArtefactError(
                f"{rows} weights, but {len(getattr(artefact, name))} values in column {name!r}"
            )
    _check_widths(artefact)
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(artefact.key_data):
        raise ArtefactError(
            f"the key offsets do not span {rows} keys with {len(artefact.key_data)} bytes in total"
        )
    lengths = np.diff(offsets)
    if rows and not 0 < lengths.min() <= lengths.max() <= MAX_KEY_BYTES:
        row = int(np.argmax((lengths < 1) | (lengths > MAX_KEY_BYTES)))
        raise ArtefactError(f"key {row} has {lengths[row]} bytes; expected 1 to {MAX_KEY_BYTES}")


def _check_source(artefact: Artefact) -> None:
    """Raise ArtefactError unless the JSON columns, if any, have as many rows."""
    source, rows = artefact.source, artefact.rows
    if source is not None and not len(source.fid) == len(source.value) == len(source.order) == rows:
        raise ArtefactError(f"the JSON columns do not have {rows} rows each")


def _check_widths(artefact: ModelRows) -> None:
    """Raise ArtefactError unless weights and rates have the shape that the spec's `learner.values` requires.

    That is [rows, variants] with values = "per_variant", else [rows]; a model imported from JSON always has [rows],
    one weight for all variants.
    """
    values, count = artefact.spec.learner.values, len(artefact.spec.variants)
    expected = (artefact.rows, count) if artefact.expects_own else (artefact.rows,)
    if artefact.variants.ndim != 1:
        raise ArtefactError(
            f"column 'variants' has the shape {artefact.variants.shape}; expected one number per key"
        )
    for name in OWN_VALUES:
        shape = getattr(artefact, name).shape
        if shape != expected:
            raise ArtefactError(
                f"column {name!r} has the shape {shape}; the spec has {count} variants and learner.values = "
                f'"{values}": expected {expected}'
            )


def _check_unused(artefact: ModelRows) -> None:
    """Raise ArtefactError unless a key's weight is 0 for every variant that does not use it. O(rows · variants)."""
    if not artefact.per_variant:
        return
    for bit, name in enumerate(artefact.spec.variants):
        weighed = (artefact.weight[:, bit] != 0) & ~artefact.used_by(bit)
        if weighed.any():
            row = int(np.argmax(weighed))
            raise ArtefactError(
                f"key {artefact.key(row)!r} has weight {artefact.weight[row, bit]} for variant {name!r}, which does "
                "not use it; expected 0"
            )


def _is_sorted(keys: pa.LargeBinaryArray) -> bool:
    """True if keys ascend strictly, as unsigned bytes."""
    if len(keys) < 2:
        return True
    return bool(pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py())


def _raise_disorder(keys: pa.LargeBinaryArray) -> None:
    row = pc.index(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), False).as_py()
    first, second = keys[row].as_py(), keys[row + 1].as_py()
    what = "occurs twice" if first == second else f"precedes {second!r}; keys must ascend"
    raise ArtefactError(f"key {first!r} (row {row}) {what}")
