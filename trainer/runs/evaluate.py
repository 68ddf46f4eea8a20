"""Scores every row of a log by a published model, and judges the scores by the labels. The model does not change.

In: an artefact and a log. Out of `evaluate`: an `Evaluation` with metrics of every variant and of the order within
requests, and optionally a file with each row's prediction. Out of `predict`: the scores of each row, labelled or not,
batch by batch, in the order of the log; a row that cannot be read keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv

from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, OutputError, SpecError, listed
from model_store.files import whole_file
from model_store.spec.sections import InputSection
from trainer.events.columns import POSITION
from trainer.examples.open_log import Log, open_log
from trainer.formats.cells import column_text, number_column, parse_counts, plain
from trainer.formats.rejects import Reject, RejectLog, no_usable_row
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import Bin, SliceMetrics, VariantMetrics
from trainer.learn.metrics.requests import RequestMetrics, RequestReport
from trainer.learn.metrics.tally import Slice
from trainer.learn.metrics.warnings import gain_warnings, leak_warnings
from trainer.learn.predictions_kernels import Predictions, add_rows
from trainer.learn.scorer import (
    PredictingMaker,
    ScoredExamples,
    Scorer,
    Scores,
    ScoringMaker,
    log_odds,
    scoring_spec,
)
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
    all metrics. Raises SpecError if the spec does not fit the log, InputError if that cannot be read to its end.
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
        maker = ScoringMaker(opened.spec, scorer)
        diagnosing = Diagnostics(scorer, maker, diagnostics) if diagnostics is not None else None
        slices = [Slice.of(name, maker.plan) for name in dict.fromkeys(sliced)]
        totals = _Totals(scorer, k if opened.spec.input.request is not None else None, position, slices)
        ids = predictions.ids.values() if predictions is not None else ()
        timestamp = opened.spec.input.timestamp if diagnostics is not None else None
        batches = opened.batches([name for name in (position, timestamp, *ids) if name is not None])
        with (
            opened.examples(threads, maker=maker, batches=batches) as stream,
            output.progress("scoring") as bar,
        ):
            for examples in stream:
                assert isinstance(examples, ScoredExamples)
                rejects.add_all(examples.rejects)
                final = totals.add(examples)
                if diagnosing is not None:
                    diagnosing.add(examples, final)
                if predictions is not None:
                    predictions.add(examples)
                logloss = totals.metrics.logloss()
                known = {"log-loss": logloss} if logloss is not None else {}
                bar.update(totals.metrics.rows, total=None, **known)
    if rejects.count and not totals.metrics.rows:  # a log without rows is reported as such
        raise InputError(no_usable_row("judged", rejects.count, rejects.reasons))
    found = totals.evaluation(rejects.count, without_shown=may_be_absent and not totals.positions)
    if diagnosing is not None:
        report = diagnosing.report(output)
        own = {  # one AUC of all rows, that of the finer histogram
            name: each.model_copy(update={"auc": found.variants[name].auc})
            for name, each in report.total.variants.items()
        }
        found = replace(found, report=replace(report, total=replace(report.total, variants=own)))
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
        names = list(_SCHEMA)
        if given.views is not None:
            names.insert(3, pa.field("views", pa.int64()))
        self._schema = pa.schema([*names[:2], *(pa.field(role, pa.utf8()) for role in self.ids), *names[2:]])
        self._path, self._variant, self._given = path, variant, given
        self._open = ExitStack()
        with self._writing():
            file = self._open.enter_context(whole_file(path))
            self._writer = self._open.enter_context(csv.CSVWriter(file, self._schema))

    def add(self, examples: ScoredExamples) -> None:
        """Write a batch's rows. Raises OutputError."""
        scores, first, columns = examples.scores, examples.first, examples.batch.columns
        rows = examples.rows[first]
        numbers = (each[first, self._variant] for each in (scores.score, scores.ctr, scores.uncertainty))
        outcomes = [examples.hashed.labels]
        if self._given.views is not None:
            outcomes = [
                each[rows]
                for each in parse_counts(columns[self._given.label], columns[self._given.views])[:2]
            ]
        written = [
            pa.array([examples.batch.file] * rows.size, pa.utf8()),
            pa.array(examples.batch.lines[rows].astype(np.int64)),
            *(_texts(columns.get(column), rows) for column in self.ids.values()),
            *(pa.array(each.astype(np.int64)) for each in outcomes),
            *(pa.array(each, from_pandas=True) for each in numbers),
        ]
        with self._writing():
            self._writer.write_batch(pa.RecordBatch.from_arrays(written, schema=self._schema))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing():
            self._open.__exit__(kind, error, trace)


