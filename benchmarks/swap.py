"""A million keys from an artefact to an answer: publish, and how soon a running server answers with the new version.

python -m benchmarks.swap
"""

from __future__ import annotations

import tempfile
import time

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, report
from benchmarks.processes import served
from ftrie.api.client import Client
from model_store.store import Store


def main() -> None:
    models = [shop.artefact(seed) for seed in range(ROUNDS)]
    publish_s: list[float] = []
    follow_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        with Store.open(url) as store:
            store.records.put_items(shop.records(shop.ITEM_FIELDS, "item-", shop.ITEMS, seed=1))
            versions = store.model(shop.NAME)
            versions.activate(versions.publish(shop.artefact(seed=99)))
            with (
                served(shop.NAME, "--store", url, pinned=False) as server,
                Client(server.address) as client,
            ):
                for model in models:
                    began = time.perf_counter()
                    version = versions.publish(model)
                    versions.activate(version)
                    published = time.perf_counter()
                    while client.rank(candidates=["item-1"], top_k=1).version != version:
                        time.sleep(0.005)
                    publish_s.append(published - began)
                    follow_s.append(time.perf_counter() - published)
    rows = []
    for name, seconds in (
        ("publish and activate", publish_s),
        ("fetch, verify, build, warm, swap", follow_s),
    ):
        spread = Spread.of(seconds)
        rows.append((name, round(spread.median, 3), round(spread.low, 3), round(spread.high, 3)))
    report(
        "swap",
        f"{shop.KEYS:,} keys and {shop.ITEMS:,} items, from an artefact in memory to the first answer; "
        f"{ROUNDS} rounds",
        ("step", "median s", "low s", "high s"),
        rows,
    )


if __name__ == "__main__":
    main()
