"""Putting two sets of sorted keys together, by kernel; keys that were taken out are left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from server.layers.kernels import merge_keys
from server.layers.values import Values

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Sorted keys, uint8 data and int offsets [n + 1] into it, with their values."""

    key_data: Array
    key_offsets: Array
    values: Values

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Array) -> Rows:
        """Some of them, in the order of `rows`, which rises."""
        keep = np.zeros(len(self), np.bool_)
        keep[rows] = True
        nothing = Rows(np.empty(0, np.uint8), np.zeros(1, np.int64), self.values.zeros(0))
        return _merged(self, keep, nothing, np.empty(0, np.bool_))


def merged(one: Rows, other: Rows) -> Rows:
    """The keys of both that a variant uses. They have none in common. O(key bytes)."""
    return _merged(one, one.values.used, other, other.values.used)


def _merged(one: Rows, keep: Array, other: Rows, keep_other: Array) -> Rows:
    count = np.count_nonzero(keep) + np.count_nonzero(keep_other)
    data = np.empty(len(one.key_data) + len(other.key_data), np.uint8)
    offsets, rows = np.zeros(count + 1, np.int64), np.empty(count, np.int64)
    merge_keys(
        one.key_data,
        one.key_offsets,
        keep,
        other.key_data,
        other.key_offsets,
        keep_other,
        data,
        offsets,
        rows,
    )
    values = one.values.zeros(int(count))
    firsts, others = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
    values.put(firsts, one.values.take(rows[firsts]))
    values.put(others, other.values.take(-1 - rows[others]))
    return Rows(data[: offsets[-1]], offsets, values)
