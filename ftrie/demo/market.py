"""The simulated market of `ftrie demo`, `live` and `simulate`: users, items, visits, and true click probabilities.

The truth is a logistic model with one cross, age × category: a learner that may cross those two fields can find it, one
that may not cannot. Tastes drift slowly and change at a set second: games and books trade places, and so do coffee and
shoes. Visitors look less at lower positions: P(click) = P(look | position) · P(click | look). `Shop` is the market of
`ftrie demo`, two days of independent impressions.

Visit n is a function of the seed and n alone: two runs have the same visitors, who make the same clicks on the same
items at the same positions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from ftrie.demo.settings import Habits, Sizes, Tastes
from model_store.store import Store

SPEC, SHOP_SPEC = (Path(__file__).with_name(f"{name}.toml") for name in ("market", "shop"))
SHOP = "shop"

AGES = ("18-24", "25-34", "35-49", "50+")
GENDERS = ("f", "m")
DEVICES = ("desktop", "mobile")
BRANDS = ("acorn", "birch", "cedar", "dune")
CATEGORIES = ("books", "coffee", "games", "shoes")
TYPICAL_PRICE = 20.0

BASE, SHOP_BASE = -1.8, -2.6
"""The logit of a typical click; the market's is higher than the shop's, so that minutes are enough to learn."""
BY_GENDER = np.array([0.1, -0.1])
BY_DEVICE = np.array([0.15, -0.15])
BY_BRAND = np.array([0.3, 0.1, -0.1, -0.3])
BY_LOG_PRICE = -0.15
TASTE = np.array(  # rows are AGES, columns CATEGORIES
    [
        [-1.0, -0.3, 1.3, 0.6],
        [-0.5, 0.6, 0.7, 0.1],
        [0.5, 0.8, -0.6, 0.0],
        [1.4, 0.2, -1.2, -0.5],
    ]
)
TASTE_OF_DAY = {1: TASTE, 2: TASTE[:, [2, 3, 0, 1]]}

Indices = NDArray[np.int64]
Rates = NDArray[np.float64]


CLICKER, ABSTAINER = 1, 2
"""Kinds of bots: a clicker clicks everything, an abstainer nothing; 0 is a person."""
ENDED = 1_700_000_000
"""End of the first day, seconds since 1970: before any present event."""
DAY_S = 86_400.0
SHOP_COLUMNS = ("cookie", "item", "age", "gender", "device", "brand", "category", "price", "click")


@dataclass(frozen=True)
class Day:
    """One day's impressions: the log, the true click probability of each row f64[n], and its click bool[n]."""

    log: pa.Table
    true_ctr: Rates
    clicked: NDArray[np.bool_]

    def best_logloss(self) -> float:
        """The log-loss of the true probabilities on these clicks: the best that a model can reach in expectation."""
        likelihood = np.where(self.clicked, self.true_ctr, 1.0 - self.true_ctr)
        return float(-np.log(likelihood).mean())

    def write(self, path: Path) -> None:
        """Write the impressions as CSV, the columns as shop.toml names them."""
        csv.write_csv(self.log, path)


