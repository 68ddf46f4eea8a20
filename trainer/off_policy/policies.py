"""Policies: how they are named, how they choose items by scores, and what they would have earned on a log.

A choice is given by its probabilities: float64[decisions, candidates], how likely each candidate is among the `size`
items shown. Candidates with equal scores have equal probabilities, so the order of a file has no effect. Each row of
the log counts with the weight w = (probability that the policy shows the row's item) / (its logged propensity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from model_store.errors import InputError
from trainer.learn.metrics.figures import NORMAL_95
from trainer.off_policy.estimators import (
    RATIOS,
    REWARD,
    SHOWN,
    Estimate,
    Support,
    error_of,
    interval,
    ratio,
    resampled,
    residuals,
    sums_by_cluster,
    support_of,
    support_warnings,
)
from trainer.off_policy.logged import Decisions, LoggedRows
from trainer.off_policy.scores import Candidates, CandidateScores

Array = npt.NDArray[Any]
LOGGED, UNIFORM, LEARNING = "logged", "uniform", "learning"
PAIRS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class PolicyName:
    """`logged`, `uniform`, `learning` or a model as `read_named` takes it; variant: None for all."""

    name: str
    variant: str | None

    @property
    def is_model(self) -> bool:
        """True if it names a published model."""
        return self.name not in (LOGGED, UNIFORM, LEARNING)

    @classmethod
    def parse(cls, text: str) -> PolicyName:
        """NAME, NAME:VERSION or FILE.arrow, optionally with @VARIANT; or `learning`, `uniform`, `logged`.

        Raises InputError.
        """
        name, at, variant = text.rpartition("@") if "@" in text else (text, "", "")
        if not name or (at and not variant):
            raise InputError(
                f"--policy {text}: expected MODEL, MODEL:VERSION or FILE.arrow, optionally with @VARIANT"
            )
        if at and name in (LOGGED, UNIFORM):
            raise InputError(f"--policy {text}: {name} has no variants")
        return cls(name, variant or None)


class ItemChoice(Protocol):
    """A way to choose."""

    @property
    def name(self) -> str:
        """The choice as written on the command line."""

    def probabilities(self, scores: Array, size: Array) -> Array:
        """scores: float64[decisions, candidates], higher is better; size: int64[decisions], how many are shown."""


@dataclass(frozen=True)
class Greedy:
    """The candidates with the highest scores."""

    name: str = "greedy"

    def probabilities(self, scores: Array, size: Array) -> Array:
        """1 for those above the last one shown; those equal to it share the remaining positions."""
        chances = np.empty_like(scores)
        for items in np.unique(size):
            rows = np.flatnonzero(size == items)
            mine = scores[rows]
            if items >= mine.shape[1]:
                chances[rows] = 1.0
                continue
            last = -np.partition(-mine, items - 1, axis=1)[:, items - 1 : items]
            above, equal = mine > last, mine == last
            left = items - above.sum(axis=1, keepdims=True)
            chances[rows] = above + equal * (left / equal.sum(axis=1, keepdims=True))
        return chances


@dataclass(frozen=True)
class EpsilonGreedy:
    """With probability epsilon all items are drawn uniformly; else those with the highest scores."""

    epsilon: float

    @property
    def name(self) -> str:
        """epsilon:E."""
        return f"epsilon:{self.epsilon:g}"

    def probabilities(self, scores: Array, size: Array) -> Array:
        """(1 - epsilon) times greedy's, plus epsilon times the uniform ones."""
        return (1.0 - self.epsilon) * Greedy().probabilities(scores, size) + self.epsilon * at_random(
            scores.shape[1], size
        )


@dataclass(frozen=True)
class Softmax:
    """One item; item a with a probability proportional to exp(score of a / temperature)."""

    temperature: float

    @property
    def name(self) -> str:
        """softmax:T."""
        return f"softmax:{self.temperature:g}"

    def probabilities(self, scores: Array, size: Array) -> Array:
        """Raises InputError for lists: their probabilities have no closed form."""
        if size.size and int(size.max()) > 1:
            raise InputError(
                "softmax chooses one item, and the log's decisions show several: use greedy or epsilon:E"
            )
        raised = np.exp((scores - scores.max(axis=1, keepdims=True)) / self.temperature)
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def at_random(candidates: int, size: Array) -> Array:
    """The probability of every candidate under the uniform policy: float64[decisions, 1]."""
    return np.minimum(size / candidates, 1.0)[:, None]


