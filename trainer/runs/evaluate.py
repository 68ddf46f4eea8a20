"""Evaluates a published model on a log: scores every row, and judges the scores by the labels.

In: an artefact and a log. Out: an `Evaluation` with metrics of every variant and of the order within requests, and
optionally a file with each row's prediction. The model does not change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.scorer import Scorer, Scores, log_odds, scoring_spec
from trainer.learn.scorer_kernels import add_rows, judge
from trainer.logs.batch import RowBatch
from trainer.logs.rejects import RejectLog
from trainer.logs.times import parse_times, time_format
from trainer.output import SILENT, Output
from trainer.runs.diagnostics import Diagnostics, DiagnosticsOptions, ModelReport

Array = npt.NDArray[Any]
SHOWN = "shown order"
"""The name of the order in which rows were shown, beside those of the variants."""
_SCHEMA = pa.schema(
    [
        pa.field("file", pa.utf8()),
        pa.field("line", pa.int64()),
        pa.field("label", pa.int64()),
        pa.field("score", pa.float64()),
        pa.field("ctr", pa.float64()),
        pa.field("uncertainty", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Evaluation:
    """How good a model's predictions are on a log.

    variants: metrics of the calibrated click rates; predicted: those before calibration, None if the model is not
    calibrated; uncertainty: the mean by variant, empty if the model's learning rates are unknown; requests: None if
    rows have no request; report: None unless diagnostics were asked for.
    """

    rows: int
    rejected: int
    weight: float
    clicks: float
    variants: dict[str, VariantMetrics]
    predicted: dict[str, VariantMetrics] | None
    uncertainty: dict[str, float]
    requests: RequestReport | None
    report: ModelReport | None = None


@dataclass(frozen=True)
class RankingMetrics:
    """How well an order puts clicked candidates first: means over the judged requests."""

    mrr: float | None
    ndcg: float | None


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


def evaluate(
    artefact: Artefact,
    log: Log,
    *,
    rejects: RejectLog,
    k: int = 10,
    position: str | None = None,
    predictions: PredictionFile | None = None,
    diagnostics: DiagnosticsOptions | None = None,
    without: Sequence[str] = (),
    threads: int | None = None,
    output: Output = SILENT,
) -> Evaluation:
    """Score every row of a log and judge the scores. A bad row goes to `rejects`.

    k: NDCG's; position: the column with a row's position in its request, to judge the order shown; predictions: where
    to write each row's scores; diagnostics: what to report besides; without: fields and crosses to score without, whose
    columns may be missing. Raises SpecError if the model's spec does not fit the log, InputError if the log cannot be
    read to its end.
    """
    scorer = Scorer(artefact)
    with open_log(log, scoring_spec(artefact.spec, tuple(without))) as opened:
        if position is not None and position not in opened.columns:
            raise SpecError(f"no column {position!r} in the log; it has: {', '.join(opened.columns)}")
        maker = _ScoringMaker(scorer, opened.spec, position, diagnostics is not None)
        diagnosing = Diagnostics(scorer, maker, diagnostics) if diagnostics is not None else None
        totals = _Totals(scorer, maker, k, position is not None, diagnosing)
        timestamp = opened.spec.input.timestamp if diagnostics is not None else None
        batches = opened.batches([name for name in (position, timestamp) if name is not None])
        with (
            opened.examples(threads, maker=maker, batches=batches) as stream,
            output.progress("scoring") as bar,
        ):
            for examples in stream:
                assert isinstance(examples, ScoredExamples)
                rejects.add_all(examples.rejects)
                totals.add(examples)
                if predictions is not None:
                    predictions.add(examples)
                logloss = totals.metrics.logloss()
                fields = {"log-loss": logloss} if logloss is not None else {}
                bar.update(totals.metrics.rows, total=None, **fields)
    report = diagnosing.report(output) if diagnosing is not None else None
    return replace(totals.evaluation(rejects.count), report=report)


class PredictionFile:
    """A CSV file of one variant's predictions, a line per row. It replaces `path` once it is complete."""

    def __init__(self, path: Path, variant: int) -> None:
        """Raises OutputError."""
        self._path, self._variant = path, variant
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._writer = csv.CSVWriter(self._temporary, _SCHEMA)
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
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
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
                self._temporary.replace(self._path)
        except OSError as failed:
            raise OutputError(f"cannot write {self._path}: {failed.strerror or failed}") from failed
        finally:
            self._temporary.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class ScoredExamples(Examples):
    """Examples with their scores. lines: int64[m], lines in the file; positions: float64[m] as shown, or empty.

    batch: the rows themselves, kept only for diagnostics, which also need `times`.
    """

    scores: Scores
    file: str
    lines: Array
    positions: Array
    batch: RowBatch | None


