"""How a policy turns the values of candidates into a choice: the best, a softmax, the best with a part at random.

A choice is told by its probabilities: float64[decisions, candidates], how likely each candidate is to be among the
`size` items shown. Candidates of equal value share alike, so that the order of a file decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from model_store.errors import InputError
from trainer.off_policy.estimators import (
    RATIOS,
    REWARD,
    SHOWN,
    Estimate,
    Support,
    Z,
    error_of,
    interval,
    ratio,
    resampled,
    residuals,
    sums_by_request,
    support_of,
)
from trainer.off_policy.logged import Decisions, LoggedRows
from trainer.off_policy.scores import Candidates, Values
from trainer.off_policy.warnings import doubts

Array = npt.NDArray[Any]


class Choice(Protocol):
    """A way to choose."""

    @property
    def name(self) -> str:
        """As it was asked for."""

    def probabilities(self, values: Array, size: Array) -> Array:
        """values: float64[decisions, candidates], higher is better; size: int64[decisions], how many are shown."""


@dataclass(frozen=True)
class Greedy:
    """Those of the highest values."""

    name: str = "greedy"

    def probabilities(self, values: Array, size: Array) -> Array:
        """1 for those above the last one shown; those equal to it share the places that are left."""
        chances = np.empty_like(values)
        for shown in np.unique(size):
            rows = np.flatnonzero(size == shown)
            mine = values[rows]
            if shown >= mine.shape[1]:
                chances[rows] = 1.0
                continue
            last = -np.partition(-mine, shown - 1, axis=1)[:, shown - 1 : shown]
            above, equal = mine > last, mine == last
            left = shown - above.sum(axis=1, keepdims=True)
            chances[rows] = above + equal * (left / equal.sum(axis=1, keepdims=True))
        return chances


@dataclass(frozen=True)
class EpsilonGreedy:
    """With the chance epsilon, all items shown are drawn at random; else those of the highest values."""

    epsilon: float

    @property
    def name(self) -> str:
        """epsilon:E."""
        return f"epsilon:{self.epsilon:g}"

    def probabilities(self, values: Array, size: Array) -> Array:
        """(1 - epsilon) of greedy's, and epsilon of the same for all."""
        return (1.0 - self.epsilon) * Greedy().probabilities(values, size) + self.epsilon * at_random(
            values.shape[1], size
        )


@dataclass(frozen=True)
class Softmax:
    """One item, item a with a chance proportional to exp(value of a / temperature)."""

    temperature: float

    @property
    def name(self) -> str:
        """softmax:T."""
        return f"softmax:{self.temperature:g}"

    def probabilities(self, values: Array, size: Array) -> Array:
        """Raises InputError for lists: their chances have no closed form."""
        if size.size and int(size.max()) > 1:
            raise InputError(
                "softmax chooses one item, and the log's decisions show several: use greedy or epsilon:E"
            )
        raised = np.exp((values - values.max(axis=1, keepdims=True)) / self.temperature)
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def at_random(candidates: int, size: Array) -> Array:
    """The chance of every candidate where all are alike: float64[decisions, 1]."""
    return np.minimum(size / candidates, 1.0)[:, None]


def parse_choice(text: str) -> Choice:
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


# --- What policies would have earned on a log: their chances of showing what was shown, weighed into
# estimates ---
#
# Each row counts with w = (chance that the policy shows the row's item) / (chance that the log did). Nothing
# is learned here but by a policy that learns.


LOGGED, UNIFORM = "logged", "uniform"
PAIRS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Weighed:
    """A policy's weight for every row, float64[rows]; unlogged: its chance of items that the log never shows."""

    name: str
    weight: Array
    unlogged: float = 0.0


@dataclass(frozen=True)
class PolicyValue:
    """A policy's estimates.

    difference: of its SNIPS to the log's own click rate, with a paired interval. positions: by place, its rows, IPS and
    SNIPS; empty where the log has none or lists are shown. warnings: why not to trust them.
    """

    name: str
    estimates: dict[str, Estimate]
    difference: Estimate
    support: Support
    unlogged: float
    positions: dict[str, dict[str, Estimate]]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Judging:
    """limit: weights are clipped at it, None: at the root of the rows; bootstrap: draws, 0 for none."""

    limit: float | None = None
    bootstrap: int = 1000
    seed: int = 1


def uniform(rows: LoggedRows, decisions: Decisions, candidates: Candidates) -> Weighed:
    """The policy to which all candidates are alike."""
    chance = at_random(len(candidates), decisions.size)[decisions.of_row, 0]
    return Weighed(
        UNIFORM,
        np.where(candidates.place >= 0, chance, 0.0) / rows.propensity,
        float(1.0 - candidates.logged.mean()),
    )


