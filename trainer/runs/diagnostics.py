"""Diagnoses a model on the rows that `ftrie evaluate` scores: where it is wrong, on what it relies, what has drifted.

In: scored batches. Out: a `ModelReport`: reliability in all and by the values of fields, importance of fields, the rows
with the largest log-loss, and figures and distributions by period. Memory does not grow with the log: a field keeps
its first VALUES values, periods become longer when there are many, and the importance is measured on a sample.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError, listed
from model_store.features.features import FieldPlan
from model_store.spec.numbers import log_buckets
from model_store.spec.values import Value
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import RowBatch
from trainer.formats.times import MICROSECONDS, NO_TIME, parse_times, time_format
from trainer.learn.metrics.reliability import GroupReliability, ReliabilitySums
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.scorer import ScoredExamples, Scorer
from trainer.output import SILENT, Output
from trainer.runs.audit import RowAudit, RowAuditor, example_of
from trainer.runs.importance import Importance, ImportanceSample

VALUES = 256
"""Values of a field that are counted each; later ones are counted together."""
FEW_VALUES = 64
"""A field with at most so many values is sliced by unless others are named."""
HOUR = 3600 * MICROSECONDS
MOST_HOURS, MOST_PERIODS = 48, 366
FIRST_BLOCK, MOST_BLOCKS = 1_000, 20
_HALF = 0.5  # added to each count of a distribution, so that no share is 0
_OTHERS, _ABSENT = 0, VALUES + 1

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DiagnosticsOptions:
    """What to report on.

    slices: fields, or all with 2 to FEW_VALUES values; variant: None for all; worst: rows to list by variant; repeats:
    of each permutation.
    """

    slices: tuple[str, ...] = ()
    variant: str | None = None
    worst: int = 10
    repeats: int = 5


@dataclass(frozen=True)
class SliceValue:
    """The rows with one value, written as in keys; None for all values after the first VALUES."""

    value: str | None
    group: GroupReliability


@dataclass(frozen=True)
class SliceReport:
    """A field's values with enough clicked and unclicked rows, the worst calibrated first; left_out: the others."""

    field: str
    values: tuple[SliceValue, ...]
    left_out: int


@dataclass(frozen=True)
class WrongRow:
    """A row with a large log-loss: its values by field, and its keys with their contributions."""

    logloss: float
    label: int
    values: dict[str, Value]
    audit: RowAudit


@dataclass(frozen=True)
class DriftPeriod:
    """The rows of one period. begin: its first time, ISO 8601 in UTC, or its first row, from 1.

    lacking: the share of the rows' keys that the model lacks: keys never seen, or of weight 0.
    """

    begin: str | int
    group: GroupReliability
    lacking: float | None


@dataclass(frozen=True)
class FieldDrift:
    """How far a field's distribution in each period is from that in the first: the population stability index.

    by_chance: what the last period's would be in expectation if nothing had changed.
    """

    field: str
    psi: tuple[float, ...]
    by_chance: float


@dataclass(frozen=True)
class Drift:
    """by: "time" or "rows"; length: of a period in seconds or in rows; untimed: rows without a time, in no period."""

    by: str
    length: int
    periods: tuple[DriftPeriod, ...]
    fields: tuple[FieldDrift, ...]
    untimed: int


@dataclass(frozen=True)
class ModelReport:
    """What a model is like on a log; `variants` are those reported on."""

    variants: tuple[str, ...]
    total: GroupReliability
    slices: tuple[SliceReport, ...]
    importance: Importance
    worst: dict[str, tuple[WrongRow, ...]]
    drift: Drift


