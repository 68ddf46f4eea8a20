"""Bounded memory for what has too many values to keep: a sample of the distinct values, with sums for each.

Distinct sampling (Gibbons, VLDB 2001; Flajolet's adaptive sampling, 1990): a value is kept if the lowest `level` bits
of its hash are 0, and `level` rises by one whenever more than `capacity` values are kept. All occurrences of a kept
value are counted, so sums of a kept value are exact; sums over all values are those of the kept ones times
2 ** level. Until `capacity` distinct values have come, everything is exact. Above, a count of distinct values has a
relative standard error of at most 1.2 / sqrt(capacity): 1.3 % for 8,192, 0.12 % for 1,048,576.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_EXAMPLES = 3
ABSENT = np.uint64(0)
"""The hash of no value; it is always kept."""


def mixed(numbers: npt.NDArray[Any]) -> UInt64s:
    """Hashes of 64-bit values, never ABSENT: the finalizer of splitmix64 (Steele et al., OOPSLA 2014)."""
    z = numbers.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: UInt64s = z ^ (z >> np.uint64(31))
    return np.where(found == ABSENT, np.uint64(1), found)


class DistinctSample:
    """A sample of the distinct values of a stream, by their hashes, with sums for each and where each was first.

    keys: uint64[n], ascending; sums: float64[n, width]; first: int64[n], the mark of each value's first row.
    """

    def __init__(self, capacity: int, width: int) -> None:
        self.keys: UInt64s = np.empty(0, np.uint64)
        self.sums: Float64s = np.empty((0, width))
        self.first: Int64s = np.empty(0, np.int64)
        self.level = 0
        self._capacity = capacity

    @property
    def scale(self) -> int:
        """How many distinct values of the stream one kept value stands for."""
        return 1 << self.level

    @property
    def is_exact(self) -> bool:
        """True if all values are kept."""
        return self.level == 0

    @property
    def distinct(self) -> int:
        """The number of distinct values, without ABSENT; an estimate unless `is_exact`."""
        return int(np.count_nonzero(self.keys != ABSENT)) * self.scale

    def of(self, key: int) -> Float64s | None:
        """The sums of one value; None if it is not kept."""
        at = int(np.searchsorted(self.keys, np.uint64(key)))
        return self.sums[at] if at < self.keys.size and int(self.keys[at]) == key else None

    def add(self, keys: UInt64s, sums: Float64s, marks: Int64s) -> tuple[Int64s, Int64s]:
        """Add to the sums of distinct `keys`: float64[n, width]; marks: int64[n], where each is first in this part.

        Returns the indices into `keys` of those that were kept before, and the marks of their first rows.
        """
        kept = np.flatnonzero((keys & np.uint64(self.scale - 1)) == 0)
        keys, sums, marks = keys[kept], sums[kept], marks[kept]
        at = np.searchsorted(self.keys, keys)
        known = np.zeros(keys.size, np.bool_)
        if self.keys.size:
            inside = at < self.keys.size
            known[inside] = self.keys[at[inside]] == keys[inside]
            self.sums[at[known]] += sums[known]
        before = self.first[at[known]]
        if not known.all():
            self._insert(keys[~known], sums[~known], marks[~known])
        return kept[known], before

    def _insert(self, keys: UInt64s, sums: Float64s, marks: Int64s) -> None:
        both = np.concatenate([self.keys, keys])
        order = np.argsort(both, kind="stable")
        self._take(
            both[order], np.concatenate([self.sums, sums])[order], np.concatenate([self.first, marks])[order]
        )
        while self.keys.size > self._capacity:
            self.level += 1
            kept = (self.keys & np.uint64(self.scale - 1)) == 0
            self._take(self.keys[kept], self.sums[kept], self.first[kept])

    def _take(self, keys: UInt64s, sums: Float64s, first: Int64s) -> None:
        self.keys, self.sums, self.first = keys, sums, first


class Repeats:
    """Counts keys that came before; remembers the first few, each with the earlier row."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.sample = DistinctSample(capacity, 1)
        self.examples: list[tuple[int, int]] = []
        self.rows = 0

    def add(self, keys: UInt64s, marks: Int64s) -> None:
        """Take the keys of the next rows, and where they are."""
        self.rows += keys.size
        distinct, index, counts = np.unique(keys, return_index=True, return_counts=True)
        known, before = self.sample.add(distinct, counts[:, None].astype(np.float64), marks[index])
        if len(self.examples) < _EXAMPLES and (known.size or distinct.size < keys.size):
            order = np.argsort(keys, kind="stable")
            same = keys[order][1:] == keys[order][:-1]
            later = np.concatenate([marks[index[known]], marks[order[1:][same]]])
            earlier = np.concatenate([before, marks[order[:-1][same]]])
            first = np.argsort(later, kind="stable")[:_EXAMPLES]
            self.examples += zip(later[first].tolist(), earlier[first].tolist(), strict=True)
            del self.examples[_EXAMPLES:]

    @property
    def repeated(self) -> int:
        """Rows whose key came before; an estimate if the sample is not exact."""
        sums = self.sample.sums[:, 0]
        return int((sums - 1.0).sum()) * self.sample.scale

    @property
    def evenly(self) -> float:
        """The share of the keys that came as often as most did, more than once: near 1 for copies of a whole file."""
        times, keys = np.unique(self.sample.sums[:, 0], return_counts=True)
        return float(keys[times > 1.0].max(initial=0)) / max(int(keys.sum()), 1)
