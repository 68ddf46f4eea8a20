"""What list features cost a request: the same model ranked without them, with them, and with a cross of one.

Every call has other candidates. A call locates the candidates, computes their derived values, and ranks.

    python -m benchmarks.derived [--json]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import ROUNDS, Spread, alternate, report
from model_store.artefact.artefact import Artefact
from model_store.spec.spec import ModelSpec
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.derived import with_item_values
from server.ranking.query import Query
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from server.ranking.warmup import run_kernels

COLUMNS = ("what", "unit", "median", "low", "high")
ITEMS = 100_000
CANDIDATES = (200, 1000)
CALLS = 200
BRANDS, SHOPS, BUCKETS = 50, 300, 60
NUMBER = {"side": "item", "kind": "number"}
FIELDS: dict[str, dict[str, Any]] = {
    "age": {"side": "user"},
    "city": {},
    "brand": {"side": "item"},
    "shop": {"side": "item"},
    "price": {**NUMBER, "bucket": "log"},
    "stars": NUMBER,
}
LISTS = {
    "price_rank": {**NUMBER, "bucket": "log", "list": "rank", "of": "price"},
    "price_gap": {**NUMBER, "list": "gap", "of": "price"},
}
CROSSES = (("age", "brand"), ("city", "shop"))


def main() -> None:
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        title = (
            f"{ITEMS:,} items, {len(FIELDS)} fields, {len(CROSSES)} crosses; {ROUNDS} rounds of {CALLS} calls"
        )
        report("derived", title, COLUMNS, rows)


def measure() -> list[tuple[Any, ...]]:
    """A row of COLUMNS for each measure."""
    run_kernels()
    models = {
        "without": served(FIELDS, CROSSES),
        "with price_rank and price_gap": served(FIELDS | LISTS, CROSSES),
        "and city*price_rank": served(FIELDS | LISTS, (*CROSSES, ("city", "price_rank"))),
    }
    calls = {
        f"rank {count}, {name}": call(each, count) for count in CANDIDATES for name, each in models.items()
    }
    spreads = {name: Spread.of(values) for name, values in alternate(calls).items()}
    return [(name, "µs", *(round(v, 1) for v in (s.median, s.low, s.high))) for name, s in spreads.items()]


def served(fields: dict[str, dict[str, Any]], crosses: tuple[tuple[str, str], ...]) -> ServedVersion:
    """A model of these fields that knows every key, over the items."""
    given = [{"fields": list(cross)} for cross in crosses]
    document = {"model": {"name": "shop"}, "input": {"label": "click"}, "fields": fields, "crosses": given}
    spec = ModelSpec.model_validate(document).resolve(["click", *fields])
    values = {"age": ["20"], "city": ["x"], "brand": range(BRANDS), "shop": range(SHOPS)}
    values |= {"price": range(BUCKETS), "price_rank": range(BUCKETS), "stars": [""], "price_gap": [""]}
    keys = {b"bias", *(f"{name}={value}".encode() for name in fields for value in values[name])}
    keys |= {f"{a}*{b}={values[a][0]}*{value}".encode() for a, b in crosses for value in values[b]}  # type: ignore[index]
    ordered, draw = sorted(keys), np.random.default_rng(1)
    artefact = Artefact.from_columns(
        key_data=np.frombuffer(b"".join(ordered), np.uint8),
        key_offsets=np.cumsum([0, *map(len, ordered)], dtype=np.int64),
        weight=draw.normal(size=len(ordered)).astype(np.float32),
        variants=np.ones(len(ordered), np.uint32),
        rate=np.ones(len(ordered), np.float32),
        spec=spec,
        metrics={},
    )
    prices = np.round(draw.lognormal(4.0, 1.0, ITEMS), 2).tolist()
    records = [
        (
            f"item-{n}",
            {"brand": str(n % BRANDS), "shop": str(n % SHOPS), "price": repr(prices[n]), "stars": str(n % 6)},
        )
        for n in range(ITEMS)
    ]
    model = Model.build(artefact, 1)
    catalogue = Catalogue.build(model.plan, records)
    return ServedVersion("shop", 1, "", model, catalogue, Ranker(model, catalogue), 0)


def call(model: ServedVersion, count: int) -> Callable[[], float]:
    """The median of CALLS calls, in µs."""
    draw, ids = random.Random(5), list(model.catalogue.ids)
    ranker = model.ranker

    def once(some: list[str]) -> None:
        features, candidates = ranker.features({"age": "20", "city": "x"}), ranker.candidates(some)
        if model.derived is not None:
            candidates = with_item_values(model, model.derived, candidates, features)
        ranker.rank(Query(features, candidates, top_k=10))

    def run() -> float:
        taken = []
        for _ in range(CALLS):
            some = draw.sample(ids, count)
            began = time.perf_counter_ns()
            once(some)
            taken.append((time.perf_counter_ns() - began) / 1000)
        return float(np.median(taken))

    return run


if __name__ == "__main__":
    main()