class _ScoringMaker(ExampleMaker):
    """Makes and scores examples, in the hashing threads. Stateless."""

    def __init__(self, scorer: Scorer, spec: ModelSpec, position: str | None, keeps_rows: bool) -> None:
        super().__init__(spec)
        self._scorer = scorer
        self._position = position
        self._keeps_rows = keeps_rows

    def make(self, batch: RowBatch) -> ScoredExamples:
        """Hash and score a batch."""
        examples = super().make(batch)
        positions = np.empty(0)
        if self._position is not None:
            positions = number_column(plain(batch.columns[self._position]))[0][examples.rows]
        scores = self._scorer.score(self, examples)
        timestamp = self.spec.input.timestamp
        if self._keeps_rows and timestamp is not None:
            times, _ = parse_times(batch.columns[timestamp], time_format(self.spec))
            examples = replace(examples, times=times[examples.rows])
        return ScoredExamples(
            **vars(examples),
            scores=scores,
            batch=batch if self._keeps_rows else None,
            file=batch.file,
            lines=batch.lines[examples.rows],
            positions=positions,
        )


class _Totals:
    """The metrics of the rows scored so far."""

    def __init__(
        self,
        scorer: Scorer,
        maker: ExampleMaker,
        k: int,
        judges_shown: bool,
        diagnostics: Diagnostics | None,
    ) -> None:
        self._diagnostics = diagnostics
        self.metrics = ProgressiveMetrics(scorer.variants)
        self._scorer = scorer
        self._raw = ProgressiveMetrics(scorer.variants) if scorer.artefact.calibration is not None else None
        self._uncertainty = np.zeros(len(scorer.variants))
        orders = [*scorer.variants, SHOWN] if judges_shown else scorer.variants
        self._requests = RequestMetrics(orders, k) if maker.spec.input.request is not None else None

    def add(self, examples: ScoredExamples) -> None:
        scores, rows, requests = examples.scores, examples.hashed, examples.requests
        variants = len(self._scorer.variants)
        raw = Predictions.of(scores.latent, scores.predicted, rows, requests, variants)
        final = raw
        if self._raw is not None:
            final = Predictions.of_scores(log_odds(scores.ctr), rows, requests, variants)
            self._raw.update(raw, examples)
        self.metrics.update(final, examples)
        if self._diagnostics is not None:
            assert examples.batch is not None
            self._diagnostics.add(examples, final, examples.batch)
        add_rows(scores.uncertainty, self._uncertainty)
        if self._requests is not None:
            self._requests.update(
                examples.requests, self._orders(examples), examples.hashed.labels, examples.stop.number
            )

    def evaluation(self, rejected: int) -> Evaluation:
        rows = self.metrics.rows
        known = self._scorer.knows_rates and rows > 0
        total = self.metrics.total()
        uncertainty = dict(zip(self._scorer.variants, self._uncertainty / rows, strict=True)) if known else {}
        return Evaluation(
            rows=rows,
            rejected=rejected,
            weight=total.weight,
            clicks=total.clicks,
            variants=total.variants,
            predicted=self._raw.summary() if self._raw is not None else None,
            uncertainty=uncertainty,
            requests=self._requests.report() if self._requests is not None else None,
        )

    def _orders(self, examples: ScoredExamples) -> Array:
        if not examples.positions.size:
            return examples.scores.latent
        shown = -np.where(np.isnan(examples.positions), np.inf, examples.positions)
        return np.column_stack([examples.scores.latent, shown])


class RequestMetrics:
    """Mean reciprocal rank and NDCG@k of the orders that scores give to the candidates of each request.

    A request is a run of rows with the same id in one file; only the open one is kept between batches. Requests with
    both a clicked and an unclicked row are judged: in others all orders are equally good. Equal scores count as the
    average over all their orders.
    """

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
        out = np.empty((starts.size - 1, len(self.orders), 2))
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
        self._single += int(np.count_nonzero(sizes == 1))
        self._too_long += int(np.count_nonzero(sizes > MOST_ROWS))
        add_rows(out.reshape(len(out), 2 * len(self.orders)), self._sums.reshape(-1))
