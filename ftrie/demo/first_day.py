"""The day before: what a first model is learned from, and the records that servers look up. Files and the store.

On that day items were shown in random order, and tastes were those of second 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from ftrie.demo.market import Market, looked_at
from ftrie.demo.shop import AGES, BRANDS, CATEGORIES, DEVICES, GENDERS
from model_store.store import Store

ENDED = 1_700_000_000
"""When the day ended, seconds since 1970: before anything that happens now."""


def log(market: Market, visits: int, shown: int) -> pa.Table:
    """The day's impressions with their clicks, one row a shown item, the columns as market.toml names them."""
    random = np.random.default_rng([market.seed, 1])
    rows = visits * shown
    user = np.repeat(random.integers(market.users, size=visits), shown)
    device = np.repeat(random.integers(len(DEVICES), size=visits), shown)
    item = random.random((visits, market.items)).argpartition(shown, axis=1)[:, :shown].reshape(-1)
    chance = np.tile(looked_at(shown), visits) * market.attraction(0.0, user, item, device)
    clicked = random.random(rows) < chance
    return pa.table(
        {
            "request_id": _chosen([f"day-{number}" for number in range(visits)], np.arange(rows) // shown),
            "ts": pa.array(ENDED - visits + np.arange(rows) // shown),
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
    )


def write_log(market: Market, visits: int, shown: int, path: Path) -> None:
    """Write the day's impressions as CSV."""
    csv.write_csv(log(market, visits, shown), path)


def load_records(market: Market, store: Store) -> None:
    """Put what servers look up at request time into the store: every user and every item."""
    store.records.put_users(
        (cookie, {"age": AGES[market.age[n]], "gender": GENDERS[market.gender[n]]})
        for n, cookie in enumerate(market.cookies)
    )
    store.records.put_items(
        (
            sku,
            {
                "sku": sku,
                "brand": BRANDS[market.brand[n]],
                "category": CATEGORIES[market.category[n]],
                "price": str(market.price[n]),
            },
        )
        for n, sku in enumerate(market.skus)
    )


def _chosen(
    values: tuple[str, ...] | list[str], indices: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Array:
    return pa.array(values).take(pa.array(indices))
