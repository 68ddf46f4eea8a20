"""Metrics of requests: how well the scores order the candidates that were shown together.

In: scores, labels and requests of rows, whole logs in batches. Out: a `RequestReport`, the means of every measure over
the judged requests: those with both a clicked and an unclicked row, since in the others all orders are equally good.

The orders are any, such as those of a model's variants and the one shown. Of a model that learns they are those of the
scores from before it learns from any row of the request: of rows learned between those of one list, the later scores
are lower after each click and say nothing of the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from trainer.examples.requests import MOST_ROWS, Runs
from trainer.learn.metrics.metrics_kernels import MEASURES, judge
from trainer.learn.predictions_kernels import Predictions, add_rows

Array = npt.NDArray[Any]

DEFAULT_K = 10


@dataclass(frozen=True)
class RankingMetrics:
    """How well an order puts clicked candidates first: means over the judged requests; None if there are none.

    mrr: 1 / rank of the first click; ndcg: NDCG@k; hit_1, hit_3, hit_10: the share of requests with a click in the
    first 1, 3, 10 ranks; auc: of the pairs of a clicked and an unclicked candidate, the share in the right order.
    """

    mrr: float | None
    ndcg: float | None
    hit_1: float | None
    hit_3: float | None
    hit_10: float | None
    auc: float | None


@dataclass(frozen=True)
class RequestReport:
    """Ranking metrics of every order, by name.

    requests: all; single: of one row; too_long: of more than MOST_ROWS rows, which are skipped; clicked: with a click;
    judged: with both a clicked and an unclicked row; resumed: continued after rows of another request, and counted as
    several (see `Runs`). k: NDCG's.
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
    """The measures of the orders that scores give to the candidates of each request.

    A request is a run of rows with the same id in one file; only the open one is kept between batches. Equal scores
    count as the average over all their orders.
    """

    def __init__(
        self, orders: Sequence[str], k: int = DEFAULT_K, on_judged: Callable[[Array], None] | None = None
    ) -> None:
        """on_judged: receives the measures of judged requests: float64[requests, orders, MEASURES]."""
        self.orders, self.k = tuple(orders), k
        self._on_judged = on_judged
        self._discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
        self._open: tuple[Array, Array, Array] | None = None
        self._file = 0
        self._runs = Runs()
        self._requests = self._clicked = self._judged = self._single = self._too_long = 0
        self._sums = np.zeros((len(self.orders), MEASURES))

    def update(self, requests: Array, scores: Array, labels: Array, file: int = 0) -> None:
        """Add rows of one file.

        requests: uint64[rows], hashes of the ids; scores: float64[rows, orders]; labels: float64[rows]; file: its
        number, since a request ends with its file. At most MOST_ROWS rows of the open request are kept.
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
        tail = slice(int(starts[-1]), int(starts[-1]) + MOST_ROWS + 1)  # one more shows that it is too long
        self._open = (rows[0][tail].copy(), rows[1][tail].copy(), rows[2][tail].copy())

    def update_before(self, predictions: Predictions, file: int = 0) -> None:
        """Add a batch of one file, of a model that learns: `LearningModel.learn_requests` makes its `before`.

        Rows left out at the front may cut a request: its rest is judged as a request of its own.
        """
        scores = predictions.before[:, : len(self.orders)]
        self.update(predictions.requests, scores, predictions.labels, file)

    def report(self) -> RequestReport:
        """The metrics of all requests. Ends the open request."""
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
        """Judge the requests between consecutive starts."""
        out = np.empty((starts.size - 1, len(self.orders), MEASURES))
        if not len(out):
            return
        sizes = np.diff(starts)
        clicks = np.add.reduceat(labels[: starts[-1]] > 0.5, starts[:-1], dtype=np.int64)
        judged = (clicks > 0) & (clicks < sizes) & (sizes <= MOST_ROWS)
        # The kernel skips requests without a click: the others become such.
        labels = np.where(np.repeat(judged, sizes), labels[: starts[-1]], 0.0)
        judge(starts.astype(np.int64), np.ascontiguousarray(scores), labels, self._discounts, out)
        self._requests += len(out)
        self._clicked += int(np.count_nonzero((clicks > 0) & (sizes <= MOST_ROWS)))
        self._judged += int(np.count_nonzero(judged))
        if self._on_judged is not None:
            self._on_judged(out[judged])
        self._single += int(np.count_nonzero(sizes == 1))
        self._too_long += int(np.count_nonzero(sizes > MOST_ROWS))
        add_rows(out.reshape(len(out), self._sums.size), self._sums.reshape(-1))


class RequestFigure(NamedTuple):
    """A measure of `RankingMetrics`: the name of its member, and what tables call it, with NDCG's k in {k}."""

    member: str
    label: str


BY_REQUEST = {
    "mrr": RequestFigure("mrr", "MRR"),
    "ndcg": RequestFigure("ndcg", "NDCG@{k}"),
    "hit@1": RequestFigure("hit_1", "hit@1"),
    "hit@3": RequestFigure("hit_3", "hit@3"),
    "hit@10": RequestFigure("hit_10", "hit@10"),
    "request_auc": RequestFigure("auc", "AUC"),
}
"""Every measure by the name by which a command may compare by it; `ndcg` may have a K of its own, as in `ndcg@5`."""


@dataclass(frozen=True)
class RequestMeasure:
    """A measure to compare by: its name, as in BY_REQUEST, and NDCG's k."""

    name: str
    k: int = DEFAULT_K

    @classmethod
    def parse(cls, text: str) -> RequestMeasure | None:
        """The measure of this name; None for another measure, such as logloss. Raises SpecError for a bad k."""
        name, at, k = text.partition("@")
        if text in BY_REQUEST:
            return cls(text)
        if name != "ndcg" or not at:
            return None
        if not (k.isascii() and k.isdecimal() and 1 <= int(k) <= MOST_ROWS):
            raise SpecError(f"{text}: expected ndcg@K with K from 1 to {MOST_ROWS:,}, such as ndcg@10")
        return cls(name, int(k))

    def check(self, request: str | None) -> None:
        """request: the resolved spec's `input.request`. Raises SpecError if it is None."""
        if request is None:
            raise SpecError(
                f"{self.name} is a mean over requests, and the spec names none: set input.request to the column with "
                "the id of the request that showed several rows together, or compare by logloss or auc"
            )

    @property
    def index(self) -> int:
        """Its place among MEASURES."""
        return list(BY_REQUEST).index(self.name)

    def of(self, metrics: RankingMetrics) -> float | None:
        """The measure's value."""
        value: float | None = getattr(metrics, BY_REQUEST[self.name].member)
        return value
