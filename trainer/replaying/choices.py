"""How a policy turns the values of candidates into a choice: the best, a softmax, the best with a part at random.

A choice is told by its probabilities: float64[decisions, candidates], how likely each candidate is to be among the
`size` items shown. Candidates of equal value share alike, so that the order of a file decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model_store.errors import InputError

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
