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
import pyarrow.compute as pc

from model_store import fixed_point
from model_store.arrow_columns import columns_of
from model_store.artefact_checks import check, check_shapes, is_sorted
from model_store.calibration import Calibration
from model_store.errors import ArtefactError
from model_store.spec import ModelSpec
from model_store.whole_file import write_whole

Array = npt.NDArray[Any]


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


@dataclass(frozen=True, eq=False)
class Artefact:
    """A model, its rows sorted by key.

    Invariants, checked by `from_columns` and by every way to read one:

    1. Rows are sorted by key, as unsigned bytes; no key occurs twice; a key has 1 to 4,096 bytes.
    2. `key_offsets[0] == 0`, offsets do not fall, and the last one is `len(key_data)`.
    3. Weights and rates are finite; no variant bit is set beyond the spec's variants.
    4. With the spec's values = "per_variant", weights and rates have a column a variant; a variant's weight of a key
       that it does not use is 0.
    5. The calibration, if there is one, is of the spec's variants, and by a field of the request's side.

    All arrays are contiguous, writable and owned; treat them as constants.
    """

    key_data: npt.NDArray[np.uint8]  # all keys' bytes, end to end
    key_offsets: npt.NDArray[np.int64]  # [rows + 1]
    weight: npt.NDArray[np.float32]  # [rows], or [rows, variants] where each variant has its own
    variants: npt.NDArray[np.uint32]  # bit v: variant v uses this key
    rate: npt.NDArray[np.float32]  # learning rates, shaped as weight; 0 where they are not known
    spec: ModelSpec  # its fields named (see ModelSpec.resolve)
    metrics: Mapping[str, Mapping[str, float]]  # per variant
    source: JsonSource | None = None
    calibration: Calibration | None = None

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
            _own(key_data, np.uint8),
            _own(key_offsets, np.int64),
            _own(weight, np.float32),
            _own(variants, np.uint32),
            _own(rate, np.float32),
            spec,
            metrics,
            source,
            calibration,
        )
        check_shapes(artefact)
        if not is_sorted(artefact.key_array()):
            artefact = _sorted(artefact)
        check(artefact)
        return artefact

    @property
    def rows(self) -> int:
        """How many keys there are."""
        return len(self.weight)

    @cached_property
    def is_compact(self) -> bool:
        """True if the weights are published in 16 bits: the spec says q2.13, and each of them fits. O(rows)."""
        return self.spec.learner.precision == "q2.13" and fixed_point.fits(self.weight)

    @property
    def per_variant(self) -> bool:
        """True if each variant has its own weight and rate of a key, false if they share one."""
        return self.weight.ndim == 2

    def used_by(self, bit: int) -> npt.NDArray[np.bool_]:
        """bool[rows]: which keys variant number `bit` uses. O(rows)."""
        return (self.variants >> np.uint32(bit) & np.uint32(1)).astype(np.bool_)

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

    def key(self, row: int) -> bytes:
        """The key of one row. O(1)."""
        return self.key_data[self.key_offsets[row] : self.key_offsets[row + 1]].tobytes()

    def key_list(self) -> list[bytes]:
        """All keys, in row order. O(rows)."""
        keys: list[bytes] = self.key_array().to_pylist()
        return keys

    def key_array(self) -> pa.LargeBinaryArray:
        """The keys as an Arrow array over the same memory."""
        buffers = [None, pa.py_buffer(self.key_offsets), pa.py_buffer(self.key_data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.rows, buffers)

    def to_bytes(self) -> bytes:
        """The artefact's file, deterministic: same content, same bytes. docs/artefact.md describes them."""
        from model_store.arrow_format import encode

        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Artefact:
        """Read what `to_bytes` wrote, every check before use. Raises ArtefactError saying what is wrong."""
        from model_store.arrow_format import decode

        return decode(data)

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


def _own(values: Array, dtype: npt.DTypeLike) -> Array:
    return np.require(values, dtype, ["C", "W", "O"])


def _sorted(artefact: Artefact) -> Artefact:
    keys = artefact.key_array()
    order = pc.sort_indices(keys)
    key_data, key_offsets = columns_of(keys.take(order))
    rows = order.to_numpy()
    source = artefact.source
    if source is not None:
        source = JsonSource(source.type, source.fid.take(order), source.value[rows], source.order[rows])
    return replace(
        artefact,
        key_data=key_data,
        key_offsets=key_offsets,
        weight=artefact.weight[rows],
        variants=artefact.variants[rows],
        rate=artefact.rate[rows],
        source=source,
    )
