"""What a visitor does with an answer: which of the shown items are clicked and when, and what could be expected.

Everything here is decided by the visit and by the order that was shown. Nothing here calls a server or keeps time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ftrie.simulation.market import ABSTAINER, CLICKER, Market, Rates, best_clicks, looked_at
from ftrie.simulation.visits import Visit

BOT_CLICKS_AFTER_S = 0.3
CLICK: Literal["click"] = "click"
CONVERSION: Literal["conversion"] = "conversion"


@dataclass(frozen=True)
class Reaction:
    """A click or a conversion to come: after so many seconds, on an item; value: what a conversion was worth."""

    after_s: float
    item: str
    event: Literal["click", "conversion"]
    value: float = 0.0


@dataclass(frozen=True)
class Seen:
    """A visit with what was shown to it: indices into its candidates, best first, and the ctr predicted for each."""

    market: Market
    visit: Visit
    order: np.ndarray[tuple[int], np.dtype[np.int64]]
    predicted: Rates

    @cached_property
    def attraction(self) -> Rates:
        """Of every candidate, at the second of the visit."""
        visit = self.visit
        return self.market.attraction(visit.due_s, visit.user, visit.candidates, visit.device)

    @cached_property
    def chance(self) -> Rates:
        """The true chance of a person's click on each shown item, in the order shown."""
        return looked_at(self.order.size) * self.attraction[self.order]

    @cached_property
    def clicked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of the shown items are clicked, sooner or later."""
        kind = self.market.bot[self.visit.user]
        if kind:
            return np.full(self.order.size, kind == CLICKER)
        return self.visit.luck[self.order] < self.chance

    @property
    def by_bot(self) -> bool:
        """Whether nobody looked."""
        return self.market.bot[self.visit.user] in (CLICKER, ABSTAINER)

    @property
    def expected(self) -> float:
        """Clicks to be expected of a person."""
        return float(self.chance.sum())

    @property
    def best(self) -> float:
        """The same of the best order there is of this visit's candidates."""
        return best_clicks(self.attraction, self.order.size)

    def reactions(self) -> list[Reaction]:
        """Clicks and conversions to come, in no order."""
        return [
            reaction
            for place in np.flatnonzero(self.clicked)
            for reaction in self._of(int(self.order[place]))
        ]

    def _of(self, candidate: int) -> Sequence[Reaction]:
        item = int(self.visit.candidates[candidate])
        sku = self.market.skus[item]
        if self.by_bot:
            return (Reaction(BOT_CLICKS_AFTER_S, sku, CLICK),)
        click = Reaction(float(self.visit.click_s[candidate]), sku, CLICK)
        bought_s = float(self.visit.conversion_s[candidate])
        if not np.isfinite(bought_s):
            return (click,)
        return (click, Reaction(click.after_s + bought_s, sku, CONVERSION, float(self.market.price[item])))
