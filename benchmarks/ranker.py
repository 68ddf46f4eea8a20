"""The ranker in process: building a model and a catalogue, one call at several numbers of candidates, ids to rows.

The model, users and items are those of `benchmarks.rank_model`, with ten times its items. Every call has another user
and other candidates, so that the caches hold no more than a server's would.

    python -m benchmarks.ranker [--json]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, alternate, report
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.ranker import Ranker
from server.ranking.warmup import run_kernels

COLUMNS = ("what", "unit", "median", "low", "high")
ITEMS = 100_000
CANDIDATES = (10, 200, 1000)
VARIANTS = 8
CALLS = 400


def main() -> None:
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        title = f"{shop.KEYS:,} keys, {ITEMS:,} items, {len(shop.CROSSES)} crosses; {ROUNDS} rounds of {CALLS} calls"
        report("ranker", title, COLUMNS, rows)


def measure() -> list[tuple[Any, ...]]:
    """A row of COLUMNS for each measure."""
    run_kernels()
    artefact, records = shop.artefact(), list(shop.records(shop.ITEM_FIELDS, "item-", ITEMS, seed=1))
    model = Model.build(artefact, 1)
    catalogue = Catalogue.build(model.plan, records)
    ranker = Ranker(model, catalogue)
    own = shop.with_own_weights(artefact, VARIANTS)
    owning = Model.build(own, 1)
    each = f"{VARIANTS} variants' own weights"
    builds = {
        "Model.build": _seconds(lambda: Model.build(artefact, 1)),
        "Catalogue.build": _seconds(lambda: Catalogue.build(model.plan, records)),
        "Ranker": _seconds(lambda: Ranker(model, catalogue)),
        f"Model.build, {each}": _seconds(lambda: Model.build(own, 1)),
        f"Ranker, {each}": _seconds(lambda: Ranker(owning, catalogue)),
    }
    ids = catalogue.ids
    calls = {f"rank {count} of {ITEMS:,}, top 10": _rank_us(ranker, ids, count) for count in CANDIDATES}
    calls |= {f"rank 200, {each}, in turn": _rank_us(Ranker(owning, catalogue), ids, 200, VARIANTS)}
    vague = Model.build(shop.as_adpredictor(artefact), 1)
    calls |= {"rank 200, adpredictor": _rank_us(Ranker(vague, catalogue), ids, 200)}
    row_of = {item_id: row for row, item_id in enumerate(ids)}
    lookups = {
        "200 ids to rows, IdTable": _ids_us(ids, catalogue.rows.rows),
        "200 ids to rows, dict": _ids_us(
            ids, lambda some: np.fromiter(map(row_of.__getitem__, some), np.int32, len(some))
        ),
    }
    rows = [_row(name, "ms", [s * 1e3 for s in values]) for name, values in alternate(builds).items()]
    return rows + [_row(name, "µs", values) for name, values in alternate(calls | lookups).items()]


def _row(name: str, unit: str, values: Sequence[float]) -> tuple[Any, ...]:
    spread = Spread.of(values)
    return (name, unit, round(spread.median, 1), round(spread.low, 1), round(spread.high, 1))


def _seconds(call: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return run


def _rank_us(ranker: Ranker, ids: Sequence[str], count: int, variants: int = 1) -> Callable[[], float]:
    draw = random.Random(5)
    fields = {**shop.USER_FIELDS, **shop.CONTEXT_FIELDS}
    users = [{name: f"{name}{draw.randrange(size)}" for name, size in fields.items()} for _ in range(CALLS)]
    asked = [(user, draw.sample(ids, count), (), n % variants, 10) for n, user in enumerate(users)]
    questions = cycle(asked)
    return lambda: _median_us(lambda: next(questions), lambda question: ranker.rank(ranker.query(*question)))


def _ids_us(ids: Sequence[str], look_up: Callable[[Sequence[str]], Any]) -> Callable[[], float]:
    draw = random.Random(6)
    # A request's ids are strings of their own, just decoded, not the catalogue's.
    return lambda: _median_us(
        lambda: [item_id.encode().decode() for item_id in draw.sample(ids, 200)], look_up
    )


def _median_us(prepare: Callable[[], Any], call: Callable[[Any], Any]) -> float:
    taken = []
    for _ in range(CALLS):
        argument = prepare()
        began = time.perf_counter_ns()
        call(argument)
        taken.append((time.perf_counter_ns() - began) / 1e3)
    return Spread.of(taken).median


if __name__ == "__main__":
    main()
