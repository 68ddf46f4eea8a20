"""One evaluation: a published model's predictions of every row of a log, judged. The model does not change.

The run has the parts of a training run, with scoring in the place of learning; since scoring changes nothing, the
hashing threads do it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv

from model_store.artefact.artefact import Artefact
from model_store.errors import OutputError, SpecError
from model_store.features.cells import number_column, plain
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, open_log
from trainer.examples.requests import MOST_ROWS, Runs
from trainer.learn import scorer_kernels as kernels
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.scorer import Scorer, Scores, log_odds, scoring_spec
from trainer.learn.scorer_kernels import add_rows
from trainer.logs.batch import RowBatch
from trainer.logs.rejects import RejectLog

Array = npt.NDArray[Any]
SHOWN = "shown order"


@dataclass(frozen=True, kw_only=True)
class ScoredExamples(Examples):
    """Examples with their scores. lines: int64[m], their places in the file; positions: float64[m], or empty."""

    scores: Scores
    file: str
    lines: Array
    positions: Array


class ScoringMaker(ExampleMaker):
    """An example maker that also scores what it makes. Stateless, so that any thread may do it."""

    def __init__(self, scorer: Scorer, spec: ModelSpec, position: str | None) -> None:
        super().__init__(spec)
        self._scorer = scorer
        self._position = position

    def make(self, batch: RowBatch) -> ScoredExamples:
        """Hash and score a batch."""
        examples = super().make(batch)
        positions = np.empty(0)
        if self._position is not None:
            positions = number_column(plain(batch.columns[self._position]))[0][examples.rows]
        scores = self._scorer.score(self, examples)
        return ScoredExamples(
            **vars(examples),
            scores=scores,
            file=batch.file,
            lines=batch.lines[examples.rows],
            positions=positions,
        )


@dataclass(frozen=True)
class Evaluation:
    """What a model's predictions were worth on a log.

    variants: of the calibrated click rates; predicted: of the predictions before calibration, None where the model has
    no curves; uncertainty: its mean by variant, empty where the model's learning rates are not known; requests: None
    where rows carry no request.
    """

    rows: int
    rejected: int
    weight: float
    clicks: float
    variants: dict[str, VariantMetrics]
    predicted: dict[str, VariantMetrics] | None
    uncertainty: dict[str, float]
    requests: RequestReport | None


@dataclass(frozen=True)
class Judging:
    """What to judge beside every row's click: NDCG's k, the column of the shown position, the rows to write out."""

    k: int = 10
    position: str | None = None
    predictions: PredictionFile | None = None


def evaluate(
    artefact: Artefact,
    log: Log,
    judging: Judging,
    *,
    without: Sequence[str] = (),
    rejects: RejectLog,
    threads: int | None = None,
    on_progress: Callable[[int, float | None], None] = lambda rows, logloss: None,
) -> Evaluation:
    """Score every row of a log and judge the scores. A bad row goes to `rejects`.

    without: fields and crosses to score without; their columns may be missing. Raises SpecError where the model's spec
    does not fit the log, InputError where the log cannot be read to its end.
    """
    scorer = Scorer(artefact)
    with open_log(log, scoring_spec(artefact.spec, tuple(without))) as opened:
        maker = ScoringMaker(scorer, opened.spec, judging.position)
        judge = _Judge(scorer, maker, judging)
        more = [judging.position] if judging.position is not None else []
        for name in more:
            if name not in opened.columns:
                raise SpecError(f"no column {name!r} in the log; it has: {', '.join(opened.columns)}")
        with opened.examples(threads, maker=maker, batches=opened.batches(more)) as stream:
            for examples in stream:
                assert isinstance(examples, ScoredExamples)
                rejects.add_all(examples.rejects)
                judge.add(examples)
                on_progress(judge.metrics.rows, judge.metrics.logloss())
    return judge.evaluation(rejects.count)


class _Judge:
    """The running judgement of an evaluation."""

    def __init__(self, scorer: Scorer, maker: ExampleMaker, judging: Judging) -> None:
        self.metrics = ProgressiveMetrics(scorer.variants)
        self._scorer, self._judging = scorer, judging
        self._raw = ProgressiveMetrics(scorer.variants) if scorer.artefact.calibration is not None else None
        self._uncertainty = np.zeros(len(scorer.variants))
        orders = [*scorer.variants, SHOWN] if judging.position is not None else scorer.variants
        self._requests = RequestMetrics(orders, judging.k) if maker.spec.input.request is not None else None

    def add(self, examples: ScoredExamples) -> None:
        scores, rows, requests = examples.scores, examples.hashed, examples.requests
        variants = len(self._scorer.variants)
        raw = Predictions.of(scores.score, scores.predicted, rows, requests, variants)
        if self._raw is None:
            self.metrics.update(raw, examples)
        else:
            calibrated = Predictions.of_scores(log_odds(scores.ctr), rows, requests, variants)
            self.metrics.update(calibrated, examples)
            self._raw.update(raw, examples)
        add_rows(scores.uncertainty, self._uncertainty)
        if self._requests is not None:
            self._requests.update(
                examples.requests, self._orders(examples), examples.hashed.labels, examples.stop.number
            )
        if self._judging.predictions is not None:
            self._judging.predictions.add(examples)

    def evaluation(self, rejected: int) -> Evaluation:
        rows = self.metrics.rows
        known = self._scorer.knows_rates and rows > 0
        total = self.metrics.total()
        return Evaluation(
            rows=rows,
            rejected=rejected,
            weight=total.weight,
            clicks=total.clicks,
            variants=total.variants,
            predicted=self._raw.summary() if self._raw is not None else None,
            uncertainty=dict(zip(self._scorer.variants, self._uncertainty / rows, strict=True))
            if known
            else {},
            requests=self._requests.report() if self._requests is not None else None,
        )

    def _orders(self, examples: ScoredExamples) -> Array:
        if not examples.positions.size:
            return examples.scores.score
        shown = -np.where(np.isnan(examples.positions), np.inf, examples.positions)
        return np.column_stack([examples.scores.score, shown])


# --- Ranking metrics of whole requests: mean reciprocal rank and NDCG@k, in bounded memory ---
#
# A request is a run of rows with the same id in one file; only the open one is kept between batches. Judged
# are requests with a clicked and an unclicked row: in others every order is as good, and they are counted
# beside. Equal scores count as all their orders would on average.


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


# --- The file of predictions that `ftrie evaluate --predictions` writes: a line a row, in the log's order ---


SCHEMA = pa.schema(
    [
        pa.field("file", pa.utf8()),
        pa.field("line", pa.int64()),
        pa.field("label", pa.int64()),
        pa.field("score", pa.float64()),
        pa.field("ctr", pa.float64()),
        pa.field("uncertainty", pa.float64()),
    ]
)


class PredictionFile:
    """CSV of one variant's predictions. The name appears when all of it is written; an error leaves what was there."""

    def __init__(self, path: Path, variant: int) -> None:
        """Raises OutputError."""
        self._path, self._variant = path, variant
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._writer = csv.CSVWriter(self._beside, SCHEMA)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def add(self, examples: ScoredExamples) -> None:
        """Write a batch's rows. Raises OutputError."""
        scores, rows = examples.scores, len(examples.lines)
        numbers = (each[:, self._variant] for each in (scores.score, scores.ctr, scores.uncertainty))
        columns = [
            pa.array([examples.file] * rows, pa.utf8()),
            pa.array(examples.lines.astype(np.int64)),
            pa.array(examples.hashed.labels.astype(np.int64)),
            *(pa.array(each, from_pandas=True) for each in numbers),
        ]
        try:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
            if kind is None:
                self._beside.replace(self._path)
        except OSError as failed:
            raise OutputError(f"cannot write {self._path}: {failed.strerror or failed}") from failed
        finally:
            self._beside.unlink(missing_ok=True)
