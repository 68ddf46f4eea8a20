"""The artefact's columns: their Arrow types, and numbers to and fro. What stands beside them is `arrow_format`'s.

A weight and a rate are one number a key or, where each variant has its own, a list of as many as there are variants.
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

OWN_VALUES = ("weight", "rate")
"""Columns with a number a key, or with one for each variant."""

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
    """The columns of a model: weights in 16 bits or 32, single or (`width`) in lists, with JSON's or without."""
    key, weight, *rest = COLUMNS
    fields = [key, COMPACT_WEIGHT if compact else weight, *rest]
    if width is not None:
        fields = [f.with_type(list_of(f.type, width)) if f.name in OWN_VALUES else f for f in fields]
    return fields + JSON_COLUMNS if from_json else fields


def list_of(kind: pa.DataType, width: int) -> pa.DataType:
    """The type of lists of `width` numbers."""
    return pa.list_(pa.field("item", kind, nullable=False), width)


def weight_type(schema: pa.Schema) -> tuple[pa.DataType | None, int | None]:
    """The type of a stored weight, None if there is none, and how many a key has: None if it is no list."""
    place = schema.get_field_index("weight")
    kind = schema.field(place).type if place >= 0 else None
    if kind is not None and pa.types.is_fixed_size_list(kind):
        return kind.value_type, kind.list_size
    return kind, None


def to_arrow(numbers: Array) -> pa.Array:
    """A column of numbers [rows], or of lists [rows, width]."""
    if numbers.ndim == 1:
        return pa.array(numbers)
    flat = pa.array(numbers.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=list_of(flat.type, numbers.shape[1]))


def from_arrow(schema: pa.Schema, batches: list[pa.RecordBatch], name: str) -> Array:
    """A column's numbers, copied: [rows], or [rows, width] if it is one of lists. No number or list may be null."""
    kind = schema.field(name).type
    width = [kind.list_size] if pa.types.is_fixed_size_list(kind) else []
    parts = [batch.column(name) for batch in batches]
    flat = [(part.flatten() if width else part).to_numpy() for part in parts]
    empty = np.zeros(0, (kind.value_type if width else kind).to_pandas_dtype())
    return np.concatenate([empty, *flat]).reshape([sum(map(len, parts)), *width])


def refuse_nulls(batch: pa.RecordBatch) -> None:
    """Raise ArtefactError for a null: a null list would leave its numbers out, and move those of all later rows."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count:
            raise ArtefactError(f"the model file is damaged: column {name!r} has {column.null_count} nulls")


def columns_of(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """An Arrow array's bytes and offsets, copied, the first offset 0."""
    _, offsets_buffer, data_buffer = keys.buffers()
    width = np.int64 if keys.type in (pa.large_binary(), pa.large_utf8()) else np.int32
    if offsets_buffer is None or len(keys) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8)[begin:end].copy() if end > begin else np.zeros(0, np.uint8)
    return data, offsets - begin


# --- q2.13: weights in 16 bits, a sign, two integer and thirteen fraction bits (McMahan et al., KDD 2013,
# section 4.2) ---
#
# How a learner rounds while it learns is the learner's; here are the published form and its way back.


STEP = 2.0**-13
SMALLEST, LARGEST = -4.0, 4.0 - STEP
_STEPS_PER_UNIT = 8192.0


