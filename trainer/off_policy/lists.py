"""Lists: the order of a request's rows, and the weights of a policy along it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.formats.cells import number_column
from trainer.off_policy.logged import LoggedRows
from trainer.off_policy.policies import ListWeights, PolicyWeights
from trainer.off_policy.rewards import CrossFitted

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ListOrder:
    """The rows of requests from the top down: by position, or without one in the order of the log.

    rank: int64[rows], from 0; above, following: the row above and below each, -1 for none.
    """

    rank: Array
    above: Array
    following: Array

    @classmethod
    def of(cls, rows: LoggedRows) -> ListOrder:
        """The order of the rows of each request."""
        position = np.arange(len(rows), dtype=float)
        if rows.position is not None:
            numbers, _ = number_column(rows.position)
            position = position if np.isnan(numbers).any() else numbers
        order = np.lexsort((position, rows.request))
        first = np.searchsorted(rows.request, rows.request)  # requests are ascending
        rank, above, following = np.empty(len(rows), np.int64), np.full(len(rows), -1), np.full(len(rows), -1)
        rank[order] = np.arange(len(rows)) - first
        goes_on = rank[order[1:]] > 0
        above[order[1:][goes_on]] = order[:-1][goes_on]
        following[order[:-1][goes_on]] = order[1:][goes_on]
        return cls(rank, above, following)

    def weights(self, policy: PolicyWeights, alone: Array | None, fitted: CrossFitted | None) -> ListWeights:
        """A policy's weights on the lists. alone: the weights of items at their positions; None: the rows' own."""
        cascade, before = policy.weight.copy(), np.ones_like(policy.weight)
        for rank in range(1, int(self.rank.max()) + 1):
            mine = np.flatnonzero(self.rank == rank)
            before[mine] = cascade[self.above[mine]]
            cascade[mine] *= before[mine]
        first = (self.rank == 0).astype(float)
        found = ListWeights(first, policy.weight if alone is None else alone, cascade, before)
        if fitted is None or policy.chances is None:
            return found
        rest, direct = fitted.of_lists(self.rank, self.following, policy.chances)
        return replace(found, fitted=rest, direct=direct)
