"""The search: every candidate learns the whole log, or, by successive halving, fewer candidates learn more of it.

Successive halving: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
(AISTATS 2016), with rows as the resource. Each rung starts again at the log's first row and reads three times as many
rows as the one before it, with the best third of that one's candidates; the last rung is the whole log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model_store.errors import InputError, SpecError
from model_store.spec.spec import ModelSpec
from trainer.logs.batch import STDIN
from trainer.logs.reader import expand
from trainer.tune.candidates import Candidate, Group, groups_of
from trainer.tune.passes import Outcome, Pass, Repeated, count_rows, learn_together

KEPT = 3
MODELS_PER_PASS = 8


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared: over the `last` part of the log (1: all of it), by a metric, as a variant.

    first_rung: rows of the first rung of successive halving; None: every candidate learns the whole log.
    """

    last: float = 1.0
    by: str = "logloss"
    variant: str | None = None
    first_rung: int | None = None


@dataclass(frozen=True)
class Ranked:
    """A candidate in the ranking, and the rows of the last rung it took part in."""

    parameters: Candidate
    outcome: Outcome
    rows: int
    judged_rows: int

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        metrics = self.outcome.metrics
        return {
            "parameters": dict(self.parameters),
            "logloss": metrics.logloss,
            "auc": metrics.auc,
            "nonzero": self.outcome.nonzero,
            "rows": self.rows,
            "judged_rows": self.judged_rows,
        }


@dataclass(frozen=True)
class Tuning:
    """The result: the best candidate first; candidates dropped in an earlier rung rank after those of a later one."""

    ranking: tuple[Ranked, ...]
    rejected: int
    rejected_share: float
    passes: int
    seconds: float


def tune(spec: ModelSpec, candidates: Sequence[Candidate], log: Repeated, comparison: Comparison) -> Tuning:
    """Learn the candidates and rank them. Raises SpecError for an unknown variant or one with its own parameters."""
    variant = compared_variant(spec, comparison.variant)
    _check_rereadable(log, spec, candidates, comparison, variant)
    began, passes = time.perf_counter(), 0
    total = count_rows(log, spec) if comparison.last < 1.0 else None
    indexes, dropped = list(range(len(candidates))), list[Ranked]()
    rows = comparison.first_rung
    while True:
        last_rung = rows is None or len(indexes) == 1 or (total is not None and rows >= total)
        stop = None if last_rung else rows
        learned = _learn(
            log,
            groups_of(spec, candidates, indexes, variant),
            stop,
            _compared_from(comparison, stop or total),
        )
        passes += learned[1]
        ranked = _ranked(candidates, learned[0], comparison.by)
        if stop is None or learned[0].rows < stop:  # the log ended in this rung
            ranking = tuple(ranked + dropped)
            rejected, read = learned[0].rejected, learned[0].rejected + learned[0].rows
            share = rejected / read if read else 0.0
            return Tuning(ranking, rejected, share, passes, time.perf_counter() - began)
        kept = math.ceil(len(indexes) / KEPT)
        dropped = ranked[kept:] + dropped
        indexes = [candidates.index(each.parameters) for each in ranked[:kept]]
        rows = stop * KEPT


def compared_variant(spec: ModelSpec, name: str | None) -> str:
    """The variant of this name, by default the first; it must use the parameters of `[learner]`."""
    variant = name if name is not None else next(iter(spec.variants))
    if variant not in spec.variants:
        raise SpecError(f"no variant {variant!r}; variants: {', '.join(spec.variants)}")
    if own := spec.variants[variant].own_parameters:
        raise SpecError(
            f"variants.{variant} sets {', '.join(own)}; `tune` searches the parameters of [learner]: remove them"
        )
    return variant


def _check_rereadable(
    log: Repeated, spec: ModelSpec, candidates: Sequence[Candidate], comparison: Comparison, variant: str
) -> None:
    once = comparison.last == 1.0 and comparison.first_rung is None
    once = once and len(groups_of(spec, candidates, range(len(candidates)), variant)) <= MODELS_PER_PASS
    if STDIN in expand(log.log.inputs) and not once:
        raise InputError(
            "- (standard input) can be read only once, and this search needs several passes: use files"
        )


def _compared_from(comparison: Comparison, rows: int | None) -> int:
    """The first row, from 0, by which candidates are compared, if `rows` rows are learned."""
    return 0 if rows is None or comparison.last == 1.0 else rows - max(1, math.floor(rows * comparison.last))


def _learn(log: Repeated, groups: Sequence[Group], rows: int | None, compare_from: int) -> tuple[Pass, int]:
    """Learn all groups, MODELS_PER_PASS models per pass; return all outcomes, and the number of passes."""
    parts = [groups[at : at + MODELS_PER_PASS] for at in range(0, len(groups), MODELS_PER_PASS)]
    passes = [learn_together(log, part, rows=rows, compare_from=compare_from) for part in parts]
    outcomes = {index: outcome for each in passes for index, outcome in each.outcomes.items()}
    return replace(passes[0], outcomes=outcomes), len(passes)


def _ranked(candidates: Sequence[Candidate], learned: Pass, by: str) -> list[Ranked]:
    """Best first; ties by sparsity, then by the order of the candidates."""

    def order(index: int) -> tuple[float, int, int]:
        outcome = learned.outcomes[index]
        value = getattr(outcome.metrics, by)
        worst_last = math.inf if value is None else (value if by == "logloss" else -value)
        return worst_last, outcome.nonzero, index

    return [
        Ranked(candidates[index], learned.outcomes[index], learned.rows, learned.judged_rows)
        for index in sorted(learned.outcomes, key=order)
    ]
