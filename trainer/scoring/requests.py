"""Ranking metrics of whole requests: mean reciprocal rank and NDCG@k, in bounded memory.

A request is a run of rows with the same id in one file; only the open one is kept between batches. Judged are requests
with a clicked and an unclicked row: in others every order is as good, and they are counted beside. Equal scores count
as all their orders would on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.requests.ids import Runs
from trainer.requests.whole import MOST_ROWS
from trainer.scoring import kernels

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RankingMetrics:
    """How well one way to order candidates put the clicked ones first: means over the judged requests."""

    mrr: float | None
    ndcg: float | None


@dataclass(frozen=True)
class RequestReport:
    """The metrics of every order by name, and what they rest on. `k` is NDCG's.

    too_long: requests of more than MOST_ROWS rows, which are not looked at; clicked: others with a click; judged: those
    of them that also have a row without one. single: requests of one row. resumed: requests that went on after rows
    of another, and count as several (see Runs).
    """

    requests: int
    clicked: int
    judged: int
    single: int
    too_long: int
    resumed: int
    k: int
    orders: dict[str, RankingMetrics]


class RequestMetrics:
    """Judges the orders that scores give to the candidates of each request."""

    def __init__(self, orders: Sequence[str], k: int) -> None:
        self.orders, self.k = tuple(orders), k
        self._discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
        self._open: tuple[Array, Array, Array] | None = None
        self._file = 0
        self._runs = Runs()
        self._requests = self._clicked = self._judged = self._single = self._too_long = 0
        self._sums = np.zeros((len(self.orders), 2))

    def update(self, requests: Array, scores: Array, labels: Array, file: int = 0) -> None:
        """Add rows of one file.

        requests: uint64[rows], a hash of the id; scores: float64[rows, orders]; labels: float64[rows]; file: its
        number, since a request ends with its file. Memory: of the open request MOST_ROWS rows are kept.
        """
        if file != self._file:
            self._end()
            self._file = file
        self._runs.add(requests, file)
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
        tail = slice(int(starts[-1]), int(starts[-1]) + MOST_ROWS + 1)  # one more tells that it is too long
        self._open = (rows[0][tail].copy(), rows[1][tail].copy(), rows[2][tail].copy())

    def report(self) -> RequestReport:
        """The metrics of all requests. Ends the open one."""
        self._end()
        orders = {
            name: RankingMetrics(*(float(total) / self._judged if self._judged else None for total in sums))
            for name, sums in zip(self.orders, self._sums, strict=True)
        }
        return RequestReport(
            requests=self._requests,
            clicked=self._clicked,
            judged=self._judged,
            single=self._single,
            too_long=self._too_long,
            resumed=self._runs.resumed,
            k=self.k,
            orders=orders,
        )

    def _end(self) -> None:
        """Judge the open request."""
        if self._open is not None:
            self._judge(np.array([0, self._open[0].size]), self._open[1], self._open[2])
            self._open = None

    def _judge(self, starts: Array, scores: Array, labels: Array) -> None:
        """Judge the requests between the starts, in the log's order."""
        out = np.empty((starts.size - 1, len(self.orders), 2))
        if not len(out):
            return
        sizes = np.diff(starts)
        clicks = np.add.reduceat(labels[: starts[-1]] > 0.5, starts[:-1], dtype=np.int64)
        judged = (clicks > 0) & (clicks < sizes) & (sizes <= MOST_ROWS)
        # To the kernel the others are requests without a click.
        labels = np.where(np.repeat(judged, sizes), labels[: starts[-1]], 0.0)
        kernels.judge(starts.astype(np.int64), np.ascontiguousarray(scores), labels, self._discounts, out)
        self._requests += len(out)
        self._clicked += int(np.count_nonzero((clicks > 0) & (sizes <= MOST_ROWS)))
        self._judged += int(np.count_nonzero(judged))
        self._single += int(np.count_nonzero(sizes == 1))
        self._too_long += int(np.count_nonzero(sizes > MOST_ROWS))
        kernels.add_rows(out.reshape(len(out), 2 * len(self.orders)), self._sums.reshape(-1))