def weigh(
    rows: LoggedRows,
    decisions: Decisions,
    candidates: Candidates,
    values: Values,
    choices: Sequence[Choice],
    on_progress: Callable[[int], None] = lambda pairs_so_far: None,
) -> list[Weighed]:
    """The weights of every policy that makes one of the choices by one of the values."""
    shape = (len(values.names), len(choices))
    chance, unlogged = np.zeros((*shape, len(rows))), np.zeros(shape)
    for chosen, mine in _stretches(rows, decisions, len(candidates)):
        worth = values.of(rows, decisions, chosen, candidates)
        of_row, place = decisions.of_row[mine] - chosen[0], candidates.place[mine]
        for name in range(shape[0]):
            for number, choice in enumerate(choices):
                chances = choice.probabilities(worth[:, :, name], decisions.size[chosen])
                chance[name, number, mine] = np.where(place >= 0, chances[of_row, place], 0.0)
                unlogged[name, number] += chances[:, ~candidates.logged].sum()
        on_progress(int(chosen[-1] + 1) * len(candidates))
    shown = float(decisions.size.sum())
    return [
        Weighed(
            f"{values.names[name]} {choice.name}",
            chance[name, number] / rows.propensity,
            unlogged[name, number] / shown,
        )
        for name in range(shape[0])
        for number, choice in enumerate(choices)
    ]


def judge(
    rows: LoggedRows,
    policies: Sequence[Weighed],
    judging: Judging,
    *,
    by_position: bool,
    on_progress: Callable[[int], None] = lambda draws: None,
) -> list[PolicyValue]:
    """The estimates of all policies, from the same rows and the same draws."""
    limit = judging.limit or float(np.sqrt(len(rows)))
    sums = [_sums(rows, policy.weight, limit) for policy in policies]
    drawn = (
        resampled(np.hstack(sums), judging.bootstrap, judging.seed, on_progress)
        if judging.bootstrap
        else None
    )
    return [
        _value(rows, policy, mine, limit, None if drawn is None else part, by_position)
        for policy, mine, part in zip(
            policies, sums, np.split(drawn, len(policies), axis=1) if drawn is not None else sums, strict=True
        )
    ]


def _value(
    rows: LoggedRows, policy: Weighed, sums: Array, limit: float, drawn: Array | None, by_position: bool
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
        positions=_by_position(rows, policy, limit) if by_position and rows.place is not None else {},
        warnings=doubts(policy.name, support, policy.unlogged, limit),
    )


def _sums(rows: LoggedRows, weight: Array, limit: float) -> Array:
    return sums_by_request(rows.request, rows.requests, weight, rows.label, rows.weight, limit)


def _with_bootstrap(estimate: Estimate, drawn: Array | None, top: int, below: int) -> Estimate:
    found = interval(drawn[:, top], drawn[:, below]) if drawn is not None else None
    if found is None or estimate.error is None:
        return estimate
    return replace(estimate, bootstrap_low=max(0.0, found[0]), bootstrap_high=min(1.0, found[1]))


def _difference(sums: Array) -> Estimate:
    """SNIPS less the log's own click rate; both move with the same requests."""
    top, below = RATIOS["snips"]
    policy, logged = ratio(sums[:, top], sums[:, below]), ratio(sums[:, REWARD], sums[:, SHOWN])
    if policy.value is None or logged.value is None:
        return Estimate(None)
    value = policy.value - logged.value
    moves = residuals(sums[:, top], sums[:, below]) - residuals(sums[:, REWARD], sums[:, SHOWN])
    error = error_of(moves)
    return Estimate(value) if error is None else Estimate(value, error, value - Z * error, value + Z * error)


def _by_position(rows: LoggedRows, policy: Weighed, limit: float) -> dict[str, dict[str, Estimate]]:
    found = {}
    places = pc.unique(rows.place).to_pylist() if rows.place is not None else []
    for place in sorted(places, key=lambda text: (len(text), text)):  # 2 before 10
        here = np.asarray(pc.equal(rows.place, place))
        request = np.unique(rows.request[here], return_inverse=True)[1].reshape(-1)
        sums = sums_by_request(
            request, int(request.max()) + 1, policy.weight[here], rows.label[here], rows.weight[here], limit
        )
        found[place.decode("utf-8", "replace")] = {
            name: ratio(sums[:, top], sums[:, below]) for name, (top, below) in RATIOS.items()
        }
    return found


def _stretches(rows: LoggedRows, decisions: Decisions, candidates: int) -> Iterator[tuple[Array, slice]]:
    """Decisions to look at together, whole requests each time, and the rows that are theirs."""
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


# --- Policies as they are named on the command line ---


LEARNING = "learning"


@dataclass(frozen=True)
class PolicyName:
    """`logged`, `uniform`, `learning` or a model as `read_named` takes it; variant: None for all of them."""

    name: str
    variant: str | None

    @property
    def is_model(self) -> bool:
        """True if a published model has to be read."""
        return self.name not in (LOGGED, UNIFORM, LEARNING)

    @classmethod
    def parse(cls, text: str) -> PolicyName:
        """NAME, NAME:VERSION or FILE.arrow with @VARIANT or without; `learning`, `uniform`, `logged`.

        Raises InputError.
        """
        name, at, variant = text.rpartition("@") if "@" in text else (text, "", "")
        if not name or (at and not variant):
            raise InputError(
                f"--policy {text}: expected MODEL, MODEL:VERSION or FILE.arrow, then maybe @VARIANT"
            )
        if at and name in (LOGGED, UNIFORM):
            raise InputError(f"--policy {text}: {name} has no variants")
        return cls(name, variant or None)