def nearest(weights: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Every weight at the nearest multiple of 2^-13 in [-4, 4); a tie goes to the even one. float32, exact."""
    steps = np.rint(np.asarray(weights, np.float64) * _STEPS_PER_UNIT)
    return np.asarray(np.clip(steps * STEP, SMALLEST, LARGEST) + 0.0, np.float32)  # + 0.0: no -0.0


def fits(weights: npt.NDArray[np.float32]) -> bool:
    """True if `to_int16` keeps every weight exactly."""
    return bool((nearest(weights) == weights).all()) and not bool(
        (np.signbit(weights) & (weights == 0)).any()
    )


def to_int16(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """The weights in steps of 2^-13. They must fit."""
    return (weights * np.float32(_STEPS_PER_UNIT)).astype(np.int16)


def from_int16(steps: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """The weights that `to_int16` was given."""
    return steps.astype(np.float32) * np.float32(STEP)


# --- Rows of a model: sorted keys with a weight, a variant mask and a learning rate each, and what they are
# rows of ---
#
# What a whole model and a change of one have in common. Nothing here knows of bytes, files or the store.


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelRows:
    """Rows sorted by key. `Artefact` and `Delta` say what must hold of them.

    All arrays are contiguous, writable and owned; treat them as constants.
    """

    key_data: npt.NDArray[np.uint8]  # all keys' bytes, end to end
    key_offsets: npt.NDArray[np.int64]  # [rows + 1]
    weight: npt.NDArray[np.float32]  # [rows], or [rows, variants] where each variant has its own
    variants: npt.NDArray[np.uint32]  # bit v: variant v uses this key
    rate: npt.NDArray[np.float32]  # learning rates, shaped as weight; 0 where they are not known
    spec: ModelSpec  # its fields named (see ModelSpec.resolve)
    metrics: Mapping[str, Mapping[str, float]]  # per variant
    calibration: Calibration | None = None

    @property
    def rows(self) -> int:
        """How many keys there are."""
        return len(self.weight)

    @cached_property
    def is_compact(self) -> bool:
        """True if the weights are published in 16 bits: the spec says q2.13, and each of them fits. O(rows)."""
        return self.spec.learner.precision == "q2.13" and fits(self.weight)

    @property
    def expects_own(self) -> bool:
        """True if, by the spec, each variant has its own weight and rate of a key."""
        return self.spec.learner.values == "per_variant"

    @property
    def per_variant(self) -> bool:
        """True if each variant has its own weight and rate of a key, false if they share one."""
        return self.weight.ndim == 2

    def used_by(self, bit: int) -> npt.NDArray[np.bool_]:
        """bool[rows]: which keys variant number `bit` uses. O(rows)."""
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
        buffers = [None, pa.py_buffer(self.key_offsets), pa.py_buffer(self.key_data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.rows, buffers)

    def columns_in_order(self) -> tuple[dict[str, Any], pa.Array]:
        """The columns by name, rows sorted by key, and the row that each was before. O(rows log rows)."""
        keys = self.key_array()
        order = pc.sort_indices(keys)
        key_data, key_offsets = columns_of(keys.take(order))
        rows = order.to_numpy()
        columns = {name: getattr(self, name)[rows] for name in ("weight", "variants", "rate")}
        return columns | {"key_data": key_data, "key_offsets": key_offsets}, order


def own(values: Array, dtype: npt.DTypeLike) -> Array:
    """The values as an array of their own that kernels take: contiguous and writable."""
    return np.require(values, dtype, ["C", "W", "O"])


# --- The content digest: what a model's rows are, in 128 bits, whatever their order ---
#
# A row's key, variants, weights and rates are mixed into two words of 64 bits, and those of all rows are
# added up. So who changes a few rows takes off what stood for them before and adds what stands for them now,
# and knows without looking at the other rows whether it has come to the model that was published. Against
# damage and deceit there is SHA-256; this digest finds what was put together wrongly.


_MODULUS = 1 << 64
_DIGITS = 32


@dataclass(frozen=True)
class Content:
    """The digest of some rows; `+` and `-` are those of the rows. `str` gives 32 hexadecimal digits."""

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
        """The digest of rows, those that no variant uses left out. O(rows + key bytes).

        Shapes as in an artefact: weight and rate [rows] or [rows, variants].
        """
        from model_store.hash_kernels import content_sums

        sums = np.zeros(2, np.uint64)
        content_sums(key_data, key_offsets, _bits(weight), variants, _bits(rate), sums)
        return cls(int(sums[0]), int(sums[1]))

    @classmethod
    def parse(cls, text: str) -> Content:
        """Read back `str`. Raises ArtefactError for anything else."""
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
    """The bits of numbers as uint32[rows, width]."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return bits.reshape(len(numbers), bits.shape[1] if bits.ndim == 2 else 1)
