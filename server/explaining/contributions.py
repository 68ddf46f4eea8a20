"""What each key added to one score. Keys are made as the spec says and looked up one by one: slow, and plain to see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from model_store.features import Token
from server.model import Model

ROUNDING = "rounding"
MOST_ROUNDINGS = 3


@dataclass(frozen=True, slots=True)
class Contribution:
    """One key of the model: its weight for the variant, the x that it is multiplied by, and its learning rate."""

    key: bytes
    weight: float
    x: float
    rate: float

    @property
    def value(self) -> float:
        """weight · x."""
        return self.weight * self.x


@dataclass(frozen=True, slots=True)
class Group:
    """The keys of the bias, of a field or of a cross, in the order in which the spec makes them."""

    name: str
    keys: tuple[Contribution, ...]
    sum: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sum", sum(key.value for key in self.keys))


def explained(
    model: Model, tokens: Mapping[str, Sequence[Token]], variant: int, score: float
) -> tuple[Group, ...]:
    """The keys that `variant` knows, by field and cross; all their values, added up in order, are exactly `score`.

    The ranking kernel adds the same numbers in another order, so that sums differ in their last bits: a last group,
    ROUNDING, holds what is left over, if anything is. O(keys · length).
    """
    keys = _known(model, tokens, variant)
    groups = [
        Group(name, tuple(key for _, key in several)) for name, several in groupby(keys, lambda pair: pair[0])
    ]
    rest = _rest([key.value for group in groups for key in group.keys], score)
    if rest:
        groups.append(Group(ROUNDING, tuple(Contribution(b"", value, 1.0, 0.0) for value in rest)))
    return tuple(groups)


def _known(
    model: Model, tokens: Mapping[str, Sequence[Token]], variant: int
) -> Iterator[tuple[str, Contribution]]:
    for name, key, x, mask in model.plan.keys_of(tokens):
        entry = model.look_up(key, variant) if mask >> variant & 1 else None
        if entry is not None:
            yield name, Contribution(key, entry.weight, x, entry.rate)


def _rest(values: Sequence[float], score: float) -> list[float]:
    """What to add to the sum of `values`, number after number, so that it is `score`; nothing if that is not finite.

    One number nearly always, three at most: a difference that is itself rounded leaves less each time.
    """
    total = 0.0
    for value in values:
        total += value
    rest: list[float] = []
    while total != score and math.isfinite(score - total) and len(rest) < MOST_ROUNDINGS:
        rest.append(score - total)
        total += rest[-1]
    return rest
