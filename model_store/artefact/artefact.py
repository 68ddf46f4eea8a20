"""The artefact: a trained model as sorted keys with a weight, a variant mask and a learning rate each; and deltas.

`Artefact` is a whole model, `Delta` what changed since a version of it. Both are immutable, are checked whenever they
are made or read, and convert to and from the bytes of `arrow_format`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact import arrow_format
from model_store.artefact.arrow_format import Lineage, StoredModel
from model_store.artefact.calibration import check_fits
from model_store.artefact.rows import OWN_VALUES, Content, JsonSource, ModelRows, own
from model_store.errors import ArtefactError
from model_store.files import write_whole
from model_store.spec.keys import MAX_KEY_BYTES

T = TypeVar("T")
_TYPES = {"key_data": "u1", "key_offsets": "i8", "weight": "f4", "variants": "u4", "rate": "f4"}


class _Checked(ModelRows):
    """Rows that are checked whenever they are made or read, and their file.

    FORMAT: of the file; WHY_NOT: what is wrong with a file of the other kind.
    """

    FORMAT: ClassVar[int]
    WHY_NOT: ClassVar[str]

    @classmethod
    def from_columns(cls, **columns: Any) -> Self:
        """Build from the fields by name, rows in any order: sort if needed (O(n log n)), then check every invariant.

        Raises ArtefactError naming the first wrong row or column.
        """
        made = cls(**columns | {name: own(columns[name], kind) for name, kind in _TYPES.items()})
        # Before the order is looked at: Arrow takes the offsets as they are, and would read beyond the keys.
        made.check_shapes()
        if _disorder(made.key_array()) >= 0:
            made = made.in_order()
        made.check()
        return made

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read and verify the bytes of a file. Raises ArtefactError, also for one of the other kind."""
        read = decode(data)
        if not isinstance(read, cls):
            raise ArtefactError(cls.WHY_NOT)
        return read

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file, deterministic: the same content gives the same bytes. docs/formats/artefact.md describes it."""
        raise NotImplementedError

    def in_order(self) -> Self:
        """The same rows, sorted by key. O(rows log rows)."""
        return replace(self, **self.columns_in_order()[0])

    def check_shapes(self) -> None:
        """Raise ArtefactError unless the columns' lengths match, rows in any order. O(rows).

        Weights and rates are [rows, variants] with the spec's values = "per_variant", else [rows]; a model imported
        from JSON always has [rows], one weight for all variants.
        """
        rows, offsets, count = self.rows, self.key_offsets, len(self.spec.variants)
        for name in ("variants", "rate"):
            if len(getattr(self, name)) != rows:
                raise ArtefactError(
                    f"{rows} weights, but {len(getattr(self, name))} values in column {name!r}"
                )
        if self.variants.ndim != 1:
            raise ArtefactError(
                f"column 'variants' has the shape {self.variants.shape}; expected one number per key"
            )
        expected = (rows, count) if self.expects_own else (rows,)
        for name in OWN_VALUES:
            shape = getattr(self, name).shape
            if shape != expected:
                raise ArtefactError(
                    f"column {name!r} has the shape {shape}; the spec has {count} variants and learner.values = "
                    f'"{self.spec.learner.values}": expected {expected}'
                )
        if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(self.key_data):
            raise ArtefactError(
                f"the key offsets do not span {rows} keys with {len(self.key_data)} bytes in total"
            )
        lengths = np.diff(offsets)
        if rows and not 0 < lengths.min() <= lengths.max() <= MAX_KEY_BYTES:
            row = int(np.argmax((lengths < 1) | (lengths > MAX_KEY_BYTES)))
            raise ArtefactError(f"key {row} has {lengths[row]} bytes; expected 1 to {MAX_KEY_BYTES}")

    def check(self) -> None:
        """Raise ArtefactError unless every invariant holds. O(rows · variants)."""
        self.check_shapes()
        keys, variants = self.key_array(), list(self.spec.variants)
        # Through Arrow, which compares bytes as unsigned, as the trie and the kernels do.
        if (row := _disorder(keys)) >= 0:
            first, second = keys[row].as_py(), keys[row + 1].as_py()
            what = "occurs twice" if first == second else f"precedes {second!r}; keys must ascend"
            raise ArtefactError(f"key {first!r} (row {row}) {what}")
        bad = ~(np.isfinite(self.weight) & np.isfinite(self.rate))
        if bad.any():
            row, *bit = map(int, np.unravel_index(int(np.argmax(bad)), bad.shape))
            whose = f" for variant {variants[bit[0]]!r}" if bit else ""
            raise ArtefactError(
                f"key {self.key(row)!r} has weight {self.weight[row, *bit]} and rate {self.rate[row, *bit]}{whose}; "
                "expected finite numbers"
            )
        # One pass over all masks instead of a look at each.
        if self.rows and int(np.bitwise_or.reduce(self.variants)) >> len(variants):
            raise ArtefactError(f"a key is used by a variant beyond the {len(variants)} of the spec")
        for at, name in enumerate(variants if self.per_variant else ()):
            weighed = (self.weight[:, at] != 0) & ~self.used_by(at)
            if weighed.any():
                row = int(np.argmax(weighed))
                raise ArtefactError(
                    f"key {self.key(row)!r} has weight {self.weight[row, at]} for variant {name!r}, which does not use "
                    "it; expected 0"
                )
        if self.calibration is not None:
            sides = self.spec.fields.items()
            check_fits(self.calibration, variants, [name for name, field in sides if field.side != "item"])


@dataclass(frozen=True, eq=False, kw_only=True)
class Artefact(_Checked):
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
    WHY_NOT: ClassVar[str] = "got a delta, which holds only changes since another version; expected a model"

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

        # Its variants are the bits of the masks, and its fields the names in keys: rows of two specs do not mix.
        if parent.spec.sha256 != self.spec.sha256:
            raise ArtefactError("a delta cannot change the spec; publish a snapshot")
        if parent.source is not None or self.source is not None:
            raise ArtefactError("a model of the JSON form cannot have deltas; publish a snapshot")
        for rows in (parent, self):
            if not rows.variants.all():
                key = rows.key(int(np.argmin(rows.variants)))
                raise ArtefactError(
                    f"no variant uses key {key!r}, which in a delta would mean its removal; drop the key"
                )
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
            # Not of this model: with a threshold, the delta produces another one.
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
        # Computed here and by the publisher on its own: a delta that was applied to a wrong or damaged model is found.
        if made.content != delta.content:
            raise ArtefactError(
                f"the delta should produce a model with content {delta.content} and produces {made.content}; "
                "load the snapshot of its version"
            )
        return made

    def to_bytes(self) -> bytes:
        """The file, with the JSON columns, if any."""
        return arrow_format.encode(StoredModel(self, source=self.source))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all. Raises OutputError."""
        write_whole(Path(path), self.to_bytes())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Artefact:
        """Read and verify a file. Raises ArtefactError naming the file."""
        return read_file(Path(path), cls.from_bytes)

    def check_shapes(self) -> None:
        """As for all rows; the JSON columns, if any, have as many rows too."""
        super().check_shapes()
        source, rows = self.source, self.rows
        if source is not None and not len(source.fid) == len(source.value) == len(source.order) == rows:
            raise ArtefactError(f"the JSON columns do not have {rows} rows each")

    def in_order(self) -> Artefact:
        """The same rows, sorted by key. O(rows log rows)."""
        columns, order = self.columns_in_order()
        source, rows = self.source, order.to_numpy()
        if source is not None:
            source = JsonSource(source.type, source.fid.take(order), source.value[rows], source.order[rows])
        return replace(self, **columns, source=source)


