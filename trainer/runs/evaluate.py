"""Evaluates a published model on a log: scores every row, and judges the scores by the labels.

In: an artefact and a log. Out: an `Evaluation` with metrics of every variant and of the order within requests, and
optionally a file with each row's prediction. The model does not change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv

from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, OutputError, SpecError, listed
from model_store.features.cells import column_text, number_column, parse_counts, plain
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from trainer.events.columns import POSITION
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, open_log
from trainer.formats.batch import RowBatch
from trainer.formats.rejects import RejectLog, no_usable_row
from trainer.formats.times import parse_times, time_format
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import Bin, SliceMetrics, VariantMetrics, gain_warnings, leak_warnings
from trainer.learn.metrics.requests import RequestMetrics, RequestReport
from trainer.learn.metrics.slices import Slice
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.scorer import Scorer, Scores, log_odds, scoring_spec
from trainer.learn.scorer_kernels import add_rows
from trainer.output import SILENT, Output
from trainer.runs.diagnostics import Diagnostics, DiagnosticsOptions, ModelReport
from trainer.runs.warmup import compiling_scorer

Array = npt.NDArray[Any]
ROLES = ("request", "item", "cookie", "timestamp")
"""The members of [input] that identify a row, in the order of a prediction file's columns."""
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
    rows have no request; report: None unless diagnostics were asked for; slices: the metrics of the values of each
    slice; bins: of each variant, rows with similar predictions, the lowest first.
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
    slices: dict[str, list[SliceMetrics]] = field(default_factory=dict)
    bins: dict[str, list[Bin]] = field(default_factory=dict)


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
    sliced: Sequence[str] = (),
    threads: int | None = None,
    output: Output = SILENT,
) -> Evaluation:
    """Score every row of a log and judge the scores. A bad row goes to `rejects`.

    k: NDCG's; position: the column with a row's position in its request, to judge the order shown, which events have
    (`items[].position`); predictions: where to write each row's scores; diagnostics: what to report besides; without:
    fields and crosses to score without, whose columns may be missing; sliced: slices, as in training, whose values get
    all metrics. Raises SpecError if the model's spec does not fit
    the log, InputError if the log cannot be read to its end.
    """
    scorer = Scorer(artefact)
    with compiling_scorer(output), open_log(log, scoring_spec(artefact.spec, tuple(without))) as opened:
        may_be_absent = position is None and opened.is_of_events
        if may_be_absent:
            position = POSITION
        if position is not None and opened.spec.input.request is None:
            raise SpecError(
                "--position: the model's spec has no input.request, so there are no requests to order"
            )
        if position is not None and position not in opened.columns:
            raise SpecError(f"no column {position!r} in the log; it has: {listed(opened.columns, position)}")
        ids = tuple(predictions.ids.values()) if predictions is not None else ()
        maker = _ScoringMaker(scorer, opened.spec, position, diagnostics is not None, ids)
        diagnosing = Diagnostics(scorer, maker, diagnostics) if diagnostics is not None else None
        slices = [Slice.of(name, maker.plan) for name in dict.fromkeys(sliced)]
        totals = _Totals(scorer, maker, k, position is not None, diagnosing, slices)
        timestamp = opened.spec.input.timestamp if diagnostics is not None else None
        batches = opened.batches([name for name in (position, timestamp, *ids) if name is not None])
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
    if rejects.count and not totals.metrics.rows:  # a log without rows is reported as such
        raise InputError(no_usable_row("judged", rejects.count, rejects.reasons))
    report = diagnosing.report(output) if diagnosing is not None else None
    without_shown = may_be_absent and not totals.positions
    found = replace(totals.evaluation(rejects.count, without_shown=without_shown), report=report)
    if found.report is not None:  # one AUC of all rows, that of the finer histogram
        total = found.report.total
        own = {name: replace(each, auc=found.variants[name].auc) for name, each in total.variants.items()}
        found = replace(found, report=replace(found.report, total=replace(total, variants=own)))
    judged = found.variants, found.clicks, found.weight - found.clicks
    for warning in (*leak_warnings(*judged), *gain_warnings(*judged)):
        output.warn(warning)
    return found