def _texts(column: pa.Array | None, rows: Array) -> pa.Array:
    """The ids of rows; bytes that are not UTF-8 are escaped."""
    if column is None:
        return pa.nulls(rows.size, pa.utf8())
    texts = column_text(column).take(pa.array(rows))
    try:
        return texts.cast(pa.utf8())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "backslashreplace") for each in texts.to_pylist()], pa.utf8())


class _Totals:
    """The metrics of the rows scored so far. positions: how many rows have one."""

    def __init__(self, scorer: Scorer, k: int | None, position: str | None, slices: Sequence[Slice]) -> None:
        """k: NDCG's, None where rows have no requests; position: the column of the order shown."""
        self.metrics = ProgressiveMetrics(scorer.variants, slices=slices)
        self._scorer = scorer
        self._raw = ProgressiveMetrics(scorer.variants) if scorer.artefact.calibration is not None else None
        self._uncertainty = np.zeros(len(scorer.variants))
        self._position, self.positions, self._doubled = position, 0, 0
        orders = [*scorer.variants, SHOWN] if position is not None else scorer.variants
        self._requests = RequestMetrics(orders, k) if k is not None else None

    def add(self, examples: ScoredExamples) -> Predictions:
        """Add a batch; returns its calibrated predictions."""
        scores, rows, requests = examples.scores, examples.hashed, examples.requests
        variants = len(self._scorer.variants)
        raw = Predictions.of(scores.latent, scores.predicted, rows, requests, variants)
        final = raw
        if self._raw is not None:
            final = Predictions.of_scores(log_odds(scores.ctr), rows, requests, variants)
            self._raw.update(raw, examples)
        self.metrics.update(final, examples)
        add_rows(scores.uncertainty, self._uncertainty)
        self._doubled += examples.counts.doubled
        if self._requests is not None:
            first, orders = examples.first, scores.latent
            if self._position is not None:
                column = plain(examples.batch.columns[self._position])
                positions = number_column(column)[0][examples.rows]
                absent = np.isnan(positions)
                self.positions += int(np.count_nonzero(~absent))
                orders = np.column_stack([orders, -np.where(absent, np.inf, positions)])
            of_rows = requests[first], orders[first], rows.labels[first]
            self._requests.update(*of_rows, examples.stop.number)
        return final

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


# --- Scores alone ---


@dataclass(frozen=True)
class BatchScores:
    """The scores of a batch of rows: float64[rows, variants] each, NaN for a row in `rejects`.

    first_row: the number of rows before the batch. Of events only those count that show items: a bad one has no row.
    """

    first_row: int
    rows: int
    scores: Scores
    rejects: tuple[Reject, ...]


def predict(
    artefact: Artefact,
    log: Log,
    *,
    threads: int | None = None,
    output: Output = SILENT,
) -> Iterator[BatchScores]:
    """Score the rows of a log, which needs no labels. A row with a bad value has no scores, and is a reject.

    Raises SpecError if the log lacks a column of a field, InputError if it cannot be read to its end.
    """
    scorer = Scorer(artefact)
    unlabelled, spec = replace(log, unlabelled=True), scoring_spec(artefact.spec)
    with compiling_scorer(output), open_log(unlabelled, spec) as opened:
        maker = _UnlabelledMaker(opened.spec, scorer)
        first = 0
        with opened.examples(threads, maker=maker) as stream, output.progress("scoring") as bar:
            for examples in stream:
                assert isinstance(examples, ScoredExamples)
                batch, places = examples.batch, np.asarray(examples.rows, np.int64)
                size = batch.rows
                if (
                    batch.rejects and not opened.is_of_events
                ):  # unreadable rows count, too; each has its own line
                    lines = np.union1d(batch.lines, [reject.line for reject in batch.rejects])
                    places, size = np.searchsorted(lines, batch.lines[places]), lines.size
                yield BatchScores(first, size, of_all_rows(examples.scores, places, size), examples.rejects)
                first += size
                bar.update(first, total=opened.expected_rows(first))


class _UnlabelledMaker(ScoringMaker, PredictingMaker):
    """Makes and scores an example of each row, whatever its label."""


def of_all_rows(scores: Scores, at: Any, rows: int) -> Scores:
    """Scores of the rows `at` of a batch as those of all its rows, NaN for the others."""
    if at.size == rows:
        return scores
    whole = {}
    for each in fields(Scores):
        known = getattr(scores, each.name)
        whole[each.name] = np.full((rows, known.shape[1]), np.nan)
        whole[each.name][at] = known
    return Scores(**whole)
