"""What one order by two models earns beside either alone: clicks and what they are worth, on the simulated market.

python -m benchmarks.two_models

The market of `ftrie live` without bots and drift. A click converts by a rate of its own, which falls with the price and
depends on age and brand; a conversion is worth the price. Both models learn the same LEARNED impressions in random
order: `ads` all of them, `purchase` the clicked ones. Then VISITS new visits are ranked by `ftrie.Ranker`, the one
beside the other, under each objective, and what the SHOWN best earn is added up from the true rates; "of the best" is
against the order by the true worth. Mean and standard error over SEEDS. Everything is a function of the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

import ftrie
from benchmarks.common import report
from ftrie.api.ranker import Ranker
from ftrie.demo.market import (
    BY_BRAND,
    DEVICES,
    SPEC,
    TYPICAL_PRICE,
    Market,
    item_records,
    looked_at,
    shown_items,
)
from ftrie.demo.settings import Sizes, Tastes
from model_store.spec.sections import ModelSection
from model_store.spec.spec import Variant, load_spec

Array = np.ndarray[Any, Any]

LEARNED, VISITS, CANDIDATES, SHOWN = 200_000, 2_000, 50, 5
SEEDS = (1, 2, 3, 4, 5)
OBJECTIVES = ("ctr", "purchase.ctr", "purchase.ctr * price", "ctr * price", "ctr * purchase.ctr * price")
BY_PRICE, BASE = -0.9, -1.2
BY_AGE = np.array([-0.6, -0.2, 0.3, 0.6])


def conversion(market: Market, user: Array, item: Array) -> Array:
    """P(converts | clicked)."""
    by_price = BY_PRICE * np.log(market.price[item] / TYPICAL_PRICE)
    score = BASE + by_price + BY_AGE[market.age[user]] - 2.0 * BY_BRAND[market.brand[item]]
    return np.asarray(1.0 / (1.0 + np.exp(-score)))


def learned(market: Market, name: str, table: Mapping[str, Any]) -> Any:
    """A model of these rows, with the market's features."""
    spec = load_spec(SPEC)
    section, alone = ModelSection(name=name), {"base": Variant(share=1.0)}
    given = spec.input.model_copy(update={"timestamp": None, "request": None})
    own = spec.model_copy(update={"model": section, "input": given, "variants": alone})
    return ftrie.train(ftrie.Spec.of(own), pa.table(table), progress=False).model


def earned(seed: int) -> dict[str, tuple[float, float, float]]:
    """By objective: expected clicks, conversions and worth of all visits."""
    market = Market(
        seed, Tastes(drift=0.0, change_at=float("inf")), Sizes(items_per_category=30, bots=0.0, appeal=0.5)
    )
    random = np.random.default_rng([seed, 2])
    sizes = market.users, market.items, len(DEVICES)
    user, item, device = (random.integers(size, size=LEARNED) for size in sizes)
    clicked = random.random(LEARNED) < market.attraction(0.0, user, item, device)
    ads = learned(market, "ads", shown_items(market, user, item, device, clicked))
    rows = user[clicked], item[clicked], device[clicked]
    converts = random.random(rows[0].size) < conversion(market, *rows[:2])
    purchase = learned(market, "purchase", shown_items(market, *rows, converts))
    records = dict(item_records(market))
    ranker = Ranker(ads, records, beside={"purchase": Ranker(purchase, records)})
    number_of = {sku: n for n, sku in enumerate(market.skus)}
    totals = {name: np.zeros(3) for name in (*OBJECTIVES, "the true worth")}
    look = looked_at(SHOWN)
    for _ in range(VISITS):
        who, what = int(random.integers(market.users)), int(random.integers(len(DEVICES)))
        candidates = random.choice(market.items, CANDIDATES, replace=False)
        one = {name: column[0].as_py() for name, column in shown_items(
            market, np.array([who]), candidates[:1], np.array([what]), np.zeros(1, np.bool_)
        ).items()}  # fmt: skip
        request = {name: one[name] for name in ("age", "gender", "device")}
        orders = {}
        for name in OBJECTIVES:
            answer = ranker.rank(
                request, candidates=[market.skus[n] for n in candidates], objective=name, top_k=SHOWN
            )
            assert not answer.degraded
            orders[name] = np.array([number_of[each.id] for each in answer.items])
        ctr = market.attraction(0.0, who, candidates, what)
        worth = ctr * conversion(market, np.full(CANDIDATES, who), candidates) * market.price[candidates]
        orders["the true worth"] = candidates[np.argsort(-worth)[:SHOWN]]
        for name, order in orders.items():
            clicks = look * market.attraction(0.0, who, order, what)
            bought = clicks * conversion(market, np.full(SHOWN, who), order)
            totals[name] += clicks.sum(), bought.sum(), (bought * market.price[order]).sum()
    return {name: tuple(sums.tolist()) for name, sums in totals.items()}


def measure() -> None:
    """Run every seed and report."""
    runs = [earned(seed) for seed in SEEDS]
    rows = []
    for name in (*OBJECTIVES, "the true worth"):
        of_runs = np.array([run[name] for run in runs]) / VISITS
        share = np.array([run[name][2] / run["the true worth"][2] for run in runs])
        error = share.std(ddof=1) / np.sqrt(len(share))
        clicks, bought, worth = of_runs.mean(axis=0)
        rows.append(
            [name, round(clicks, 3), round(bought, 4), round(worth, 3), f"{share.mean():.1%} ± {error:.1%}"]
        )
    columns = ["ordered by", "clicks a visit", "conversions", "worth", "of the best worth"]
    report(
        "two_models",
        f"{len(SEEDS)} markets, {VISITS:,} visits each, {SHOWN} of {CANDIDATES} items shown",
        columns,
        rows,
    )


if __name__ == "__main__":
    measure()
