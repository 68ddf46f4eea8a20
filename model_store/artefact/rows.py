"""Rows of a model: sorted keys with a weight, a variant mask and a learning rate each.

`ModelRows` is what a whole model and a delta have in common. Beside it: the content digest of rows, the 16-bit form
of weights (q2.13), and columns of keys taken from Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact.calibration import Calibration
from model_store.errors import ArtefactError
from model_store.spec.spec import ModelSpec

Array = npt.NDArray[Any]

VALUES = ("weight", "variants", "rate")
"""The columns beside the key."""
OWN_VALUES = ("weight", "rate")
"""The columns with one number per key, or one per key and variant."""


# eq=False: == of two arrays is an array. Models are compared by their content.
@dataclass(frozen=True, eq=False, kw_only=True)
class ModelRows:
    """Rows sorted by key; `Artefact` and `Delta` state the invariants.

    All arrays are contiguous, writable and owned; treat them as constants.
    """

    key_data: npt.NDArray[np.uint8]  # the bytes of all keys, concatenated
    key_offsets: npt.NDArray[np.int64]  # [rows + 1]
    weight: npt.NDArray[np.float32]  # [rows], or [rows, variants] with values = "per_variant"
    variants: npt.NDArray[np.uint32]  # bit v: variant v uses this key
    rate: npt.NDArray[np.float32]  # learning rates, shaped as weight; 0 where unknown
    spec: ModelSpec  # resolved: every field is named (`ModelSpec.resolve`)
    metrics: Mapping[str, Mapping[str, float]]  # per variant
    calibration: Calibration | None = None

    @property
    def rows(self) -> int:
        """The number of keys."""
        return len(self.weight)

    @cached_property
    def is_compact(self) -> bool:
        """True if weights are stored in 16 bits: the spec says q2.13 and every weight fits. O(rows)."""
        return self.spec.learner.precision == "q2.13" and fits_q213(self.weight)

    @property
    def expects_own(self) -> bool:
        """True if the spec gives each variant its own weight and rate per key."""
        return self.spec.learner.values == "per_variant"

    @property
    def per_variant(self) -> bool:
        """True if each variant has its own weight and rate per key, false if they share one."""
        return self.weight.ndim == 2

    def used_by(self, bit: int) -> npt.NDArray[np.bool_]:
        """bool[rows]: the keys that variant number `bit` uses. O(rows)."""
        return (self.variants >> np.uint32(bit) & np.uint32(1)).astype(np.bool_)

    def rows_content(self) -> Content:
        """The content digest of these rows. O(rows + key bytes)."""
        return Content.of(self.key_data, self.key_offsets, self.weight, self.variants, self.rate)

    def key(self, row: int) -> bytes:
        """The key of one row. O(1)."""
        return self.key_data[self.key_offsets[row] : self.key_offsets[row + 1]].tobytes()

    def key_list(self) -> list[bytes]:
        """All keys, in row order. O(rows)."""
        keys: list[bytes] = self.key_array().to_pylist()
        return keys

    def key_array(self) -> pa.LargeBinaryArray:
        """The keys as an Arrow array over the same memory."""
        # No copy: Arrow keeps the arrays alive. Large, since the keys of a model may exceed 2 GiB.
        buffers = [None, pa.py_buffer(self.key_offsets), pa.py_buffer(self.key_data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.rows, buffers)

    def columns_in_order(self) -> tuple[dict[str, Any], pa.Array]:
        """The columns by name, sorted by key, and each row's number before sorting. O(rows log rows)."""
        keys = self.key_array()
        order = pc.sort_indices(keys)
        key_data, key_offsets = columns_of(keys.take(order))
        rows = order.to_numpy()
        columns = {name: getattr(self, name)[rows] for name in VALUES}
        return columns | {"key_data": key_data, "key_offsets": key_offsets}, order


@dataclass(frozen=True, eq=False)
class JsonSource:
    """The parts of a JSON model that an artefact has no column for, kept to write the same JSON again.

    `fid` holds each entry's fid as JSON text (`"0"` with its quotes, or `0`), `value` its number as float64,
    `order` its position in the file; all in the artefact's row order.
    """

    type: str
    fid: pa.StringArray
    value: npt.NDArray[np.float64]
    order: npt.NDArray[np.uint32]


