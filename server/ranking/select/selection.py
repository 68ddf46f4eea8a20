"""Selection: which candidates are returned and in which order, with objective, uncertainty and propensity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.artefact.calibration import Curve
from model_store.features.objective import LARGEST, Objective, order_key
from model_store.normal_kernels import normal_cdfs
from model_store.versions.experiments import Explore
from server.errors import Degradation, check_deadline
from server.ranking.select.draft_kernels import draft, ints_for, reals_for
from server.ranking.select.exploration import (
    Exploration,
    coin,
    in_order,
    integrated,
    moves,
    promotions,
    seed,
    seeds,
    simulated,
    uniforms,
)
from server.ranking.select.filters import CandidateColumns, Cap, Condition, Groups
from server.ranking.select.select_kernels import click_rates

Array = npt.NDArray[Any]

Valued = Callable[[Array, Array], Array]
"""From scores and what the link maps to their click rates, to the values that order candidates."""


class Spent(NamedTuple):
    """What a budget decided for one request: whether it explored; expected clicks of the greedy list and of its own."""

    explored: bool
    greedy: float
    served: float


class OwnOrder(NamedTuple):
    """What the model would have returned in apprentice mode: candidate numbers int64[k], best first, and their ctr."""

    order: Array
    ctr: Array


class Selection(NamedTuple):
    """The items returned, best first: order int64[k], candidate numbers; the rest float64[k], or None.

    objective: NaN where it could not be computed. notes: for the answer's `degraded`. spent: with a budget; own: in
    apprentice mode.
    """

    order: Array
    ctr: Array
    score: Array
    objective: Array | None
    uncertainty: Array | None
    propensity: Array | None
    notes: Sequence[Degradation] = ()
    spent: Spent | None = None
    own: OwnOrder | None = None


@dataclass(frozen=True)
class Scored:
    """The model's scores: score and uncertainty float64[candidates], and the calibration curve of their ctr.

    noise: None for the logit link. With the probit link, the standard deviation of the noise, and uncertainty is that
    of the score. evidence: float64[candidates], where new items are promoted.
    """

    score: Array
    uncertainty: Array | None
    curve: Curve | None
    noise: float | None = None
    evidence: Array | None = None

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
        evidence = None if self.evidence is None else self.evidence[kept]
        return Scored(self.score[kept], uncertainty, self.curve, self.noise, evidence)


@dataclass(frozen=True)
class Options:
    """How a request selects: conditions, exploration, the objective's order, caps, and then the first `top_k`.

    A request without options has the plain order: by ctr, all candidates. apprentice: the request's own order instead.
    """

    objective: Objective | None
    conditions: tuple[Condition, ...]
    caps: tuple[Cap, ...]
    exploration: Exploration | None
    apprentice: bool = False

    @property
    def needs_evidence(self) -> bool:
        """Whether `select` needs the candidates' evidence."""
        return (
            self.exploration is not None
            and self.exploration.budget is not None
            and self.exploration.budget.new_share > 0.0
        )

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
        ranked = _Ranked.of(valued, score, latent)
        top = len(kept) if top_k is None else min(top_k, len(kept))
        check_deadline(until_s)
        groups = _within(Groups.of(self.caps, candidates), kept) if self.caps else None
        taken, own, spent = _taken(ranked.order, top, groups), None, None
        propensity: Array | None = None
        if self.apprentice:
            own = OwnOrder(kept[taken], some.ctr(some.latent[taken]))
            taken = _taken(np.arange(len(kept)), top, groups)
        elif self.exploration is not None and self.exploration.budget is not None:
            names = [ids[at] for at in kept.tolist()]
            budgeted = self._within_budget(
                self.exploration.budget, some, valued, ranked, top, groups, names, request_id
            )
            taken, ranked, propensity, spent = budgeted
        elif self.exploration is not None:
            propensity = self._chances(some, valued, taken, taken, top, groups, request_id)
        check_deadline(until_s)
        value, key = ranked.value, ranked.key
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
            propensity=propensity,
            notes=notes,
            spent=spent,
            own=own,
        )

    def _within_budget(
        self,
        budget: Explore,
        some: Scored,
        valued: Valued,
        moved: _Ranked,
        top: int,
        groups: Groups | None,
        names: Sequence[str],
        request_id: str,
    ) -> tuple[Array, _Ranked, Array, Spent]:
        """What is returned, how it is ordered, its propensities, and what that costs.

        A request explores with a probability q, which its candidates decide: `budget.share`, or less, so that q times
        the expected clicks that exploring it loses, on average over its draws, is at most `budget.cost` of the greedy
        list's. So a propensity is q times that of exploring, and 1 - q more for what the greedy list has.
        """
        greedy = _Ranked.of(valued, some.score, some.latent)
        without = _taken(greedy.order, top, groups)
        promoted = None if some.evidence is None else promotions(some.evidence, budget, top)
        order = moved.order
        if promoted is not None:
            first = (uniforms(request_id, names) < promoted)[order]
            order = np.concatenate([order[first], order[~first]])
        taken = _taken(order, top, groups)
        if promoted is not None:  # a new item has a place, but not a better one than its score gives it
            place = np.empty(len(order), np.int64)
            place[moved.order] = np.arange(len(order))
            taken = taken[np.argsort(place[taken])]
        ctr = some.ctr(some.latent)
        clicks, share, chances = float(ctr[without].sum()), budget.share, None
        ways = partial(self._chances, some, valued, made=taken, top=top, groups=groups, request_id=request_id)
        if budget.cost < 1.0:
            chances = ways(np.arange(len(ctr)), promoted=promoted, order=moved.order)
            lost = clicks - float(chances @ ctr)
            share = min(share, budget.cost * clicks / lost) if lost > 0.0 else share
        explored = coin(request_id) < share
        served = taken if explored else without
        exploring = ways(served, promoted=promoted, order=moved.order) if chances is None else chances[served]
        propensity = share * exploring + (1.0 - share) * np.isin(served, without)
        return (
            served,
            moved if explored else greedy,
            propensity,
            Spent(explored, clicks, float(ctr[served].sum())),
        )

    def interleave(
        self,
        several: Sequence[Scored],
        by_turns: bool,
        candidates: CandidateColumns,
        top_k: int | None,
        request_id: str,
        until_s: float = math.inf,
        others: Mapping[str, Any] | None = None,
    ) -> tuple[Selection, Array, Array]:
        """Select by the orders of several variants, without exploration; and which placed each item, and its credit.

        Arguments and errors as in `select`; by_turns: see `draft_kernels.draft`. An item's values are those of
        the variant that placed it.
        """
        kept = self._kept(candidates, until_s)
        parts = [scored.part(kept) for scored in several]
        others = {name: other.at(kept) for name, other in others.items()} if others else {}
        values, keys, notes = [], [], list[Degradation]()
        for some in parts:
            value = self._valued(some, candidates, kept, others)(some.score, some.latent)
            values.append(value)
            keys.append(order_key(value, some.latent))
            check_deadline(until_s)
            if self.objective is not None:
                notes += self._notes(self.objective, value, candidates, kept, others)
        orders = np.argsort(-np.array(keys).reshape(len(parts), len(kept)), axis=1, kind="stable")
        groups = _within(Groups.of(self.caps, candidates), kept) if self.caps else Groups(*[_NONE] * 3)
        k, top = len(parts), len(kept) if top_k is None else min(top_k, len(kept))
        order, team = np.empty((2, top), np.int64)
        credit, propensity = np.empty((2, top))
        counts = np.zeros(len(groups.limits), np.int64)
        ints, reals = np.empty(ints_for(k, len(kept), top), np.int64), np.empty(reals_for(k, top))
        count = draft(
            orders, len(kept), top, by_turns, seed(request_id), groups.start, groups.groups, groups.limits, counts,
            ints, reals, np.empty(1, np.uint64), order, team, credit, propensity,
        )  # fmt: skip
        check_deadline(until_s)
        order, team = order[:count], team[:count]

        def placed(of_teams: Sequence[Array]) -> Array:
            return np.array(of_teams).reshape(k, len(kept))[team, order]

        objective = uncertainty = None
        if self.objective is not None:
            objective = np.where(placed(keys) >= -LARGEST, placed(values), np.nan)
        if self.needs_uncertainty and parts[-1].uncertainty is not None:
            uncertainty = placed([np.asarray(some.uncertainty) for some in parts])
        rates = placed([some.ctr(some.latent) for some in parts])
        scores = placed([some.score for some in parts])
        chosen = Selection(
            kept[order], rates, scores, objective, uncertainty, propensity[:count], list(dict.fromkeys(notes))
        )
        return chosen, team, credit[:count]

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

    def _chances(
        self,
        some: Scored,
        valued: Valued,
        asked: Array,
        made: Array,
        top: int,
        groups: Groups | None,
        request_id: str,
        promoted: Array | None = None,
        order: Array | None = None,
    ) -> Array:
        """The probability of each of `asked` to be returned if the request explores. made: what this draw returns.

        promoted: as `integrated` takes it, with the order of the moved scores.
        """
        assert self.exploration is not None
        returned = np.isin(asked, made).astype(np.float64)
        deviation = np.zeros(len(some.score))
        if self.exploration.is_drawn and some.uncertainty is not None:
            deviation = moves(self.exploration.width, some.uncertainty)
        is_drawn = bool(deviation.any())
        # No score moves, or every candidate is returned.
        if (not is_drawn and promoted is None) or (groups is None and top == len(deviation)):
            return returned

        def key(score: Array) -> Array:
            latent = some.latent_of(score)
            return order_key(valued(score, latent), latent)

        if groups is not None:
            # By the request's id: a repeated request has the same propensities on every worker.
            seed, score = int(seeds(request_id)[0]), some.score
            if not self.exploration.is_drawn and some.uncertainty is not None:
                score = score + moves(self.exploration.width, some.uncertainty)
            return simulated(score, deviation, key, asked, top, groups, seed, promoted, returned)
        if is_drawn:
            return integrated(some.score, deviation, key, asked, top, promoted=promoted)
        assert order is not None and promoted is not None
        return in_order(order, asked, top, promoted)


class _Ranked(NamedTuple):
    """Candidates by value: the value, the key that orders them, and their order, best first; equal ones keep theirs."""

    value: Array
    key: Array
    order: Array

    @classmethod
    def of(cls, valued: Valued, score: Array, latent: Array) -> _Ranked:
        """By these scores."""
        value = valued(score, latent)
        key = order_key(value, latent)
        return cls(value, key, np.argsort(-key, kind="stable"))


def _taken(order: Array, top: int, groups: Groups | None) -> Array:
    return order[:top] if groups is None else groups.take(order, top)


PLAIN = Options(None, (), (), None)
"""The order by ctr of all candidates."""
_NONE = np.empty(0, np.int64)


def _within(groups: Groups, kept: Array) -> Groups:
    """The groups of some candidates, numbered from 0."""
    counts = groups.start[kept + 1] - groups.start[kept]
    start = np.concatenate([[0], np.cumsum(counts)])
    at = np.repeat(groups.start[kept] - start[:-1], counts) + np.arange(start[-1])
    return Groups(start, groups.groups[at], groups.limits)