class Diagnostics:
    """Takes the scored batches in order, then reports. Not thread-safe."""

    def __init__(self, scorer: Scorer, maker: ExampleMaker, options: DiagnosticsOptions) -> None:
        """maker: of the resolved spec by which the log is scored. Raises SpecError for an unknown field or variant."""
        names = scorer.variants if options.variant is None else (options.variant,)
        self._scorer, self._maker, self._names = scorer, maker, names
        for name in names:
            if name not in scorer.variants:
                has = listed(scorer.variants, name)
                raise SpecError(f"--variant: no variant {name!r}; the model has: {has}")
        self._bits = [scorer.variants.index(name) for name in names]
        self._total = ReliabilitySums(1, len(names))
        self._fields = [_Field(plan, len(names)) for plan in maker.plan.fields]
        for field in self._fields:
            if field.plan.name not in options.slices and (options.slices or field.plan.spec.is_number):
                field.sums = None
            field.limit = VALUES if options.slices else FEW_VALUES
        _check_slices(options.slices, maker.plan.fields)
        self._importance = ImportanceSample(scorer, maker, self._bits, options.repeats)
        self._worst = [_WorstRows(options.worst) for _ in names]
        self._periods = _Periods(maker.spec.input.timestamp is not None, len(names), len(self._fields))
        self._rows = 0

    def add(self, examples: ScoredExamples, predictions: Predictions) -> None:
        """Add a batch. predictions: of all variants."""
        chosen, batch = self._chosen(predictions), examples.batch
        rows = np.arange(chosen.labels.size)
        self._total.add(chosen, rows, np.zeros_like(rows))
        keys = self._importance.add(examples)
        times, timestamp = None, self._maker.spec.input.timestamp
        if timestamp is not None:
            times = parse_times(batch.columns[timestamp], time_format(self._maker.spec))[0][examples.rows]
        periods = self._periods.add(chosen, keys, times, self._rows)
        for number, field in enumerate(self._fields):
            counted, values = field.add(examples, chosen)
            self._periods.count(number, periods[counted], values)
        for column, worst in enumerate(self._worst):
            worst.add(chosen.losses[:, column], examples, batch, self._maker)
        self._rows += int(rows.size)

    def report(self, output: Output = SILENT) -> ModelReport:
        """Everything about the batches added. Permutes fields, which takes the time of several evaluations."""
        artefact, plan = self._scorer.artefact, self._maker.plan
        auditors = [RowAuditor(artefact, plan, bit) for bit in self._bits]
        worst = zip(self._names, self._worst, auditors, strict=True)
        slices = [field.report(self._names) for field in self._fields if field.is_sliced]
        return ModelReport(
            variants=tuple(self._names),
            total=self._total.group(0, self._names),
            slices=tuple(slices),
            importance=self._importance.importance(output),
            worst={name: rows.found(auditor) for name, rows, auditor in worst},
            drift=self._periods.drift([field.plan.name for field in self._fields], self._names),
        )

    def _chosen(self, predictions: Predictions) -> Predictions:
        """The predictions of the variants reported on."""
        if len(self._bits) == len(self._scorer.variants):
            return predictions
        columns = (predictions.scores, predictions.probabilities, predictions.losses)
        scores, probabilities, losses = (np.ascontiguousarray(each[:, self._bits]) for each in columns)
        return predictions._replace(scores=scores, probabilities=probabilities, losses=losses)


class _Field:
    """Numbers a field's values in order of arrival, and sums the rows of each. limit: the most values to slice by."""

    def __init__(self, plan: FieldPlan, variants: int) -> None:
        self.plan, self.limit = plan, FEW_VALUES
        self.sums: ReliabilitySums | None = ReliabilitySums(VALUES + 1, variants)
        self._numbers: dict[int, int] = {}
        self._texts: list[str] = []
        self._sorted = np.empty(0, np.uint64)
        self._number_of = np.empty(0, np.int64)

    def add(self, examples: Examples, predictions: Predictions) -> tuple[Numbers, Numbers]:
        """Add a batch; returns its rows, each as often as it has values, and the number of each value."""
        rows, places, digests, x = _tokens(examples, self.plan.index)
        # The digest of all real numbers is the same; they are counted by the buckets of `bucket = "log"`.
        identities = log_buckets(x).view(np.uint64) if self.plan.spec.is_number else digests
        numbers = self._numbered(identities, places, examples)
        if self.sums is not None:
            self.sums.add(predictions, rows, numbers)
            if self.limit < VALUES and len(self._texts) > self.limit:
                self.sums = None
        absent = np.flatnonzero(np.bincount(rows, minlength=examples.rows.size) == 0)
        return np.concatenate([rows, absent]), np.concatenate([numbers, np.full(absent.size, _ABSENT)])

    @property
    def is_sliced(self) -> bool:
        """Whether to report on the values: all those named, otherwise fields with two values or more."""
        return self.sums is not None and (self.limit == VALUES or len(self._texts) > 1)

    def report(self, names: Sequence[str]) -> SliceReport:
        """The values with enough rows, the worst first."""
        assert self.sums is not None
        texts: list[str | None] = [None, *self._texts]
        there = [number for number in range(len(texts)) if self.sums.rows(number)]
        enough = [number for number in there if self.sums.enough(number)]
        values = [SliceValue(texts[number], self.sums.group(number, names)) for number in enough]
        values.sort(key=lambda each: (-each.group.worst, -each.group.rows))
        return SliceReport(self.plan.name, tuple(values), len(there) - len(enough))

    def _numbered(self, identities: npt.NDArray[np.uint64], places: Numbers, examples: Examples) -> Numbers:
        """The number of each token's value; _OTHERS for values after the first VALUES."""
        if len(self._texts) < VALUES and identities.size:
            distinct, firsts = np.unique(identities, return_index=True)
            for at in np.argsort(firsts).tolist():
                identity = int(distinct[at])
                if identity not in self._numbers and len(self._texts) < VALUES:
                    text: bytes = examples.texts[self.plan.index][int(places[firsts[at]])].as_py()
                    self._texts.append(text.decode(errors="replace"))
                    self._numbers[identity] = len(self._texts)
            self._sorted = np.array(sorted(self._numbers), np.uint64)
            self._number_of = np.array([self._numbers[each] for each in self._sorted.tolist()], np.int64)
        if not self._sorted.size:
            return np.full(identities.size, _OTHERS)
        found = np.minimum(np.searchsorted(self._sorted, identities), self._sorted.size - 1)
        return np.where(self._sorted[found] == identities, self._number_of[found], _OTHERS)


