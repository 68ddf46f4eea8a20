"""The search: every candidate learns the whole log, or, by successive halving, fewer candidates learn more of it.

Successive halving: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
(AISTATS 2016), with rows as the resource. Each rung starts again at the log's first row and reads three times as many
rows as the one before it, with the best third of that one's candidates; the last rung is the whole log.

Where the best candidate has the least or the largest value of a parameter, values beyond it are learned too. A search
chooses on the rows before the log's last part, and is judged on that part once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from model_store.errors import InputError, SpecError, listed
from model_store.spec.sections import seconds_of
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import open_log
from trainer.examples.requests import Sample
from trainer.formats.batch import STDIN
from trainer.formats.times import MICROSECONDS, NO_TIME, parse_times, time_format
from trainer.learn.metrics.figures import METRICS
from trainer.learn.metrics.requests import RequestMeasure
from trainer.tune.candidates import REGULAR, Candidate, Edge, beyond, edges_of, groups_of, with_l2
from trainer.tune.passes import Outcome, PairedDifference, Pass, RepeatedLog

ONCE = "- (standard input) can be read only once, and this search needs several passes: use files"
KEPT = 3
MODELS_PER_PASS = 8
PARTS, MOST_AHEAD = 10, 100_000
"""Into how many parts the rows are divided to be predicted frozen, and the most rows of one, which are in memory."""


class Compared(TypedDict):
    """compare_from: the first row, from 0, by which candidates are compared; ahead: see `RepeatedLog.learn`."""

    compare_from: int
    ahead: int


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared: over the `last` part of the log (1: all of it), by a metric, as a variant.

    by: logloss, auc, or a measure of requests (`RequestMeasure`). first_rung: rows of the first rung of successive
    halving; None: every candidate learns the whole log. end: the log ends before this row; None: at its end. widen: how
    often the grid is widened where the best lies on its edge; l2: try l2 around the best, too. frozen: each tenth of
    the rows (PARTS) is predicted by the model of those before it, as by one that was trained once; else each row is
    learned before the next one is predicted.
    """

    last: float = 1.0
    by: str = "logloss"
    variant: str | None = None
    first_rung: int | None = None
    end: int | None = None
    widen: int = 0
    l2: bool = False
    frozen: bool = False

    def over(self, rows: int | None) -> Compared:
        """How `rows` rows are compared; None: how many there are is not known."""
        # A frozen model predicts the first rows before it has learned any: nothing is compared by these.
        ahead = min(max(rows // PARTS, 1), MOST_AHEAD) if self.frozen and rows is not None else 0
        if rows is None or self.last == 1.0:
            return {"compare_from": ahead, "ahead": ahead}
        return {"compare_from": max(ahead, rows - max(1, math.floor(rows * self.last))), "ahead": ahead}


@dataclass(frozen=True)
class Ranked:
    """A candidate in the ranking, and the rows of the last rung it took part in.

    difference: its log-loss, or the measure of requests compared by, minus that of the best on the same rows; None for
    the best itself, and where the best did not learn that rung.
    """

    parameters: Candidate
    outcome: Outcome
    rows: int
    judged_rows: int
    difference: PairedDifference | None = None

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "parameters": dict(self.parameters),
            **self.outcome.figures(),
            "rows": self.rows,
            "judged_rows": self.judged_rows,
            "difference": self.difference and self.difference.as_dict(),
            "distinguishable": self.difference and not self.difference.may_be_zero,
        }


@dataclass(frozen=True)
class Tuning:
    """The result: the best candidate first; candidates dropped in an earlier rung rank after those of a later one.

    widened: the values that were added to the grid, by parameter; edges: where the best still lies on the edge.
    """

    ranking: tuple[Ranked, ...]
    rejected: int
    passes: int
    seconds: float
    widened: Mapping[str, tuple[float, ...]]
    edges: tuple[Edge, ...]


def tune(
    spec: ModelSpec, candidates: Sequence[Candidate], log: RepeatedLog, comparison: Comparison
) -> Tuning:
    """Learn the candidates and rank them. Raises SpecError for an unknown variant or one with its own parameters."""
    variant = compared_variant(spec, comparison.variant)
    groups = groups_of(spec, candidates, range(len(candidates)), variant)
    once = comparison.last == 1.0 and comparison.first_rung is None and not comparison.widen
    if STDIN in log.log.inputs and not (once and len(groups) <= MODELS_PER_PASS):
        raise InputError(ONCE)
    began, search = time.perf_counter(), _CandidateSearch(spec, log, comparison, variant)
    indexes, dropped = search.add(candidates), list[int]()
    rows = comparison.first_rung
    while True:
        last_rung = rows is None or len(indexes) == 1 or (search.total is not None and rows >= search.total)
        ended = search.learn(indexes, None if last_rung else rows)
        indexes = search.ranked(indexes)
        if last_rung or ended:
            break
        assert rows is not None
        kept = math.ceil(len(indexes) / KEPT)
        indexes, dropped = indexes[:kept], indexes[kept:] + dropped
        rows *= KEPT
    widened: dict[str, set[float]] = {}
    for turn in range(comparison.widen if search.outcomes else 0):
        best = search.candidates[indexes[0]]
        more = beyond(spec, search.candidates, best)
        more += with_l2(spec, best) if comparison.l2 and turn == 0 else []
        if not more:
            break
        for name, value in ((name, value) for each in more for name, value in each.items()):
            if name in REGULAR and all(value != each.get(name) for each in search.candidates):
                widened.setdefault(name, set()).add(float(value))
        new = search.add(more)
        search.learn(new, None)
        indexes = search.ranked([*indexes, *new])
    return search.tuning(indexes + dropped, widened, time.perf_counter() - began)


class _CandidateSearch:
    """The candidates so far, and for each the last pass that it took part in."""

    def __init__(self, spec: ModelSpec, log: RepeatedLog, comparison: Comparison, variant: str) -> None:
        self.candidates: list[Candidate] = []
        self.outcomes: dict[int, tuple[Outcome, Pass]] = {}
        self._spec, self._log, self._comparison, self._variant = spec, log, comparison, variant
        self._passes = self._rejected = 0
        self.measure = RequestMeasure.parse(comparison.by)
        self.total = comparison.end
        if self.total is None and (comparison.last < 1.0 or comparison.frozen):
            self.total = measure(log, spec, LastPart()).rows

    def add(self, candidates: Sequence[Candidate]) -> list[int]:
        """Add candidates; return their indexes."""
        begin = len(self.candidates)
        self.candidates += candidates
        return list(range(begin, len(self.candidates)))

    def learn(self, indexes: Sequence[int], rows: int | None) -> bool:
        """Learn `rows` rows (None: all), MODELS_PER_PASS models a pass; return whether the log ended before them."""
        groups = groups_of(self._spec, self.candidates, indexes, self._variant)
        stop = rows if rows is not None else self._comparison.end
        compared = self._comparison.over(stop if stop is not None else self.total)
        parts = [groups[at : at + MODELS_PER_PASS] for at in range(0, len(groups), MODELS_PER_PASS)]
        passes = [self._log.learn(part, rows=stop, measure=self.measure, **compared) for part in parts]
        outcomes = {index: outcome for each in passes for index, outcome in each.outcomes.items()}
        whole = replace(passes[0], outcomes=outcomes)
        self.outcomes |= {index: (outcome, whole) for index, outcome in outcomes.items()}
        self._passes += len(passes)
        self._rejected = whole.rejected
        return rows is None or whole.rows < rows

    def ranked(self, indexes: Sequence[int]) -> list[int]:
        """Best first; ties by sparsity, then by the order of the candidates."""
        by = self._comparison.by

        def order(index: int) -> tuple[float, int, int]:
            outcome = self.outcomes[index][0]
            value = outcome.measure if self.measure else getattr(outcome.metrics, by)
            lower_first = by in METRICS and METRICS[by].better == "lower"
            worst_last = math.inf if value is None else (value if lower_first else -value)
            return worst_last, outcome.nonzero, index

        return sorted((index for index in indexes if index in self.outcomes), key=order)

    def tuning(self, order: Sequence[int], widened: Mapping[str, set[float]], seconds: float) -> Tuning:
        """The result, candidates in this order."""
        ranking = []
        for index in order:
            outcome, learned = self.outcomes[index]
            best, whole = learned.outcomes.get(order[0]), self.outcomes[order[0]]
            if best is None and (whole[1].rows, whole[1].judged_rows) == (learned.rows, learned.judged_rows):
                best = whole[0]  # its last pass was over the same rows
            difference = None
            if best is not None and index != order[0]:
                difference = PairedDifference.of(outcome.sums, best.sums, learned.weights)
            ranking.append(
                Ranked(self.candidates[index], outcome, learned.rows, learned.judged_rows, difference)
            )
        known = {name: tuple(sorted(values)) for name, values in widened.items()}
        edges = edges_of(self.candidates, ranking[0].parameters) if ranking else ()
        return Tuning(tuple(ranking), self._rejected, self._passes, seconds, known, edges)


def compared_variant(spec: ModelSpec, name: str | None) -> str:
    """The variant of this name, by default the first; it must use the parameters of `[learner]`."""
    variant = name if name is not None else next(iter(spec.variants))
    if variant not in spec.variants:
        raise SpecError(f"no variant {variant!r}; variants: {listed(spec.variants, variant)}")
    if of := spec.variants[variant].average:
        raise SpecError(
            f"variants.{variant} is an average and learns nothing; `tune` compares with --variant {of}"
        )
    if own := spec.variants[variant].own_parameters:
        raise SpecError(
            f"variants.{variant} sets {', '.join(own)}; `tune` searches the parameters of [learner]: remove them"
        )
    return variant


# --- The extent of a log: its rows, whether they are in order of time, where its last part begins ---


MOST_MARKS = 1 << 16

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LastPart:
    """The last part of a log: a share of its rows, or the rows within so many seconds of the last."""

    share: float = 0.0
    seconds: int = 0

    @classmethod
    def of(cls, text: str) -> LastPart:
        """Parse `0.2` or `1d`. Raises ValueError."""
        try:
            share = float(text)
        except ValueError:
            seconds = seconds_of(text)
            if not seconds:
                raise ValueError(f"got {text!r}; expected a time span above 0") from None
            return cls(seconds=seconds)
        if not 0.0 <= share < 1.0:
            raise ValueError(
                f"got {text!r}; expected a share from 0 to below 1, such as 0.2, or a time span such as 1d"
            )
        return cls(share=share)


@dataclass(frozen=True)
class Extent:
    """rows: those that are learned; rejected: the others; split: the first row, from 0, of the last part, if any.

    begin, split_time, end: the times of the first row, of the row at the split and of the latest row, ISO 8601; None
    where the spec names no timestamp. unordered: rows earlier than a row before them.
    """

    rows: int
    rejected: int
    split: int | None
    begin: str | None = None
    split_time: str | None = None
    end: str | None = None
    unordered: int = 0

    def warnings(self) -> Iterator[str]:
        """Warnings for the user about the order of the rows."""
        if self.unordered:
            share = 100.0 * self.unordered / self.rows
            yield (
                f"{self.unordered:,} rows ({share:.3g} %) are earlier than a row before them: the log is not in "
                "order of time, so its last part is not its latest; sort it, or give its files in order of time"
            )


def measure(log: RepeatedLog, spec: ModelSpec, held_out: LastPart) -> Extent:
    """Read the log once and find its last part. Raises SpecError, InputError where that cannot be."""
    if held_out.seconds and spec.input.timestamp is None:
        raise SpecError(
            "--hold-out: a time span needs the time of every row: set input.timestamp, or give a share"
        )
    key = log.state.key("extent", asdict(held_out)) if log.state is not None else ""
    if log.state is not None and (kept := log.state.get(key)) is not None:
        return Extent(**kept)
    rows, rejected, clock = 0, 0, _Clock()
    with open_log(log.log, spec) as opened:
        batches = opened.batches([] if spec.input.timestamp is None else [spec.input.timestamp])
        with opened.examples(log.threads, maker=_TimedMaker(opened.spec), batches=batches) as stream:
            for examples in stream:
                rows += int(examples.hashed.labels.size)
                rejected += len(examples.rejects)
                clock.add(examples.times)
                log.on_progress(rows, opened.expected_rows(rows))
    times: dict[str, Any] = {
        "begin": _iso(clock.first),
        "end": _iso(clock.latest),
        "unordered": clock.unordered,
    }
    split = None
    if rows and (held_out.share or held_out.seconds):
        if held_out.share:
            split = rows - max(1, math.floor(rows * held_out.share))
        else:
            split = clock.first_row_after(clock.latest - held_out.seconds * MICROSECONDS)
        if not 0 < split < rows:
            raise InputError(
                f"--hold-out: of {rows:,} rows {split:,} would be left to choose by; hold out a smaller part"
            )
        times["split_time"] = _iso(clock.time_of(split))
    extent = Extent(rows, rejected, split, **times)
    if log.state is not None:
        log.state.put(key, asdict(extent))
    return extent


class _TimedMaker(ExampleMaker):
    """Makes examples with times whether or not the learner needs them. A row without a time has NO_TIME."""

    def _outcomes(self, sample: Sample, bad: dict[int, str]) -> tuple[Any, Any, Any]:
        labels, weights, times = super()._outcomes(sample, bad)
        if not times.size and self.spec.input.timestamp is not None:
            times, _ = parse_times(sample.batch.columns[self.spec.input.timestamp], time_format(self.spec))
        return labels, weights, times


class _Clock:
    """The latest time so far at every 2^k-th row, at most 65,536 of them, and how many rows are out of order."""

    def __init__(self) -> None:
        self.first = self.latest = NO_TIME
        self.unordered = 0
        self._rows, self._step = 0, 1
        self._marks = np.empty(0, np.int64)

    def add(self, times: Times) -> None:
        """Add the next rows; none where rows have no times."""
        if not times.size:
            return
        latest = np.maximum.accumulate(np.maximum(times, self.latest))
        self.unordered += int(np.count_nonzero((times < latest) & (times != NO_TIME)))
        if self.first == NO_TIME:
            self.first = int(next(iter(times[times != NO_TIME]), NO_TIME))
        self.latest = int(latest[-1])
        self._marks = np.append(self._marks, latest[-self._rows % self._step :: self._step])
        self._rows += times.size
        while self._marks.size > MOST_MARKS:
            self._marks = self._marks[::2]
            self._step *= 2

    def first_row_after(self, time: int) -> int:
        """The first row later than `time`, or up to 2^k - 1 rows after it."""
        return int(np.searchsorted(self._marks, time, side="right")) * self._step

    def time_of(self, row: int) -> int:
        """The latest time up to this row, or to one up to 2^k - 1 rows before it."""
        return int(self._marks[row // self._step]) if self._marks.size else NO_TIME


def _iso(time_us: int) -> str | None:
    return None if time_us == NO_TIME else datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