class PredictionFile:
    """A CSV file of one variant's predictions, a line per row. It replaces `path` once it is complete.

    A line has the file and line of its row, and the row's ids: `request`, `item`, `cookie` and `timestamp`, as far as
    the spec names their columns; empty where the log lacks the column. The label of a row with many views (input.views)
    is its clicks; the column views has its views.
    """

    def __init__(self, path: Path, variant: int, given: InputSection) -> None:
        """`given`: the spec's. Raises OutputError."""
        self.ids = {role: column for role in ROLES if (column := getattr(given, role)) is not None}
        fields = list(_SCHEMA)
        if given.views is not None:
            fields.insert(3, pa.field("views", pa.int64()))
        self._schema = pa.schema(
            [*fields[:2], *(pa.field(role, pa.utf8()) for role in self.ids), *fields[2:]]
        )
        self._path, self._variant = path, variant
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._writer = csv.CSVWriter(self._temporary, self._schema)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def add(self, examples: ScoredExamples) -> None:
        """Write a batch's rows. Raises OutputError."""
        scores, first = examples.scores, examples.first
        lines = examples.lines[first]
        numbers = (each[first, self._variant] for each in (scores.score, scores.ctr, scores.uncertainty))
        outcomes = examples.views[:, first] if examples.views.size else [examples.hashed.labels]
        columns = [
            pa.array([examples.file] * lines.size, pa.utf8()),
            pa.array(lines.astype(np.int64)),
            *(self._texts(examples, column, first) for column in self.ids.values()),
            *(pa.array(each.astype(np.int64)) for each in outcomes),
            *(pa.array(each, from_pandas=True) for each in numbers),
        ]
        try:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror or error}") from error

    def _texts(self, examples: ScoredExamples, column: str, first: Any) -> pa.Array:
        """The ids of the examples' rows; bytes that are not UTF-8 are escaped."""
        rows = examples.rows[first]
        if column not in examples.ids:
            return pa.nulls(rows.size, pa.utf8())
        found = column_text(examples.ids[column]).take(pa.array(rows))
        try:
            return found.cast(pa.utf8())
        except pa.ArrowInvalid:
            return pa.array(
                [each.decode("utf-8", "backslashreplace") for each in found.to_pylist()], pa.utf8()
            )

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

    views: float64[2, m], the clicks and views of each example's row, or empty; batch: the rows themselves, kept only
    for diagnostics, which also need `times`; ids: columns of the batch that a PredictionFile writes.
    """

    scores: Scores
    file: str
    lines: Array
    positions: Array
    views: Array
    batch: RowBatch | None
    ids: dict[str, pa.Array]

    @property
    def first(self) -> Any:
        """The first example of each row, the click where it has one: bool[m], or a slice of all."""
        if not self.counts.doubled:
            return slice(None)
        return np.concatenate([[True], self.rows[1:] != self.rows[:-1]])


class _ScoringMaker(ExampleMaker):
    """Makes and scores examples, in the hashing threads. Stateless."""

    def __init__(
        self,
        scorer: Scorer,
        spec: ModelSpec,
        position: str | None,
        keeps_rows: bool,
        ids: Sequence[str] = (),
    ) -> None:
        super().__init__(spec)
        self._ids = tuple(ids)
        self._scorer = scorer
        self._position = position
        self._keeps_rows = keeps_rows

    def make(self, batch: RowBatch) -> ScoredExamples:
        """Hash and score a batch."""
        examples = super().make(batch)
        positions = np.empty(0)
        if self._position is not None:
            positions = number_column(plain(batch.columns[self._position]))[0][examples.rows]
        given, both = self.spec.input, np.empty(0)
        if given.views is not None:
            clicks, views, *_ = parse_counts(batch.columns[given.label], batch.columns[given.views])
            both = np.stack([clicks, views])[:, examples.rows]
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
            views=both,
            ids={name: batch.columns[name] for name in self._ids if name in batch.columns},
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
        slices: Sequence[Slice],
    ) -> None:
        self._diagnostics = diagnostics
        self.metrics = ProgressiveMetrics(scorer.variants, slices=slices)
        self._scorer = scorer
        self._raw = ProgressiveMetrics(scorer.variants) if scorer.artefact.calibration is not None else None
        self._uncertainty = np.zeros(len(scorer.variants))
        self._judges_shown = judges_shown
        self.positions = 0
        orders = [*scorer.variants, SHOWN] if judges_shown else scorer.variants
        self._doubled = 0
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
        self._doubled += examples.counts.doubled
        if self._requests is not None:
            first = examples.first
            self._requests.update(
                requests[first], self._orders(examples)[first], rows.labels[first], examples.stop.number
            )

    def evaluation(self, rejected: int, *, without_shown: bool = False) -> Evaluation:
        """The metrics of all rows; `without_shown` leaves out the order shown, which no row has."""
        rows = self.metrics.rows
        known = self._scorer.knows_rates and rows > 0
        requests = self._requests.report() if self._requests is not None else None
        if requests is not None and without_shown:
            orders = {name: each for name, each in requests.orders.items() if name != SHOWN}
            requests = replace(requests, orders=orders)
        total = self.metrics.total()
        uncertainty = dict(zip(self._scorer.variants, self._uncertainty / rows, strict=True)) if known else {}
        return Evaluation(
            rows=rows - self._doubled,
            rejected=rejected,
            weight=total.weight,
            clicks=total.clicks,
            variants=total.variants,
            predicted=self._raw.summary() if self._raw is not None else None,
            uncertainty=uncertainty,
            requests=requests,
            slices=self.metrics.slices(),
            bins=self.metrics.reliability(),
        )

    def _orders(self, examples: ScoredExamples) -> Array:
        if not self._judges_shown:
            return examples.scores.latent
        self.positions += int(np.count_nonzero(~np.isnan(examples.positions)))
        shown = -np.where(np.isnan(examples.positions), np.inf, examples.positions)
        return np.column_stack([examples.scores.latent, shown])
