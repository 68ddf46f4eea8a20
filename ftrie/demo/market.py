"""Simulated markets with known click probabilities: the two-day shop of `ftrie demo`, the market of `ftrie live`.

Both have the same ages, categories, brands and tastes. The truth is a logistic model with one cross, age × category: a
learner that may cross those two fields can find it, one that may not cannot. Then tastes change: games and books trade
places, and so do coffee and shoes. `Shop` makes two days of independent impressions. `Market` adds time: tastes drift
slowly and change at a set second, and visitors look less at lower positions:
P(click) = P(look | position) · P(click | look).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from model_store.store import Store

SHOP_SPEC = Path(__file__).with_name("shop.toml")
SHOP = "shop"

AGES = ("18-24", "25-34", "35-49", "50+")
GENDERS = ("f", "m")
DEVICES = ("desktop", "mobile")
BRANDS = ("acorn", "birch", "cedar", "dune")
CATEGORIES = ("books", "coffee", "games", "shoes")
USERS = 400
TYPICAL_PRICE = 20.0
ITEMS_PER_CATEGORY = 3

SHOP_BASE = -2.6
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


class User(NamedTuple):
    """A visitor: cookie and features."""

    cookie: str
    age: str
    gender: str


class Item(NamedTuple):
    """A thing for sale; price in euros."""

    id: str
    brand: str
    category: str
    price: float


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


class Shop:
    """Users, items and true click probabilities. The same seed gives the same shop and the same clicks."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.users = tuple(self._make_user(number) for number in range(USERS))
        self.items = tuple(
            self._make_item(category, number)
            for category in CATEGORIES
            for number in range(1, ITEMS_PER_CATEGORY + 1)
        )
        self._age = _codes(AGES, [user.age for user in self.users])
        self._category = _codes(CATEGORIES, [item.category for item in self.items])
        self._user_score = BY_GENDER[_codes(GENDERS, [user.gender for user in self.users])]
        self._item_score = BY_BRAND[_codes(BRANDS, [item.brand for item in self.items])]
        self._item_score += BY_LOG_PRICE * np.log([item.price / TYPICAL_PRICE for item in self.items])

    def true_ctr(self, day: int, user: Indices, item: Indices, device: Indices) -> Rates:
        """The probability of a click for each row of indices into `users`, `items` and DEVICES; f64[n]."""
        taste = TASTE_OF_DAY[day][self._age[user], self._category[item]]
        score = SHOP_BASE + taste + self._user_score[user] + self._item_score[item] + BY_DEVICE[device]
        rates: Rates = 1.0 / (1.0 + np.exp(-score))
        return rates

    def clicks(self, day: int, rows: int) -> Day:
        """Show `rows` random items to random visitors; each is clicked with its true probability."""
        draw = self._random.integers
        user, item, device = draw(USERS, size=rows), draw(len(self.items), size=rows), draw(2, size=rows)
        rates = self.true_ctr(day, user, item, device)
        clicked = self._random.random(rows) < rates
        shown = {
            "cookie": _chosen([u.cookie for u in self.users], user),
            "item": _chosen([i.id for i in self.items], item),
            "age": _chosen([u.age for u in self.users], user),
            "gender": _chosen([u.gender for u in self.users], user),
            "device": _chosen(DEVICES, device),
            "brand": _chosen([i.brand for i in self.items], item),
            "category": _chosen([i.category for i in self.items], item),
            "price": _chosen([i.price for i in self.items], item),
            "click": pa.array(clicked.astype(np.int8)),
        }
        return Day(pa.table(shown), rates, clicked)

    def write_records(self, users: Path, items: Path) -> None:
        """Write user and item records as CSV files for `ftrie store load`."""
        csv.write_csv(pa.table(_columns(User._fields, self.users)), users)
        csv.write_csv(pa.table(_columns(Item._fields, self.items)), items)

    def _make_user(self, number: int) -> User:
        pick = self._random.choice
        return User(f"c{number:04d}", str(pick(AGES)), str(pick(GENDERS)))

    def _make_item(self, category: str, number: int) -> Item:
        price = round(float(self._random.lognormal(mean=3.0, sigma=0.6)), 2)
        return Item(f"{category}-{number}", str(self._random.choice(BRANDS)), category, price)


def write_shop_log(day: Day, path: Path) -> None:
    """Write a day's impressions as CSV, the columns as shop.toml names them."""
    csv.write_csv(day.log, path)


def _codes(names: tuple[str, ...], values: Sequence[str]) -> Indices:
    code = {name: number for number, name in enumerate(names)}
    return np.fromiter((code[value] for value in values), dtype=np.int64, count=len(values))


def _chosen(values: Sequence[object], indices: Indices) -> pa.Array:
    return pa.array(values).take(pa.array(indices))


def _columns(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> dict[str, list[object]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


SPEC = Path(__file__).with_name("market.toml")
MODEL = "market"

BASE = -1.8
"""The logit of a typical click; higher than the shop's, so that minutes are enough to learn."""
CLICKER, ABSTAINER = 1, 2
"""Kinds of bots: a clicker clicks everything, an abstainer nothing; 0 is a person."""


@dataclass(frozen=True)
class Tastes:
    """How tastes change over time. Times are seconds from the start of the market.

    change_at: when they change abruptly; inf means never. drift: amplitude, in logits, of the slow sinusoidal drift of
    each age's taste for a category; period_s: its period.
    """

    change_at: float = math.inf
    drift: float = 0.3
    period_s: float = 900.0


@dataclass(frozen=True)
class Sizes:
    """Numbers of users and items. bots: the share of users that are bots, half of each kind.

    appeal: the standard deviation, in logits, of an item's appeal beyond brand, category and price.
    """

    users: int = 2000
    items_per_category: int = 12
    bots: float = 0.02
    appeal: float = 0.25


class Market:
    """Users, items and true click probabilities over time; a function of its arguments. Immutable, thread-safe."""

    def __init__(self, seed: int, tastes: Tastes | None = None, sizes: Sizes | None = None) -> None:
        self.seed, self.tastes, self.sizes = seed, tastes or Tastes(), sizes or Sizes()
        random = np.random.default_rng(seed)
        self._make_users(random)
        self._make_items(random)
        self._phase = random.uniform(0.0, 2.0 * math.pi, (len(AGES), len(CATEGORIES)))

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
        appeal = random.normal(0.0, self.sizes.appeal, size=count)
        self.item_score = BY_BRAND[self.brand] + BY_LOG_PRICE * np.log(self.price / TYPICAL_PRICE) + appeal


def looked_at(shown: int) -> Rates:
    """P(look) at each position from the top: f64[shown], decreasing from 1.

    1 / log2(position + 1), the discount of DCG.
    """
    return 1.0 / np.log2(np.arange(2, shown + 2))


def best_clicks(attraction: Rates, shown: int) -> float:
    """Expected clicks of the best order of candidates with these attractions when `shown` of them are shown."""
    best = np.sort(attraction)[::-1][:shown]
    return float(best @ looked_at(best.size))


ENDED = 1_700_000_000
"""End of the first day, seconds since 1970: before any present event."""


def first_day(market: Market, visits: int, shown: int) -> pa.Table:
    """A day before the run, items in random order, the tastes of second 0: one row per shown item."""
    random = np.random.default_rng([market.seed, 1])
    rows = visits * shown
    user = np.repeat(random.integers(market.users, size=visits), shown)
    device = np.repeat(random.integers(len(DEVICES), size=visits), shown)
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
