"""Selection: which candidates are returned and in which order, with objective, uncertainty and propensity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.calibration import Curve
from model_store.normal_kernels import normal_cdfs
from server.errors import Degradation, check_deadline
from server.ranking.select.exploration import Exploration, integrated, moves, seeds, simulated
from server.ranking.select.filters import CandidateColumns, Cap, Condition, Groups
from server.ranking.select.objective import Objective
from server.ranking.select.select_kernels import click_rates

Array = npt.NDArray[Any]

Valued = Callable[[Array, Array], Array]
"""From scores and what the link maps to their click rates, to the values that order candidates."""

LARGEST = 1e300
"""A larger result counts as infinite, so that candidates without a result can be ordered below all results."""


@dataclass(slots=True)
class Selection:
    """The items returned, best first: order int64[k], candidate numbers; the rest float64[k], or None.

    objective: NaN where it could not be computed. notes: for the answer's `degraded`.
    """

    order: Array
    ctr: Array
    score: Array
    objective: Array | None
    uncertainty: Array | None
    propensity: Array | None
    notes: list[Degradation] = field(default_factory=list)


@dataclass(frozen=True)
class Scored:
    """The model's scores: score and uncertainty float64[candidates], and the calibration curve of their ctr.

    noise: None for the logit link. With the probit link, the standard deviation of the noise, and uncertainty is that
    of the score.
    """

    score: Array
    uncertainty: Array | None
    curve: Curve | None
    noise: float | None = None

    @cached_property
    def latent(self) -> Array:
        """What orders candidates, and what the link maps to their click rates.

        The score; with the probit link in standard deviations, which include the uncertainty of the weights.
        """
        if self.noise is None:
            return self.score
        assert self.uncertainty is not None
        return np.asarray(self.score / np.hypot(self.noise, self.uncertainty))

    def latent_of(self, moved: Array) -> Array:
        """The same for scores moved by exploration, as of weights that are known: without their uncertainty."""
        return moved if self.noise is None else moved / self.noise

    def ctr(self, latent: Array) -> Array:
        """The click rates, in the shape of `latent`."""
        found = np.empty(latent.size)
        link = click_rates if self.noise is None else normal_cdfs
        link(np.ascontiguousarray(latent).ravel(), found)
        return (found if self.curve is None else self.curve.apply(found)).reshape(latent.shape)

    def part(self, kept: Array) -> Scored:
        """Those of some candidates; copies."""
        uncertainty = None if self.uncertainty is None else self.uncertainty[kept]
        return Scored(self.score[kept], uncertainty, self.curve, self.noise)


def order_key(value: Array, latent: Array) -> Array:
    """The key to order by, descending: `value` where it is finite; all others below it, ordered by `latent`."""
    with np.errstate(all="ignore"):
        good = np.abs(value) <= LARGEST
        within = np.sign(latent) * (1.0 - 1.0 / (1.0 + np.abs(latent)))  # rises with it, in (-1, 1)
        # From -3 to -1 times LARGEST: finite, and below every value that counts.
        return np.where(good, value, LARGEST * (within - 2.0))


@dataclass(frozen=True)
class Options:
    """How a request selects: conditions, exploration, the objective's order, caps, and then the first `top_k`.

    A request without options has the plain order: by ctr, all candidates.
    """

    objective: Objective | None
    conditions: tuple[Condition, ...]
    caps: tuple[Cap, ...]
    exploration: Exploration | None

    @property
    def needs_uncertainty(self) -> bool:
        """Whether `select` needs the candidates' uncertainty."""
        return self.exploration is not None or (
            self.objective is not None and self.objective.uses_uncertainty
        )

    def select(
        self,
        scored: Scored,
        candidates: CandidateColumns,
        ids: Sequence[str],
        top_k: int | None,
        request_id: str,
        until_s: float = math.inf,
        others: Mapping[str, Any] | None = None,
    ) -> Selection:
        """Select from all candidates of a request; `ids` in the same order. Equal candidates keep that order.

        others: predictions of all candidates by each model that the objective names (`query.OtherModel`).
        Raises DeadlinePassed between two steps after `until_s` (monotonic).
        """
        # Candidates that fail a condition are left out first: they take no place in caps, and count in no propensity.
        kept = self._kept(candidates, until_s)
        some = scored.part(kept)
        score, latent = self._moved(some, ids, kept, request_id)
        others = {name: other.at(kept) for name, other in others.items()} if others else {}
        valued = self._valued(some, candidates, kept, others)
        value = valued(score, latent)
        key = order_key(value, latent)
        order = np.argsort(-key, kind="stable")
        top = len(kept) if top_k is None else min(top_k, len(kept))
        check_deadline(until_s)
        groups = _within(Groups.of(self.caps, candidates), kept) if self.caps else None
        taken = order[:top] if groups is None else groups.take(order, top)
        check_deadline(until_s)
        notes = [] if self.objective is None else self._notes(self.objective, value, candidates, kept, others)
        return Selection(
            order=kept[taken],
            # The model's own rate, not that of moved scores, so that logged answers show what the model predicts.
            ctr=some.ctr(some.latent[taken]),
            score=some.score[taken],
            objective=None
            if self.objective is None
            else np.where(key[taken] >= -LARGEST, value[taken], np.nan),
            uncertainty=some.uncertainty[taken]
            if self.needs_uncertainty and some.uncertainty is not None
            else None,
            propensity=self._propensity(some, valued, taken, top, groups, request_id),
            notes=notes,
        )

    def _kept(self, candidates: CandidateColumns, until_s: float) -> Array:
        passes = np.ones(len(candidates), np.bool_)
        for condition in self.conditions:
            check_deadline(until_s)
            passes &= condition.passes(candidates)
        return np.flatnonzero(passes)

    def _moved(self, some: Scored, ids: Sequence[str], kept: Array, request_id: str) -> tuple[Array, Array]:
        """The scores that candidates are ordered by, moved by exploration, and what the link maps."""
        if self.exploration is None or some.uncertainty is None:
            return some.score, some.latent
        names = [ids[at] for at in kept.tolist()]
        moved = self.exploration.explored(some.score, some.uncertainty, names, request_id)
        return moved, some.latent_of(moved)

    def _valued(
        self, some: Scored, candidates: CandidateColumns, kept: Array, others: Mapping[str, Any]
    ) -> Valued:
        """The objective's value; the items' fields are read once."""
        objective = self.objective
        if objective is None:
            return lambda score, latent: latent
        columns = {name: candidates.numbers(name)[kept] for name in objective.fields}
        return lambda score, latent: objective.evaluate(
            score, some.ctr(latent), some.uncertainty, columns.__getitem__, others
        )

    def _notes(
        self,
        objective: Objective,
        value: Array,
        candidates: CandidateColumns,
        kept: Array,
        others: Mapping[str, Any],
    ) -> list[Degradation]:
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(value) <= LARGEST)
        if not bad.any():
            return []
        lacking = [name for name in objective.fields if np.isnan(candidates.numbers(name)[kept][bad]).any()]
        absent = [name for name, other in others.items() if other.version is None]
        why = f": no number in {', '.join(map(repr, lacking))}" if lacking else ": the result is not finite"
        if absent:
            why = f": no prediction of the model {', '.join(map(repr, absent))}"
        count = np.count_nonzero(bad)
        return [
            Degradation.no_value(f"{count} of {len(kept)} candidates have no value and are ranked last{why}")
        ]

    def _propensity(
        self,
        some: Scored,
        valued: Valued,
        taken: Array,
        top: int,
        groups: Groups | None,
        request_id: str,
    ) -> Array | None:
        if self.exploration is None:
            return None
        certain = np.ones(len(taken))
        if not self.exploration.is_drawn or some.uncertainty is None:
            return certain
        deviation = moves(self.exploration.width, some.uncertainty)
        # No score moves, or every candidate is returned.
        if not deviation.any() or (groups is None and top == len(deviation)):
            return certain

        def key(score: Array) -> Array:
            latent = some.latent_of(score)
            return order_key(valued(score, latent), latent)

        if groups is None:
            return integrated(some.score, deviation, key, taken, top)
        # By the request's id: a repeated request has the same propensities on every worker.
        seed = int(seeds(request_id)[0])
        return simulated(some.score, deviation, key, taken, top, groups, seed)


def _within(groups: Groups, kept: Array) -> Groups:
    """The groups of some candidates, numbered from 0."""
    counts = groups.start[kept + 1] - groups.start[kept]
    start = np.concatenate([[0], np.cumsum(counts)])
    at = np.repeat(groups.start[kept] - start[:-1], counts) + np.arange(start[-1])
    return Groups(start, groups.groups[at], groups.limits)