def parse_choice(text: str) -> ItemChoice:
    """greedy, softmax:T or epsilon:E. Raises InputError."""
    kind, _, number = text.partition(":")
    try:
        value = float(number) if number else None
    except ValueError:
        value = None
    if kind == "greedy" and not number:
        return Greedy()
    if kind == "softmax" and value is not None and 0.0 < value < float("inf"):
        return Softmax(value)
    if kind == "epsilon" and value is not None and 0.0 <= value <= 1.0:
        return EpsilonGreedy(value)
    raise InputError(
        f"--choose {text}: expected greedy, softmax:T with a temperature above 0, or epsilon:E with E from 0 to 1"
    )


@dataclass(frozen=True)
class PolicyWeights:
    """A policy's weight for every row, float64[rows]; unlogged: its share of items that the log never shows."""

    name: str
    weight: Array
    unlogged: float = 0.0


@dataclass(frozen=True)
class PolicyValue:
    """A policy's estimates.

    difference: its SNIPS minus the log's own click rate, with a paired interval. positions: estimates by position;
    empty where the log has no positions, or decisions are lists. warnings: reasons not to trust the estimates.
    """

    name: str
    estimates: dict[str, Estimate]
    difference: Estimate
    support: Support
    unlogged: float
    positions: dict[str, dict[str, Estimate]]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class EstimatorOptions:
    """limit: the clip limit of weights, None for the square root of the rows; bootstrap: draws, 0 for none."""

    limit: float | None = None
    bootstrap: int = 1000
    seed: int = 1


def uniform(rows: LoggedRows, decisions: Decisions, candidates: Candidates) -> PolicyWeights:
    """The weights of the policy that draws candidates uniformly."""
    chance = at_random(len(candidates), decisions.size)[decisions.of_row, 0]
    return PolicyWeights(
        UNIFORM,
        np.where(candidates.index >= 0, chance, 0.0) / rows.propensity,
        float(1.0 - candidates.logged.mean()),
    )


def weigh(
    rows: LoggedRows,
    decisions: Decisions,
    candidates: Candidates,
    scores: CandidateScores,
    choices: Sequence[ItemChoice],
    on_progress: Callable[[int], None] = lambda pairs_so_far: None,
) -> list[PolicyWeights]:
    """The weights of every policy that makes one of the choices by the scores of one of the variants."""
    shape = (len(scores.names), len(choices))
    chance, unlogged = np.zeros((*shape, len(rows))), np.zeros(shape)
    for chosen, mine in _chunks(rows, decisions, len(candidates)):
        computed = scores.of(rows, decisions, chosen, candidates)
        of_row, index = decisions.of_row[mine] - chosen[0], candidates.index[mine]
        for name in range(shape[0]):
            for number, choice in enumerate(choices):
                chances = choice.probabilities(computed[:, :, name], decisions.size[chosen])
                chance[name, number, mine] = np.where(index >= 0, chances[of_row, index], 0.0)
                unlogged[name, number] += chances[:, ~candidates.logged].sum()
        on_progress(int(chosen[-1] + 1) * len(candidates))
    shown = float(decisions.size.sum())
    return [
        PolicyWeights(
            f"{scores.names[name]} {choice.name}",
            chance[name, number] / rows.propensity,
            unlogged[name, number] / shown,
        )
        for name in range(shape[0])
        for number, choice in enumerate(choices)
    ]