def _tokens(examples: Examples, field: int) -> tuple[Numbers, Numbers, npt.NDArray[np.uint64], Floats]:
    """Each token of a field: its example, where its text is among the field's, its digest and its x."""
    tokens, rows = examples.tokens, examples.rows.astype(np.int64)
    base, number = int(tokens.base[field]), int(tokens.list_of[field])
    if number < 0:
        own = np.flatnonzero(tokens.of_rows(field, rows))
        places = rows[own]
        chosen = base + places * tokens.step
    else:
        starts = tokens.starts[number].astype(np.int64)[rows]
        lengths = tokens.starts[number][rows + 1] - starts
        own = np.repeat(np.arange(rows.size), lengths)
        places = np.arange(own.size) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        chosen = base + places
    x = tokens.values[chosen] if tokens.values.size else np.ones(chosen.size)
    return own, places, tokens.digests[chosen], x


class _WorstRows:
    """The `most` rows with the largest log-loss; of equal ones the earlier."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._worst: list[tuple[float, int, int, dict[str, Value], str, int]] = []
        self._rows = 0

    def add(self, losses: Floats, examples: Examples, batch: RowBatch, maker: ExampleMaker) -> None:
        """Add a batch's rows. O(rows), and the values of the few rows that enter are copied."""
        least = self._worst[-1][0] if len(self._worst) == self._most and self._worst else -math.inf
        above, entries = np.flatnonzero(losses > least), [*self._worst]
        for row in above[np.argsort(-losses[above], kind="stable")][: self._most].tolist():
            at, order = int(examples.rows[row]), -(self._rows + row)
            values, place = example_of(maker.plan, batch, at), (batch.file, int(batch.lines[at]))
            entries.append((float(losses[row]), order, int(examples.hashed.labels[row]), values, *place))
        self._worst = heapq.nlargest(self._most, entries, key=lambda each: each[:2])
        self._rows += int(losses.size)

    def found(self, auditor: RowAuditor) -> tuple[WrongRow, ...]:
        """The rows, the worst first."""
        return tuple(
            WrongRow(loss, label, values, auditor.of(values, file, line))
            for loss, _, label, values, file, line in self._worst
        )


