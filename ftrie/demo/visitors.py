"""The visitors of the simulated market: visit n is a function of the seed and n alone.

Two runs therefore have the same visitors, who make the same clicks on the same items at the same positions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ftrie.demo.market import ABSTAINER, CLICKER, DEVICES, Indices, Market, Rates, best_clicks, looked_at

BOT_CLICKS_AFTER_S = 0.3
CLICK: Literal["click"] = "click"
CONVERSION: Literal["conversion"] = "conversion"
_CONVERSION_OF_CLICK = 0.1


@dataclass(frozen=True)
class Habits:
    """Parameters of visits. Times in seconds.

    rate: visits a second. candidates: items that compete; shown: items requested. delay: mean time from the answer to
    a click and from a click to its conversion, exponential; late: the share of clicks delayed by `window` more, after
    the join has closed their request.
    """

    rate: float = 50.0
    candidates: int = 12
    shown: int = 6
    delay: float = 1.5
    late: float = 0.01
    window: float = 600.0


@dataclass(frozen=True)
class Visit:
    """One visit with all its random draws. due_s: seconds from the start of the market.

    candidates: indices of items. Per candidate: uniform: in [0, 1), clicked if below its click probability; click_s and
    conversion_s: seconds from the answer to the click and from the click to the conversion, inf for none.
    """

    number: int
    due_s: float
    user: int
    device: int
    candidates: Indices
    uniform: Rates
    click_s: Rates
    conversion_s: Rates
    apart: float
    """Uniform in [0, 1); decides which model ranks."""

    @property
    def context(self) -> dict[str, str]:
        """The request's context features."""
        return {"device": DEVICES[self.device]}


def visit(market: Market, habits: Habits, number: int) -> Visit:
    """Visit number `number`."""
    random = np.random.Generator(np.random.Philox(key=[market.seed, number]))
    some = min(habits.candidates, market.items)
    click_s = random.exponential(habits.delay, some)
    click_s[random.random(some) < habits.late] += habits.window
    converts = random.random(some) < _CONVERSION_OF_CLICK
    return Visit(
        number=number,
        due_s=(number + random.random()) / habits.rate,
        user=int(random.integers(market.users)),
        device=int(random.integers(len(DEVICES))),
        candidates=random.choice(market.items, some, replace=False),
        uniform=random.random(some),
        click_s=click_s,
        conversion_s=np.where(converts, random.exponential(habits.delay, some), np.inf),
        apart=random.random(),
    )


class Schedule:
    """An iterator over the visits from a second of the market on. Thread-safe."""

    def __init__(self, market: Market, habits: Habits, from_s: float = 0.0) -> None:
        self.market, self.habits = market, habits
        self._lock = threading.Lock()
        self._next = round(from_s * habits.rate)

    def __iter__(self) -> Iterator[Visit]:
        return self

    def __next__(self) -> Visit:
        with self._lock:
            number = self._next
            self._next += 1
        return visit(self.market, self.habits, number)


@dataclass(frozen=True)
class Reaction:
    """A future click or conversion on an item. after_s: seconds after the answer; value: the conversion's."""

    after_s: float
    item: str
    event: Literal["click", "conversion"]
    value: float = 0.0


@dataclass(frozen=True)
class AnsweredVisit:
    """A visit with its answer. order: indices into the candidates, best first; predicted: the ctr of each."""

    market: Market
    visit: Visit
    order: np.ndarray[tuple[int], np.dtype[np.int64]]
    predicted: Rates

    @cached_property
    def attraction(self) -> Rates:
        """P(click | look) of every candidate, at the second of the visit."""
        visit = self.visit
        return self.market.attraction(visit.due_s, visit.user, visit.candidates, visit.device)

    @cached_property
    def chance(self) -> Rates:
        """The true probability that a person clicks each shown item, in the order shown."""
        return looked_at(self.order.size) * self.attraction[self.order]

    @cached_property
    def clicked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of the shown items are clicked."""
        kind = self.market.bot[self.visit.user]
        if kind:
            return np.full(self.order.size, kind == CLICKER)
        return self.visit.uniform[self.order] < self.chance

    @property
    def by_bot(self) -> bool:
        """Whether the visitor is a bot."""
        return self.market.bot[self.visit.user] in (CLICKER, ABSTAINER)

    @property
    def expected(self) -> float:
        """Expected clicks of a person."""
        return float(self.chance.sum())

    @property
    def best(self) -> float:
        """Expected clicks of a person on the best order of the candidates."""
        return best_clicks(self.attraction, self.order.size)

    def reactions(self) -> list[Reaction]:
        """The future clicks and conversions, unordered."""
        return [
            reaction
            for position in np.flatnonzero(self.clicked)
            for reaction in self._reactions_to(int(self.order[position]))
        ]

    def _reactions_to(self, candidate: int) -> Sequence[Reaction]:
        item = int(self.visit.candidates[candidate])
        sku = self.market.skus[item]
        if self.by_bot:
            return (Reaction(BOT_CLICKS_AFTER_S, sku, CLICK),)
        click = Reaction(float(self.visit.click_s[candidate]), sku, CLICK)
        conversion_s = float(self.visit.conversion_s[candidate])
        if not np.isfinite(conversion_s):
            return (click,)
        return (
            click,
            Reaction(click.after_s + conversion_s, sku, CONVERSION, float(self.market.price[item])),
        )
