"""The search: every candidate learns the whole log, or, by successive halving, fewer candidates learn more of it.

Successive halving: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
(AISTATS 2016), with rows as the resource. Each rung starts again at the log's first row and reads three times as many
rows as the one before it, with the best third of that one's candidates; the last rung is the whole log.

Where the best candidate has the least or the largest value of a parameter, values beyond it are learned too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from model_store.errors import InputError, SpecError, listed
from model_store.spec.spec import ModelSpec
from trainer.formats.batch import STDIN
from trainer.learn.metrics.figures import METRICS
from trainer.learn.metrics.requests import RequestMeasure
from trainer.tune.candidates import REGULAR, Candidate, Edge, beyond, edges_of, groups_of, with_l2
from trainer.tune.extent import count_rows
from trainer.tune.passes import Outcome, PairedDifference, Pass, RepeatedLog

ONCE = "- (standard input) can be read only once, and this search needs several passes: use files"
KEPT = 3
MODELS_PER_PASS = 8
PARTS, MOST_AHEAD = 10, 100_000
"""Into how many parts the rows are divided to be predicted frozen, and the most rows of one, which are in memory."""


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
    _check_rereadable(log, spec, candidates, comparison, variant)
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
            self.total = count_rows(log, spec)

    def add(self, candidates: Sequence[Candidate]) -> list[int]:
        """Add candidates; return their indexes."""
        begin = len(self.candidates)
        self.candidates += candidates
        return list(range(begin, len(self.candidates)))

    def learn(self, indexes: Sequence[int], rows: int | None) -> bool:
        """Learn `rows` rows (None: all), MODELS_PER_PASS models a pass; return whether the log ended before them."""
        groups = groups_of(self._spec, self.candidates, indexes, self._variant)
        stop = rows if rows is not None else self._comparison.end
        size = stop if stop is not None else self.total
        ahead = predicted_ahead(self._comparison, size)
        begin = compared_from(self._comparison, size)
        parts = [groups[at : at + MODELS_PER_PASS] for at in range(0, len(groups), MODELS_PER_PASS)]
        passes = [
            self._log.learn(part, rows=stop, compare_from=begin, measure=self.measure, ahead=ahead)
            for part in parts
        ]
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
            best = learned.outcomes.get(order[0]) or self._on_the_same_rows(order[0], learned)
            difference = None
            if best is not None and index != order[0]:
                difference = PairedDifference.of(outcome.sums, best.sums, learned.weights)
            ranking.append(
                Ranked(self.candidates[index], outcome, learned.rows, learned.judged_rows, difference)
            )
        known = {name: tuple(sorted(values)) for name, values in widened.items()}
        edges = edges_of(self._spec, self.candidates, ranking[0].parameters) if ranking else ()
        return Tuning(tuple(ranking), self._rejected, self._passes, seconds, known, edges)

    def _on_the_same_rows(self, index: int, learned: Pass) -> Outcome | None:
        """The candidate's outcome if its last pass was over the rows of this one."""
        outcome, own = self.outcomes[index]
        same = (own.rows, own.judged_rows) == (learned.rows, learned.judged_rows)
        return outcome if same else None


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


def _check_rereadable(
    log: RepeatedLog, spec: ModelSpec, candidates: Sequence[Candidate], comparison: Comparison, variant: str
) -> None:
    once = comparison.last == 1.0 and comparison.first_rung is None and not comparison.widen
    once = once and len(groups_of(spec, candidates, range(len(candidates)), variant)) <= MODELS_PER_PASS
    if STDIN in log.log.inputs and not once:
        raise InputError(ONCE)


def compared_from(comparison: Comparison, rows: int | None) -> int:
    """The first row, from 0, by which candidates are compared, if `rows` rows are learned.

    Not by those that a frozen model predicts before it has learned any.
    """
    first = predicted_ahead(comparison, rows)
    if rows is None or comparison.last == 1.0:
        return first
    return max(first, rows - max(1, math.floor(rows * comparison.last)))


def predicted_ahead(comparison: Comparison, rows: int | None) -> int:
    """How many rows are predicted before any of them is learned; 0: each one before it is learned itself."""
    return min(max(rows // PARTS, 1), MOST_AHEAD) if comparison.frozen and rows is not None else 0