@dataclass(frozen=True, eq=False, kw_only=True)
class Delta(_Checked):
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
    WHY_NOT: ClassVar[str] = "got a whole model; expected a delta"

    def to_bytes(self) -> bytes:
        """The file, with the lineage."""
        lineage = Lineage(self.parent, self.parent_content, self.content)
        return arrow_format.encode(StoredModel(self, lineage=lineage))

    def check(self) -> None:
        """As for all rows; what a removed key has is 0."""
        super().check()
        for content in (self.content, self.parent_content):
            Content.parse(content)
        numbers = (self.weight != 0) | (self.rate != 0)
        left = (numbers.any(axis=1) if self.per_variant else numbers) & (self.variants == 0)
        if left.any():
            row = int(np.argmax(left))
            raise ArtefactError(
                f"the delta removes key {self.key(row)!r} but gives it weight {self.weight[row]} and rate "
                f"{self.rate[row]}; expected 0"
            )

    def followed_by(self, later: Delta) -> Delta:
        """One delta that does what both do in turn. Raises ArtefactError unless `later` changes what this produces.

        A removed key stays in it, to be removed.
        """
        from model_store.artefact.changes import merged_rows

        _check_follows(self.content, later)
        return replace(
            later,
            # A key removed here and by none of the later ones must still be removed from the snapshot.
            **merged_rows(self, later, np.ones(later.rows, np.bool_)),
            parent=self.parent,
            parent_content=self.parent_content,
        )


def decode(data: bytes | bytearray | memoryview) -> Artefact | Delta:
    """Read and verify the bytes of a model or a delta. Raises ArtefactError naming what is wrong."""
    stored = arrow_format.decode(data)
    columns = {each.name: getattr(stored.rows, each.name) for each in fields(ModelRows)}
    made: Artefact | Delta
    if stored.lineage is None:
        made = Artefact(**columns, source=stored.source)
    else:
        made = Delta(**columns, **vars(stored.lineage))
    made.check()
    return made


def read_file(path: Path, parse: Callable[[bytes], T]) -> T:
    """What a file holds. Raises ArtefactError naming it."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error


def _check_follows(content: str, delta: Delta) -> None:
    if delta.parent_content != content:
        raise ArtefactError(
            f"the delta changes a model with content {delta.parent_content}, and this one has {content}: "
            "a version in between is missing, or the delta belongs to another chain; load the snapshot of its version"
        )


def _disorder(keys: pa.LargeBinaryArray) -> int:
    """The first row whose key is not below the next one, as unsigned bytes; -1 if all are."""
    if len(keys) < 2:
        return -1
    # `less` and not `less_equal`: a repeated key is out of order too.
    return int(pc.index(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), False).as_py())
