"""A simulated shop: people, things, and the true probability that one clicks on the other. It knows no model.

The truth is a logistic model with one cross, age × category: a learner that may cross those two fields can
find it, one that may not cannot. On the second day tastes change: games and books trade places, and so do
coffee and shoes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

SPEC = Path(__file__).with_name("shop.toml")
MODEL = "shop"

AGES = ("18-24", "25-34", "35-49", "50+")
GENDERS = ("f", "m")
DEVICES = ("desktop", "mobile")
BRANDS = ("acorn", "birch", "cedar", "dune")
CATEGORIES = ("books", "coffee", "games", "shoes")
USERS = 400
TYPICAL_PRICE = 20.0
ITEMS_PER_CATEGORY = 3

BASE = -2.6
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
    """A visitor: the cookie and what the shop knows of it."""

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
    """One day's impressions: a row each, whether it was clicked, and how likely that truly was."""

    log: pa.Table
    true_ctr: Rates
    clicked: NDArray[np.bool_]

    def best_logloss(self) -> float:
        """The log-loss of the true rates on these clicks, which no model can beat except by luck."""
        likelihood = np.where(self.clicked, self.true_ctr, 1.0 - self.true_ctr)
        return float(-np.log(likelihood).mean())


class Shop:
    """The users, the items and the truth. The same seed is the same shop, down to the last click."""

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
        score = BASE + taste + self._user_score[user] + self._item_score[item] + BY_DEVICE[device]
        rates: Rates = 1.0 / (1.0 + np.exp(-score))
        return rates

    def clicks(self, day: int, rows: int) -> Day:
        """Show `rows` random items to random visitors, and let each click with its true probability."""
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
        """Write what a server looks up at request time, as CSV files for `ftrie store load`."""
        csv.write_csv(pa.table(_columns(User._fields, self.users)), users)
        csv.write_csv(pa.table(_columns(Item._fields, self.items)), items)

    def _make_user(self, number: int) -> User:
        pick = self._random.choice
        return User(f"c{number:04d}", str(pick(AGES)), str(pick(GENDERS)))

    def _make_item(self, category: str, number: int) -> Item:
        price = round(float(self._random.lognormal(mean=3.0, sigma=0.6)), 2)
        return Item(f"{category}-{number}", str(self._random.choice(BRANDS)), category, price)


def write_log(day: Day, path: Path) -> None:
    """Write a day's impressions as CSV, the columns as shop.toml names them."""
    csv.write_csv(day.log, path)


def _codes(names: tuple[str, ...], values: Sequence[str]) -> Indices:
    code = {name: number for number, name in enumerate(names)}
    return np.fromiter((code[value] for value in values), dtype=np.int64, count=len(values))


def _chosen(values: Sequence[object], indices: Indices) -> pa.Array:
    return pa.array(values).take(pa.array(indices))


def _columns(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> dict[str, list[object]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