class Market:
    """Users, items and true click probabilities over time; a function of its arguments. Immutable, thread-safe."""

    base = BASE

    def __init__(self, seed: int, tastes: Tastes | None = None, sizes: Sizes | None = None) -> None:
        self.seed, self.tastes, self.sizes = seed, tastes or Tastes(), sizes or Sizes()
        users, each = self.sizes.users, self.sizes.items_per_category
        self.category = np.repeat(np.arange(len(CATEGORIES)), each)
        self.skus = tuple(f"{CATEGORIES[c]}-{n % each + 1}" for n, c in enumerate(self.category))
        bots = round(users * self.sizes.bots)
        self.bot = np.zeros(users, np.int8)
        self.bot[:bots] = np.where(np.arange(bots) % 2, ABSTAINER, CLICKER)
        appeal = self._draw(np.random.default_rng(seed))
        self.item_score = BY_BRAND[self.brand] + BY_LOG_PRICE * np.log(self.price / TYPICAL_PRICE) + appeal

    def _draw(self, random: np.random.Generator) -> Rates:
        """Draw all that is random; returns the items' appeal."""
        users, items = self.sizes.users, self.category.size
        self.cookies = tuple(f"c{number:05d}" for number in range(users))
        # What a seed gives depends on the order of the draws.
        self.age = random.integers(len(AGES), size=users)
        self.gender = random.integers(len(GENDERS), size=users)
        self.brand = random.integers(len(BRANDS), size=items)
        self.price = np.round(random.lognormal(3.0, 0.6, size=items), 2)
        appeal = random.normal(0.0, self.sizes.appeal, size=items)
        self._phase = random.uniform(0.0, 2.0 * math.pi, (len(AGES), len(CATEGORIES)))
        return appeal

    @property
    def users(self) -> int:
        """Number of users; they are numbered from 0."""
        return self.age.size

    @property
    def items(self) -> int:
        """Number of items; they are numbered from 0."""
        return self.category.size

    def taste(self, at_s: float) -> Rates:
        """Each age group's taste for each category at a second, in logits: f64[ages, categories]."""
        base = TASTE_OF_DAY[1 if at_s < self.tastes.change_at else 2]
        turned = 2.0 * math.pi * at_s / self.tastes.period_s
        # No drift at second 0: the first day, from which the first model is trained, has the same tastes.
        wandered: Rates = base + self.tastes.drift * (np.sin(turned + self._phase) - np.sin(self._phase))
        return wandered

    def attraction(self, at_s: float, user: Indices | int, item: Indices, device: Indices | int) -> Rates:
        """P(click | look): f64, in the broadcast shape of the indices."""
        score = self.base + self.taste(at_s)[self.age[user], self.category[item]]
        score = score + BY_GENDER[self.gender[user]] + self.item_score[item] + BY_DEVICE[device]
        rates: Rates = 1.0 / (1.0 + np.exp(-score))
        return rates


class Shop(Market):
    """A market of two days whose items are all looked at; the same seed gives the same shop and the same clicks."""

    base = SHOP_BASE

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Tastes(change_at=DAY_S, drift=0.0), Sizes(400, 3, bots=0.0, appeal=0.0))

    def _draw(self, random: np.random.Generator) -> Rates:
        users = range(self.sizes.users)
        self.cookies = tuple(f"c{number:04d}" for number in users)
        # One by one: the log of a seed stays what it was since the first demo.
        people = [(random.integers(len(AGES)), random.integers(len(GENDERS))) for _ in users]
        self.age, self.gender = np.array(people).T
        things = [
            (round(float(random.lognormal(3.0, 0.6)), 2), random.integers(len(BRANDS))) for _ in self.skus
        ]
        self.price = np.array([price for price, _ in things])
        self.brand = np.array([brand for _, brand in things])
        self._phase = np.zeros((len(AGES), len(CATEGORIES)))
        self._random = random
        return np.zeros(len(things))

    def true_ctr(self, day: int, user: Indices | int, item: Indices, device: Indices | int) -> Rates:
        """The probability of a click for each row of indices into users, items and DEVICES; f64[n]. day: 1 or 2."""
        return self.attraction((day - 1) * DAY_S, user, item, device)

    def clicks(self, day: int, rows: int) -> Day:
        """Show `rows` random items to random visitors; each is clicked with its true probability."""
        draw = self._random.integers
        user, item, device = (draw(count, size=rows) for count in (self.users, self.items, len(DEVICES)))
        rates = self.true_ctr(day, user, item, device)
        clicked = self._random.random(rows) < rates
        log = pa.table(shown_items(self, user, item, device, clicked)).select(SHOP_COLUMNS)
        return Day(log, rates, clicked)

    def write_records(self, users: Path, items: Path) -> None:
        """Write user and item records as CSV files for `ftrie store load`."""
        user = {
            "cookie": [*self.cookies],
            "age": _chosen(AGES, self.age),
            "gender": _chosen(GENDERS, self.gender),
        }
        brand, category = _chosen(BRANDS, self.brand), _chosen(CATEGORIES, self.category)
        item = {"id": [*self.skus], "brand": brand, "category": category, "price": self.price}
        csv.write_csv(pa.table(user), users)
        csv.write_csv(pa.table(item), items)


def looked_at(shown: int) -> Rates:
    """P(look) at each position from the top: f64[shown], decreasing from 1.

    1 / log2(position + 1), the discount of DCG.
    """
    return 1.0 / np.log2(np.arange(2, shown + 2))


