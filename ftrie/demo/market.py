"""The market: who comes, what is for sale, and the true chance of each click at each second. It knows no model.

The demo's shop, larger and in time. What a visitor finds attractive is a logistic model with one cross, age × category;
tastes wander slowly, and at a set second they change at once: games and books trade places, and so do coffee and shoes.
A click needs a look too, and the lower an item stands, the fewer look at it:
P(click) = P(look | position) · P(attracted).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ftrie.demo.shop import (
    AGES,
    BRANDS,
    BY_BRAND,
    BY_DEVICE,
    BY_GENDER,
    BY_LOG_PRICE,
    CATEGORIES,
    DEVICES,
    GENDERS,
    TASTE_OF_DAY,
    TYPICAL_PRICE,
)

SPEC = Path(__file__).with_name("market.toml")
MODEL = "market"

BASE = -1.8
"""The logit of a typical click; livelier than the demo's, so that minutes are enough to learn from."""
ITEM_APPEAL = 0.25
"""Standard deviation, in logits, of what an item has beyond its brand, category and price."""
CLICKER, ABSTAINER = 1, 2
"""Kinds of bots: one clicks whatever it is shown, the other never; 0 is a person."""

Indices = NDArray[np.int64]
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Tastes:
    """How tastes move. Times are seconds from the market's first.

    change_at: when they change at once; inf is never. drift: how far each age's taste for a category wanders, in
    logits; period_s: how long it takes to wander there, to the other side and back.
    """

    change_at: float = math.inf
    drift: float = 0.3
    period_s: float = 900.0


@dataclass(frozen=True)
class Sizes:
    """How much there is. bots: the share of the users that are none, half of each kind."""

    users: int = 2000
    items_per_category: int = 12
    bots: float = 0.02


class Market:
    """The users, the items and the truth; the same arguments are the same market. Immutable: any thread may ask."""

    def __init__(self, seed: int, tastes: Tastes | None = None, sizes: Sizes | None = None) -> None:
        self.seed, self.tastes, self.sizes = seed, tastes or Tastes(), sizes or Sizes()
        random = np.random.default_rng(seed)
        self._make_users(random)
        self._make_items(random)
        self._phase = random.uniform(0.0, 2.0 * math.pi, (len(AGES), len(CATEGORIES)))

    @property
    def users(self) -> int:
        """How many there are; they are numbered from 0."""
        return self.age.size

    @property
    def items(self) -> int:
        """How many there are, likewise."""
        return self.category.size

    def taste(self, at_s: float) -> Rates:
        """What each age makes of each category at a second, in logits: f64[ages, categories]."""
        base = TASTE_OF_DAY[1 if at_s < self.tastes.change_at else 2]
        turned = 2.0 * math.pi * at_s / self.tastes.period_s
        # At second 0 nothing has wandered yet: the day before, which a first model learns, has the same tastes.
        wandered: Rates = base + self.tastes.drift * (np.sin(turned + self._phase) - np.sin(self._phase))
        return wandered

    def attraction(self, at_s: float, user: Indices | int, item: Indices, device: Indices | int) -> Rates:
        """The chance that who looks at the item clicks: f64, in the shape that the indices have together."""
        score = BASE + self.taste(at_s)[self.age[user], self.category[item]]
        score = score + BY_GENDER[self.gender[user]] + self.item_score[item] + BY_DEVICE[device]
        rates: Rates = 1.0 / (1.0 + np.exp(-score))
        return rates

    def _make_users(self, random: np.random.Generator) -> None:
        count = self.sizes.users
        self.age = random.integers(len(AGES), size=count)
        self.gender = random.integers(len(GENDERS), size=count)
        self.cookies = tuple(f"c{number:05d}" for number in range(count))
        bots = round(count * self.sizes.bots)
        self.bot = np.zeros(count, np.int8)
        self.bot[:bots] = np.where(np.arange(bots) % 2, ABSTAINER, CLICKER)

    def _make_items(self, random: np.random.Generator) -> None:
        each = self.sizes.items_per_category
        self.category = np.repeat(np.arange(len(CATEGORIES)), each)
        count = self.category.size
        self.brand = random.integers(len(BRANDS), size=count)
        self.price = np.round(random.lognormal(3.0, 0.6, size=count), 2)
        self.skus = tuple(f"{CATEGORIES[c]}-{n % each + 1}" for n, c in enumerate(self.category))
        appeal = random.normal(0.0, ITEM_APPEAL, size=count)
        self.item_score = BY_BRAND[self.brand] + BY_LOG_PRICE * np.log(self.price / TYPICAL_PRICE) + appeal


def looked_at(shown: int) -> Rates:
    """The chance that a visitor looks at each of so many positions, from the top: f64[shown], falling from 1.

    1 / log2(position + 1), the discount of DCG.
    """
    return 1.0 / np.log2(np.arange(2, shown + 2))


def best_clicks(attraction: Rates, shown: int) -> float:
    """The clicks to expect of the best order of candidates with these attractions, `shown` of them shown."""
    best = np.sort(attraction)[::-1][:shown]
    return float(best @ looked_at(best.size))


__all__ = [
    "ABSTAINER", "AGES", "BRANDS", "CATEGORIES", "CLICKER", "DEVICES", "GENDERS", "MODEL", "SPEC",
    "Indices", "Market", "Rates", "Sizes", "Tastes", "best_clicks", "looked_at",
]  # fmt: skip