def estimate(
    rows: LoggedRows,
    policies: Sequence[PolicyWeights],
    options: EstimatorOptions,
    *,
    by_position: bool,
    on_progress: Callable[[int], None] = lambda draws: None,
) -> list[PolicyValue]:
    """The estimates of all policies, from the same rows and the same draws."""
    limit = options.limit or float(np.sqrt(len(rows)))
    sums = [_sums(rows, policy.weight, limit) for policy in policies]
    drawn = (
        resampled(np.hstack(sums), options.bootstrap, options.seed, on_progress)
        if options.bootstrap
        else None
    )
    return [
        _estimates(rows, policy, mine, limit, None if drawn is None else part, by_position)
        for policy, mine, part in zip(
            policies, sums, np.split(drawn, len(policies), axis=1) if drawn is not None else sums, strict=True
        )
    ]


def _estimates(
    rows: LoggedRows, policy: PolicyWeights, sums: Array, limit: float, drawn: Array | None, by_position: bool
) -> PolicyValue:
    estimates = {
        name: _with_bootstrap(ratio(sums[:, top], sums[:, below]), drawn, top, below)
        for name, (top, below) in RATIOS.items()
    }
    support = support_of(policy.weight, rows.label, rows.weight, sums, limit)
    return PolicyValue(
        name=policy.name,
        estimates=estimates,
        difference=_difference(sums),
        support=support,
        unlogged=policy.unlogged,
        positions=_by_position(rows, policy, limit) if by_position and rows.position is not None else {},
        warnings=support_warnings(support, policy.unlogged, limit),
    )


def _sums(rows: LoggedRows, weight: Array, limit: float) -> Array:
    return sums_by_cluster(rows.cluster, weight, rows.label, rows.weight, limit)


def _with_bootstrap(estimate: Estimate, drawn: Array | None, top: int, below: int) -> Estimate:
    found = interval(drawn[:, top], drawn[:, below]) if drawn is not None else None
    if found is None or estimate.error is None:
        return estimate
    return replace(estimate, bootstrap_low=max(0.0, found[0]), bootstrap_high=min(1.0, found[1]))


def _difference(sums: Array) -> Estimate:
    """SNIPS minus the log's own click rate, paired by cluster."""
    top, below = RATIOS["snips"]
    policy, logged = ratio(sums[:, top], sums[:, below]), ratio(sums[:, REWARD], sums[:, SHOWN])
    if policy.value is None or logged.value is None:
        return Estimate(None)
    value = policy.value - logged.value
    effects = residuals(sums[:, top], sums[:, below]) - residuals(sums[:, REWARD], sums[:, SHOWN])
    error = error_of(effects)
    return (
        Estimate(value)
        if error is None
        else Estimate(value, error, value - NORMAL_95 * error, value + NORMAL_95 * error)
    )


def _by_position(rows: LoggedRows, policy: PolicyWeights, limit: float) -> dict[str, dict[str, Estimate]]:
    found = {}
    positions = pc.unique(rows.position).to_pylist() if rows.position is not None else []
    for position in sorted(positions, key=lambda text: (len(text), text)):  # 2 before 10
        here = np.asarray(pc.equal(rows.position, position))
        cluster = np.unique(rows.cluster[here], return_inverse=True)[1].reshape(-1)
        sums = sums_by_cluster(cluster, policy.weight[here], rows.label[here], rows.weight[here], limit)
        found[position.decode("utf-8", "replace")] = {
            name: ratio(sums[:, top], sums[:, below]) for name, (top, below) in RATIOS.items()
        }
    return found


def _chunks(rows: LoggedRows, decisions: Decisions, candidates: int) -> Iterator[tuple[Array, slice]]:
    """Chunks of decisions, whole requests each, with their rows."""
    per = max(1, PAIRS_AT_ONCE // max(1, candidates))
    of_request = np.flatnonzero(np.diff(rows.request[decisions.first], prepend=-1))
    borders = [*of_request.tolist(), len(decisions.first)]
    begin = 0
    for number, end in enumerate(borders[1:], 1):
        following = borders[number + 1] if number + 1 < len(borders) else None
        if following is not None and following - begin <= per:
            continue
        chosen = np.arange(begin, end)
        first, last = np.searchsorted(decisions.of_row, [begin, end])
        yield chosen, slice(int(first), int(last))
        begin = end