def own(values: Array, dtype: npt.DTypeLike) -> Array:
    """The values as an array that kernels take: contiguous, writable, owning its memory."""
    return np.require(values, dtype, ["C", "W", "O"])


def columns_of(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Copies of an Arrow array's bytes and offsets; the first offset is 0."""
    _, offsets_buffer, data_buffer = keys.buffers()
    width = np.int64 if keys.type in (pa.large_binary(), pa.large_utf8()) else np.int32
    if offsets_buffer is None or len(keys) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    # A slice shares its buffers and begins at keys.offset.
    offsets = np.frombuffer(offsets_buffer, width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8)[begin:end].copy() if end > begin else np.zeros(0, np.uint8)
    return data, offsets - begin


# -- content digest
#
# Each row's key, variants, weights and rates are hashed into two 64-bit words, and the words of all rows are summed.
# A change therefore subtracts the old rows' words and adds the new ones', without reading the other rows. The digest
# detects wrongly assembled models; SHA-256 protects the files.

_MODULUS = 1 << 64
_DIGITS = 32


@dataclass(frozen=True)
class Content:
    """The digest of a set of rows; `+` and `-` add and remove rows. `str` gives 32 hexadecimal digits."""

    first: int = 0
    second: int = 0

    @classmethod
    def of(
        cls,
        key_data: npt.NDArray[np.uint8],
        key_offsets: npt.NDArray[np.int64],
        weight: npt.NDArray[np.float32],
        variants: npt.NDArray[np.uint32],
        rate: npt.NDArray[np.float32],
    ) -> Content:
        """The digest of the rows that a variant uses. O(rows + key bytes).

        weight and rate are [rows] or [rows, variants], as in an artefact.
        """
        from model_store.hash_kernels import content_sums

        sums = np.zeros(2, np.uint64)
        content_sums(key_data, key_offsets, _bits(weight), variants, _bits(rate), sums)
        return cls(int(sums[0]), int(sums[1]))

    @classmethod
    def parse(cls, text: str) -> Content:
        """Read the text that `str` gives. Raises ArtefactError for anything else."""
        try:
            if len(text) != _DIGITS:
                raise ValueError
            return cls(*divmod(int(text, 16), _MODULUS))
        except ValueError:
            raise ArtefactError(
                f"got the content digest {text[:40]!r}; expected {_DIGITS} hexadecimal digits"
            ) from None

    def __add__(self, other: Content) -> Content:
        return Content((self.first + other.first) % _MODULUS, (self.second + other.second) % _MODULUS)

    def __sub__(self, other: Content) -> Content:
        return Content((self.first - other.first) % _MODULUS, (self.second - other.second) % _MODULUS)

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"


def _bits(numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """The bits of the numbers as uint32[rows, width]."""
    # The bits, so that -0.0 and 0.0 are different rows: a delta must give the same file.
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return bits.reshape(len(numbers), bits.shape[1] if bits.ndim == 2 else 1)


# -- q2.13: weights in 16 bits, a sign, two integer and thirteen fraction bits (McMahan et al., KDD 2013, section 4.2)

Q213_STEP = 2.0**-13
Q213_SMALLEST, Q213_LARGEST = -4.0, 4.0 - Q213_STEP
_Q213_STEPS_PER_UNIT = 8192.0


def nearest_q213(weights: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Each weight rounded to the nearest multiple of 2^-13 in [-4, 4), ties to even. float32, exact."""
    # In float64, where the product cannot overflow.
    steps = np.rint(np.asarray(weights, np.float64) * _Q213_STEPS_PER_UNIT)
    return np.asarray(
        np.clip(steps * Q213_STEP, Q213_SMALLEST, Q213_LARGEST) + 0.0, np.float32
    )  # + 0.0: no -0.0


def fits_q213(weights: npt.NDArray[np.float32]) -> bool:
    """True if `to_q213` represents every weight exactly."""
    # -0.0 would come back as 0.0: equal, but not the same bits.
    return bool((nearest_q213(weights) == weights).all()) and not bool(
        (np.signbit(weights) & (weights == 0)).any()
    )


def to_q213(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """The weights in steps of 2^-13; they must fit (`fits_q213`)."""
    # Exact: a power of two changes only the exponent.
    return (weights * np.float32(_Q213_STEPS_PER_UNIT)).astype(np.int16)


def from_q213(steps: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """The inverse of `to_q213`."""
    return steps.astype(np.float32) * np.float32(Q213_STEP)
