"""Tuning: every candidate learns the log, or, by successive halving, fewer and fewer of them more and more of it.

Successive halving: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
(AISTATS 2016), with rows as the resource. A rung begins anew from the log's first row, three times as far as the one
before it, with the best third of that one's candidates; the last rung is the whole log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model_store.errors import InputError, SpecError
from model_store.spec.spec import ModelSpec
from trainer.logs.batch import STDIN, expand
from trainer.tune.candidates import Candidate, Group, groups_of
from trainer.tune.passes import Outcome, Pass, Repeated, count_rows, learn_together

KEPT = 3
MODELS_A_PASS = 8


@dataclass(frozen=True)
class Judge:
    """How candidates are compared: on which part of the log's end (1: all of it), by which metric, as which variant.

    first_rung: rows of the first rung of successive halving; None: every candidate learns the whole log.
    """

    last: float = 1.0
    by: str = "logloss"
    variant: str | None = None
    first_rung: int | None = None


@dataclass(frozen=True)
class Ranked:
    """A candidate in the ranking, and the rows it had learned when it was judged last."""

    parameters: Candidate
    outcome: Outcome
    rows: int
    judged_rows: int

    def as_dict(self) -> dict[str, object]:
        """The entry's JSON form."""
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
    """What tuning found, best candidate first; those that fell in an earlier rung come after those of a later one."""

    ranking: tuple[Ranked, ...]
    rejected: int
    rejected_share: float
    passes: int
    seconds: float


def tune(spec: ModelSpec, candidates: Sequence[Candidate], log: Repeated, judge: Judge) -> Tuning:
    """Learn the candidates and rank them. Raises SpecError for a variant that is absent or has its own parameters."""
    variant = judged_variant(spec, judge.variant)
    _check_readable_again(log, spec, candidates, judge, variant)
    began, passes = time.perf_counter(), 0
    total = count_rows(log, spec) if judge.last < 1.0 else None
    places, fallen = list(range(len(candidates))), list[Ranked]()
    rows = judge.first_rung
    while True:
        last_rung = rows is None or len(places) == 1 or (total is not None and rows >= total)
        stop = None if last_rung else rows
        learned = _learn(
            log, groups_of(spec, candidates, places, variant), stop, _judge_from(judge, stop or total)
        )
        passes += learned[1]
        ranked = _ranked(candidates, learned[0], judge.by)
        if stop is None or learned[0].rows < stop:  # the log ended in this rung, so that it was the last
            ranking = tuple(ranked + fallen)
            rejected, read = learned[0].rejected, learned[0].rejected + learned[0].rows
            share = rejected / read if read else 0.0
            return Tuning(ranking, rejected, share, passes, time.perf_counter() - began)
        kept = math.ceil(len(places) / KEPT)
        fallen = ranked[kept:] + fallen
        places = [candidates.index(each.parameters) for each in ranked[:kept]]
        rows = stop * KEPT


def judged_variant(spec: ModelSpec, name: str | None) -> str:
    """The variant of this name, or the first, if the learner's parameters can be looked for with it."""
    variant = name if name is not None else next(iter(spec.variants))
    if variant not in spec.variants:
        raise SpecError(f"no variant {variant!r}; variants: {', '.join(spec.variants)}")
    if own := spec.variants[variant].own_parameters:
        raise SpecError(
            f"variants.{variant}: {', '.join(own)} of its own; `tune` looks for those of [learner]: take them out"
        )
    return variant


def _check_readable_again(
    log: Repeated, spec: ModelSpec, candidates: Sequence[Candidate], judge: Judge, variant: str
) -> None:
    once = judge.last == 1.0 and judge.first_rung is None
    once = once and len(groups_of(spec, candidates, range(len(candidates)), variant)) <= MODELS_A_PASS
    if STDIN in expand(log.log.inputs) and not once:
        raise InputError(
            "- (standard input) can be read only once, and this needs several passes: give files"
        )


def _judge_from(judge: Judge, rows: int | None) -> int:
    """The first judged row, counted from 0, of a part of the log of so many rows."""
    return 0 if rows is None or judge.last == 1.0 else rows - max(1, math.floor(rows * judge.last))


def _learn(log: Repeated, groups: Sequence[Group], rows: int | None, judge_from: int) -> tuple[Pass, int]:
    """Learn all groups, some models a pass; all outcomes together, and how many passes it took."""
    parts = [groups[at : at + MODELS_A_PASS] for at in range(0, len(groups), MODELS_A_PASS)]
    passes = [learn_together(log, part, rows=rows, judge_from=judge_from) for part in parts]
    outcomes = {place: outcome for each in passes for place, outcome in each.outcomes.items()}
    return replace(passes[0], outcomes=outcomes), len(passes)


def _ranked(candidates: Sequence[Candidate], learned: Pass, by: str) -> list[Ranked]:
    """Best first; among equals the sparser, then the earlier."""

    def order(place: int) -> tuple[float, int, int]:
        outcome = learned.outcomes[place]
        value = getattr(outcome.metrics, by)
        worst_last = math.inf if value is None else (value if by == "logloss" else -value)
        return worst_last, outcome.nonzero, place

    return [
        Ranked(candidates[place], learned.outcomes[place], learned.rows, learned.judged_rows)
        for place in sorted(learned.outcomes, key=order)
    ]