def best_clicks(attraction: Rates, shown: int) -> float:
    """Expected clicks of the best order of candidates with these attractions when `shown` of them are shown."""
    best = np.sort(attraction)[::-1][:shown]
    return float(best @ looked_at(best.size))


def first_day(market: Market, visits: int, shown: int) -> pa.Table:
    """A day before the run, items in random order, the tastes of second 0: one row per shown item."""
    # A stream of its own: the day does not change the visits of the same seed.
    random = np.random.default_rng([market.seed, 1])
    rows = visits * shown
    user = np.repeat(random.integers(market.users, size=visits), shown)
    device = np.repeat(random.integers(len(DEVICES), size=visits), shown)
    # The places of the smallest of random numbers are a random choice without repeats, for all visits at once.
    item = random.random((visits, market.items)).argpartition(shown, axis=1)[:, :shown].reshape(-1)
    chance = np.tile(looked_at(shown), visits) * market.attraction(0.0, user, item, device)
    requests = {
        "request_id": _chosen([f"day-{number}" for number in range(visits)], np.arange(rows) // shown),
        "ts": pa.array(ENDED - visits + np.arange(rows) // shown),
    }
    return pa.table(requests | shown_items(market, user, item, device, random.random(rows) < chance))


def shown_items(
    market: Market, user: Indices, item: Indices, device: Indices, clicked: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """The columns of one row per shown item, as market.toml names them, without request and time."""
    return {
        "cookie": _chosen(market.cookies, user),
        "item": _chosen(market.skus, item),
        "age": _chosen(AGES, market.age[user]),
        "gender": _chosen(GENDERS, market.gender[user]),
        "sku": _chosen(market.skus, item),
        "brand": _chosen(BRANDS, market.brand[item]),
        "category": _chosen(CATEGORIES, market.category[item]),
        "price": pa.array(market.price[item]),
        "device": _chosen(DEVICES, device),
        "click": pa.array(clicked.astype(np.int8)),
    }


def write_first_day(market: Market, visits: int, shown: int, path: Path) -> None:
    """Write the day's impressions as CSV."""
    csv.write_csv(first_day(market, visits, shown), path)


def load_records(market: Market, store: Store) -> None:
    """Write every user's and every item's record to the store."""
    store.records.put_users(
        (cookie, {"age": AGES[market.age[n]], "gender": GENDERS[market.gender[n]]})
        for n, cookie in enumerate(market.cookies)
    )
    store.records.put_items(item_records(market))


def item_records(market: Market) -> Iterator[tuple[str, dict[str, str]]]:
    """Every item's id and record."""
    for n, sku in enumerate(market.skus):
        yield (
            sku,
            {
                "sku": sku,
                "brand": BRANDS[market.brand[n]],
                "category": CATEGORIES[market.category[n]],
                "price": str(market.price[n]),
            },
        )


def _chosen(values: Sequence[object], indices: Indices) -> pa.Array:
    # Arrow copies the texts by index; no list of one Python text a row is made.
    return pa.array(values).take(pa.array(indices))


# -- visits


BOT_CLICKS_AFTER_S = 0.3
CLICK: Literal["click"] = "click"
CONVERSION: Literal["conversion"] = "conversion"
_CONVERSION_OF_CLICK = 0.1


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
    # By a counter: the draws of a visit need no state but its number.
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
        # Outside the lock: only the number must be taken in turn.
        return visit(self.market, self.habits, number)


@dataclass(frozen=True)
class Reaction:
    """A future click, conversion or look at an item. after_s: seconds after the answer; value: the conversion's."""

    after_s: float
    item: str
    event: Literal["click", "conversion", "seen"]
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

    def reactions(self, seen: bool = False) -> list[Reaction]:
        """The future clicks and conversions, unordered; seen: with the items that are looked at, before them."""
        looks = list[Reaction]()
        if seen and not self.by_bot:
            # By the draw that decides on the click: it is below P(look) · P(click | look) for a click.
            looked = self.visit.uniform[self.order] < looked_at(self.order.size)
            items = self.visit.candidates[self.order[looked]]
            looks = [Reaction(0.0, self.market.skus[item], "seen") for item in items.tolist()]
        return looks + [
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