class _Periods:
    """The rows by hour or, if they span more than MOST_HOURS hours, by day or a multiple of it, of the log's own times.

    Without times they are by blocks of equal numbers of rows. Periods are numbered as they arrive; when there are too
    many, neighbours become one.
    """

    def __init__(self, timed: bool, variants: int, fields: int) -> None:
        self.timed = timed
        self._length = HOUR if timed else FIRST_BLOCK
        self._numbers: dict[int, int] = {}
        self._untimed = 0
        size = MOST_PERIODS if timed else MOST_BLOCKS
        self._sums = ReliabilitySums(size, variants)
        self._keys = np.zeros((size, 2), np.int64)
        self._counts = np.zeros((fields, size, VALUES + 2))

    def add(self, predictions: Predictions, keys: Numbers, times: Numbers | None, before: int) -> Numbers:
        """Add a batch's rows, of which there were `before` so far. Returns each row's period, -1 for none."""
        rows = np.arange(predictions.labels.size)
        places = rows + before if times is None else times
        known = np.ones(rows.size, bool) if times is None else times != NO_TIME
        self._untimed += int(rows.size - known.sum())
        periods = np.full(rows.size, -1)
        periods[known] = self._numbered(places[known])
        self._sums.add(predictions, rows[known], periods[known])
        np.add.at(self._keys, periods[known], keys[known])
        return periods

    def count(self, field: int, periods: Numbers, values: Numbers) -> None:
        """Count values of a field in periods."""
        known = periods >= 0
        np.add.at(self._counts[field], (periods[known], values[known]), 1.0)

    def drift(self, fields: Sequence[str], names: Sequence[str]) -> Drift:
        """All periods in order, and how the fields' distributions moved, the most first."""
        order = sorted(self._numbers)
        numbers, periods = [self._numbers[key] for key in order], []
        for key, number in zip(order, numbers, strict=True):
            begin: str | int = key * self._length + 1
            if self.timed:
                moment = np.datetime64(key * self._length, "us")
                begin = f"{np.datetime_as_string(moment, unit='s')}Z"
            keys, lacking = self._keys[number].tolist()
            share = lacking / keys if keys else None
            periods.append(DriftPeriod(begin, self._sums.group(number, names), share))
        drifts = []
        for name, counts in zip(fields, self._counts[:, numbers], strict=True):
            if len(numbers) > 1:
                psi = tuple(stability_index(counts[0], each) for each in counts)
                drifts.append(FieldDrift(name, psi, expected_index(counts[0], counts[-1])))
        drifts.sort(key=lambda each: each.by_chance - each.psi[-1])
        length = self._length // MICROSECONDS if self.timed else self._length
        return Drift("time" if self.timed else "rows", length, tuple(periods), tuple(drifts), self._untimed)

    def _numbered(self, places: Numbers) -> Numbers:
        keys, inverse = np.unique(places // self._length, return_inverse=True)
        while len(self._numbers.keys() | set(keys.tolist())) > self._most:
            self._lengthen()
            keys, inverse = np.unique(places // self._length, return_inverse=True)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in keys.tolist()]
        return np.array(numbers, np.int64)[inverse.reshape(-1)]

    @property
    def _most(self) -> int:
        if not self.timed:
            return MOST_BLOCKS
        return MOST_HOURS if self._length == HOUR else MOST_PERIODS

    def _lengthen(self) -> None:
        factor = 24 if self.timed and self._length == HOUR else 2
        numbers: dict[int, int] = {}
        taking = np.zeros(len(self._counts[0]) if len(self._counts) else len(self._keys), np.int64)
        for key, number in self._numbers.items():
            taking[number] = numbers.setdefault(key // factor, len(numbers))
        size = len(self._keys)
        self._sums = self._sums.regrouped(taking, size)
        keys, counts = np.zeros_like(self._keys), np.zeros_like(self._counts)
        np.add.at(keys, taking, self._keys)
        for own, before in zip(counts, self._counts, strict=True):
            np.add.at(own, taking, before)
        self._keys, self._counts, self._numbers = keys, counts, numbers
        self._length *= factor


def stability_index(first: Floats, later: Floats) -> float:
    """The population stability index of two distributions, given as counts: Σ (q - p) ln(q / p).

    Values that neither has are left out; half a row is added to each count, so that no share is 0.
    """
    there = (first + later) > 0.0
    p, q = first[there] + _HALF, later[there] + _HALF
    p, q = p / p.sum(), q / q.sum()
    return float(((q - p) * np.log(q / p)).sum())


def expected_index(first: Floats, later: Floats) -> float:
    """The index of two samples of one distribution, in expectation: (B - 1) (1/n + 1/m) for B values.

    (Yurdakul 2018, "Statistical properties of population stability index".)
    """
    values = int(((first + later) > 0.0).sum())
    n, m = float(first.sum()), float(later.sum())
    return (values - 1) * (1.0 / n + 1.0 / m) if n and m else 0.0


def _check_slices(slices: Sequence[str], fields: Sequence[FieldPlan]) -> None:
    by_name = {field.name: field for field in fields}
    for name in slices:
        if name not in by_name:
            raise SpecError(f"--slice {name!r}: no such field; fields: {listed(by_name, name)}")
        if by_name[name].spec.is_number:
            raise SpecError(
                f"--slice {name!r} is a real number and has one key for all its values; "
                'slice by a field of the same column with bucket = "log"'
            )
