"""Items that change: what the process that follows the store pays, for all items at the start and for a few later.

    python -m benchmarks.item_changes

The store is a Valkey on a unix socket. "catalogue" is the arrays that workers map; "unpack" is what one of them pays.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, report
from model_store.features.features import FeaturePlan
from model_store.store import Store
from server.model.columns import Catalogue
from server.sync.item_sync import ItemSync

ITEMS, CHANGED = 100_000, 10


def milliseconds(step: Callable[[], object], before: Callable[[], object] = int) -> Spread:
    """How long `step` takes, after `before` each time."""
    measured = []
    for _ in range(ROUNDS):
        before()
        began = time.perf_counter()
        step()
        measured.append((time.perf_counter() - began) * 1e3)
    return Spread.of(measured)


def kept_bytes(store: Store) -> float:
    """Memory of the records of one item."""
    tracemalloc.start()
    follower = ItemSync(store.records)
    follower.poll()
    found = tracemalloc.get_traced_memory()[0] / len(follower)
    tracemalloc.stop()
    return found


def main() -> None:
    plan = FeaturePlan.of(shop.artefact().spec)
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        store.records.put_items(shop.records(shop.ITEM_FIELDS, "item-", ITEMS, seed=1))
        follower = ItemSync(store.records)
        follower.poll()
        catalogue = Catalogue.build(plan, follower.items())
        head, arrays = catalogue.pack()
        seeds = iter(range(2, 2 + ROUNDS))

        def change() -> None:
            store.records.put_items(shop.records(shop.ITEM_FIELDS, "item-", CHANGED, seed=next(seeds)))

        steps = {
            f"read all {ITEMS:,}": milliseconds(lambda: ItemSync(store.records).poll()),
            f"read {CHANGED} that changed": milliseconds(follower.poll, change),
            "look, nothing changed": milliseconds(follower.poll),
            "build the catalogue": milliseconds(lambda: Catalogue.build(plan, follower.items())),
            "unpack it in a worker": milliseconds(lambda: Catalogue.unpack(plan, head, arrays)),
        }
        per_item = kept_bytes(store)
    rows = [
        (step, *(round(x, 3) for x in (found.median, found.low, found.high))) for step, found in steps.items()
    ]
    size = sum(array.nbytes for array in arrays.values()) / ITEMS
    report(
        "item_changes",
        f"{ITEMS:,} items of {len(shop.ITEM_FIELDS)} fields, ms; medians of {ROUNDS} rounds; "
        f"records {per_item:.0f} B an item, catalogue {size:.0f} B",
        ("step", "ms", "low", "high"),
        rows,
    )


if __name__ == "__main__":
    main()
