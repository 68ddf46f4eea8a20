"""Rows of a model: sorted keys with a weight, a variant mask and a learning rate each, and what they are rows of.

What a whole model and a change of one have in common. Nothing here knows of bytes, files or the store.
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

from model_store import fixed_point
from model_store.arrow_columns import columns_of
from model_store.calibration import Calibration
from model_store.content import Content
from model_store.spec import ModelSpec

Array = npt.NDArray[Any]


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
        return self.spec.learner.precision == "q2.13" and fixed_point.fits(self.weight)

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
