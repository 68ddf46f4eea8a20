"""Who comes when: visit number n is a function of the seed and of n alone, whatever servers answered before.

So two runs see the same visitors, who would make the same clicks on the same items at the same positions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ftrie.simulation.market import DEVICES, Indices, Market, Rates

_CONVERSION_OF_CLICK = 0.1


@dataclass(frozen=True)
class Habits:
    """What visits are like. Times in seconds.

    rate: visits a second. candidates: how many items compete; shown: how many of them are asked for. delay: the mean
    time from a look to its click, and again to its conversion, exponential; late: the share of clicks that come only
    after `window` more, when nobody waits for them.
    """

    rate: float = 50.0
    candidates: int = 12
    shown: int = 6
    delay: float = 1.5
    late: float = 0.01
    window: float = 600.0


@dataclass(frozen=True)
class Visit:
    """One visit, and everything about it that is chance. Times are seconds from the market's first.

    candidates: indices of items. Per candidate: luck, uniform: it is clicked if its chance is above; click_s and
    conversion_s, from the answer to the click and from the click to the conversion, inf where there is none.
    """

    number: int
    due_s: float
    user: int
    device: int
    candidates: Indices
    luck: Rates
    click_s: Rates
    conversion_s: Rates
    apart: float
    """Uniform in [0, 1): decides which of several models is asked."""

    @property
    def context(self) -> dict[str, str]:
        """What the request says of the moment."""
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
        luck=random.random(some),
        click_s=click_s,
        conversion_s=np.where(converts, random.exponential(habits.delay, some), np.inf),
        apart=random.random(),
    )


class Schedule:
    """The visits from a second of the market's on, one after the other. Any thread may take the next."""

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
