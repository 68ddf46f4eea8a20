"""Caps: how many returned items may share a value. Greedy: best first, an item is taken if its values have room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from server.selection.candidates import Candidates
from server.selection.kernels import count_taken, take

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cap:
    """At most so many items of one value of a field; items without a value are not bounded."""

    field: str
    at_most: int


@dataclass(frozen=True, eq=False)
class Groups:
    """Which candidates share a bounded value: candidate c is in the groups[start[c] : start[c + 1]], all int64."""

    start: Array
    groups: Array
    limits: Array

    @classmethod
    def of(cls, caps: Sequence[Cap], candidates: Candidates) -> Groups:
        """A group a value a cap. O(candidates · caps), and a sort."""
        owners, groups, limits = [np.empty(0, np.int64)], [np.empty(0, np.int64)], list[int]()
        for cap in caps:
            texts = candidates.texts(cap.field)
            values, group = np.unique(texts.code, return_inverse=True)
            owners.append(texts.owner)
            groups.append(group + len(limits))
            limits += [cap.at_most] * len(values)
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        start = np.searchsorted(owner[order], np.arange(len(candidates) + 1))
        return cls(start.astype(np.int64), np.concatenate(groups)[order], np.array(limits, np.int64))

    def take(self, order: Array, top: int) -> Array:
        """The first `top` candidates of `order` (int64) for which there is room, int64[≤ top]."""
        taken = np.empty(top, np.int64)
        found = take(order, self.start, self.groups, self.limits, np.empty_like(self.limits), top, taken)
        return taken[:found]

    def count_taken(self, orders: Array, top: int) -> Array:
        """How many rows of `orders` (int64[draws, n]) each candidate is taken from; int64, a number a candidate."""
        hits, taken = np.zeros(len(self.start) - 1, np.int64), np.empty(top, np.int64)
        scratch = np.empty_like(self.limits)
        count_taken(orders, self.start, self.groups, self.limits, scratch, top, taken, hits)
        return hits
