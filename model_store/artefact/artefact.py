"""The artefact: a trained model as sorted keys with a weight, a variant mask and a learning rate each.

`arrow_format` turns it into bytes and back, `json_model` into the JSON form. Nothing here learns, serves or
publishes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.artefact.calibration import Calibration
from model_store.artefact.checks import check, check_delta, check_shapes, check_source, is_sorted
from model_store.artefact.rows import Array, ModelRows, own
from model_store.errors import ArtefactError
from model_store.spec.spec import ModelSpec
from model_store.whole_file import write_whole


@dataclass(frozen=True, eq=False)
class JsonSource:
    """What a JSON model said that an artefact does not: kept so that the same JSON can be written again.

    `fid` holds each entry's fid as JSON text (`"0"` with its quotes, or `0`), `value` its number as float64,
    `order` its place in the file; all in the artefact's row order.
    """

    type: str
    fid: pa.StringArray
    value: npt.NDArray[np.float64]
    order: npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Artefact(ModelRows):
    """A model, its rows sorted by key.

    Invariants, checked by `from_columns` and by every way to read one:

    1. Rows are sorted by key, as unsigned bytes; no key occurs twice; a key has 1 to 4,096 bytes.
    2. `key_offsets[0] == 0`, offsets do not fall, and the last one is `len(key_data)`.
    3. Weights and rates are finite; no variant bit is set beyond the spec's variants.
    4. With the spec's values = "per_variant", weights and rates have a column a variant; a variant's weight of a key
       that it does not use is 0.
    5. The calibration, if there is one, is of the spec's variants, and by a field of the request's side.
    """

    source: JsonSource | None = None

    FORMAT: ClassVar[int] = 2  # what is written; 1 is read as well

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
        """Build from columns in any row order: sorts where needed (O(n log n)), then checks every invariant.

        Raises ArtefactError naming the first row or the column that is wrong.
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
        check_shapes(artefact)
        check_source(artefact)
        if not is_sorted(artefact.key_array()):
            artefact = _sorted(artefact)
        check(artefact)
        return artefact

    @property
    def expects_own(self) -> bool:
        """True if each variant should have its own weight and rate: not in a model that came from JSON."""
        return super().expects_own and self.source is None

    def weights_of(self, bit: int) -> npt.NDArray[np.float32]:
        """float32[rows]: what each key weighs for variant number `bit`, 0 where it does not use the key. O(rows)."""
        return np.where(self.used_by(bit), self.weight[:, bit] if self.per_variant else self.weight, 0)

    def rates_of(self, bit: int) -> npt.NDArray[np.float32]:
        """float32[rows]: each key's learning rate for variant number `bit`, likewise. O(rows)."""
        return np.where(self.used_by(bit), self.rate[:, bit] if self.per_variant else self.rate, 0)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex. Same content, same digest."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @cached_property
    def content(self) -> str:
        """The content digest of all rows that a variant uses: `model_store.artefact.rows`. O(rows + key bytes)."""
        return str(self.rows_content())

    def changes_since(self, parent: Artefact, threshold: float = 0.0, *, version: int = 0) -> Delta:
        """What changed since `parent`, which is version number `version` (0: not published). O(rows of both).

        With a threshold, a key goes out only if its weight moved by more than that for some variant, one that is not
        there weighing 0; the delta's `content` is then that of the model it makes, not of this one. Without, with
        every bit that changed. Raises ArtefactError for models of different specs, and of the JSON form.
        """
        from model_store.artefact.changes import changes

        return changes(parent, self, threshold, version)

    def with_changes(self, delta: Delta) -> Artefact:
        """The model that the delta makes of this one, bit for bit, its content verified. O(rows).

        Raises ArtefactError unless the delta was made of this very content.
        """
        from model_store.artefact.changes import applied

        return applied(self, delta)

    def to_bytes(self) -> bytes:
        """The file, deterministic: same content, same bytes. docs/artefact.md describes them."""
        from model_store.artefact.arrow_format import encode

        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Artefact:
        """Read what `to_bytes` wrote, every check before use. Raises ArtefactError saying what is wrong."""
        from model_store.artefact.arrow_format import decode

        read = decode(data)
        if not isinstance(read, Artefact):
            raise ArtefactError(
                "this is a delta, not a model: it says only what changed since another version"
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


def _sorted(artefact: Artefact) -> Artefact:
    columns, order = artefact.columns_in_order()
    source, rows = artefact.source, order.to_numpy()
    if source is not None:
        source = JsonSource(source.type, source.fid.take(order), source.value[rows], source.order[rows])
    return replace(artefact, **columns, source=source)


# --- A delta: what changed in a model since a version of it, as rows to put in and keys to take out ---
#
# How it is made of two models, and how it makes one of another, is `deltas.changes`.


@dataclass(frozen=True, eq=False, kw_only=True)
class Delta(ModelRows):
    """The keys that changed, each as it is now; metrics and calibration are those of the new model, whole.

    Invariants, checked wherever one is made or read: those of an artefact, and

    1. A row with variants 0 takes its key out; its weights and rates are 0. Any other puts its key in, or replaces it.
    2. `parent_content` is the content digest of the model that it changes, `content` that of the model it makes.
    3. `parent` is the version of the former, 0 while none has been said.
    """

    parent: int
    content: str
    parent_content: str

    FORMAT: ClassVar[int] = 3  # an ftrie that knows no deltas refuses it by this

    @classmethod
    def from_columns(cls, **fields: Any) -> Delta:
        """Build from the fields by name, rows in any order: sorts where needed, then checks every invariant.

        Raises ArtefactError for the first that does not hold.
        """
        kinds = {"key_data": "u1", "key_offsets": "i8", "weight": "f4", "variants": "u4", "rate": "f4"}
        delta = cls(**fields | {name: own(fields[name], kind) for name, kind in kinds.items()})
        check_shapes(delta)
        if not is_sorted(delta.key_array()):
            delta = replace(delta, **delta.columns_in_order()[0])
        check_delta(delta)
        return delta

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file, deterministic: same content, same bytes. docs/artefact.md describes them."""
        from model_store.artefact.arrow_format import encode

        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Delta:
        """Read what `to_bytes` wrote, every check before use. Raises ArtefactError saying what is wrong."""
        from model_store.artefact.arrow_format import decode

        read = decode(data)
        if not isinstance(read, Delta):
            raise ArtefactError("this is a whole model, where a delta was expected")
        return read

    def followed_by(self, later: Delta) -> Delta:
        """Both in one: what the two make one after the other. Raises ArtefactError unless `later` fits."""
        from model_store.artefact.changes import joined

        return joined(self, later)
