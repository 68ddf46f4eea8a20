"""Ranking metrics of whole requests: mean reciprocal rank and NDCG@k, in bounded memory.

A request is a run of rows with the same id; only the open one is kept between batches. Requests without a click have
no best order and are counted beside. Equal scores count as all their orders would on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.scoring import kernels

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RankingMetrics:
    """How well one way to order candidates put the clicked ones first: means over the requests with a click."""

    mrr: float | None
    ndcg: float | None


@dataclass(frozen=True)
class RequestReport:
    """The metrics of every order by name, and what they rest on. `k` is NDCG's."""

    requests: int
    clicked: int
    k: int
    orders: dict[str, RankingMetrics]


class RequestMetrics:
    """Judges the orders that scores give to the candidates of each request."""

    def __init__(self, orders: Sequence[str], k: int) -> None:
        self.orders, self.k = tuple(orders), k
        self._discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
        self._open: tuple[Array, Array, Array] | None = None
        self._requests = self._clicked = 0
        self._sums = np.zeros((len(self.orders), 2))

    def update(self, requests: Array, scores: Array, labels: Array) -> None:
        """Add rows: requests uint64[rows] (a hash of the id), scores float64[rows, orders], labels float64[rows]."""
        rows = (requests, scores, labels)
        if self._open is not None:
            rows = (
                np.concatenate([self._open[0], requests]),
                np.concatenate([self._open[1], scores]),
                np.concatenate([self._open[2], labels]),
            )
        if not rows[0].size:
            return
        starts = np.flatnonzero(np.concatenate([[True], rows[0][1:] != rows[0][:-1]]))
        self._judge(starts, rows[1], rows[2])
        self._open = (rows[0][starts[-1] :], rows[1][starts[-1] :], rows[2][starts[-1] :])

    def report(self) -> RequestReport:
        """The metrics of all requests. Ends the open one."""
        if self._open is not None:
            self._judge(np.array([0, self._open[0].size]), self._open[1], self._open[2])
            self._open = None
        orders = {
            name: RankingMetrics(*(float(total) / self._clicked if self._clicked else None for total in sums))
            for name, sums in zip(self.orders, self._sums, strict=True)
        }
        return RequestReport(self._requests, self._clicked, self.k, orders)

    def _judge(self, starts: Array, scores: Array, labels: Array) -> None:
        """Judge the requests between the starts, in the log's order."""
        out = np.empty((starts.size - 1, len(self.orders), 2))
        kernels.judge(starts.astype(np.int64), np.ascontiguousarray(scores), labels, self._discounts, out)
        self._requests += len(out)
        self._clicked += int((~np.isnan(out[:, 0, 0])).sum())
        kernels.add_rows(out.reshape(len(out), 2 * len(self.orders)), self._sums.reshape(-1))
