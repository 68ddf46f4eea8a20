"""Real fashion clicks with items from a file of their own: joined, trained, published, served, ranked."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

import pytest

from ftrie.client.client import Client
from model_store.store import Store
from tests.integration.processes import Oracle, ftrie, serving

MODEL = "open_bandit"
USER_FIELDS = ("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3")
ITEM_FIELDS = ("item_feature_0", "item_feature_1", "item_feature_2", "item_feature_3")


@pytest.mark.slow
def test_items_from_their_file_are_ranked_as_the_log_was_learned(
    open_bandit_folder: Path, store: Store, store_url: str
) -> None:
    log, catalogue = open_bandit_folder / "men.csv.gz", open_bandit_folder / "item_context.csv"
    ftrie("train", "examples/open_bandit.toml", log, "--items", catalogue, "--store", store_url, "--activate")
    ftrie("store", "load", "items", catalogue, "--id-column", "item_id", "--store", store_url)
    with catalogue.open(encoding="utf-8") as file:
        items = {row["item_id"]: {name: row[name] for name in ITEM_FIELDS} for row in csv.DictReader(file)}
    oracle = Oracle.of(store, MODEL, 1)
    with gzip.open(log, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    with serving(MODEL, store_url) as address, Client(address, timeout_s=20) as client:
        for row in rows[:: len(rows) // 40]:
            user = {name: row[name] for name in USER_FIELDS}
            context = {"position": row["position"], "hour": row["timestamp"]}
            answer = client.rank(
                MODEL, candidates=list(items), user=user, context=context, variant="base", top_k=len(items)
            )
            wanted = {
                item: oracle.score({**user, **context, **features, "item_id": item}, "base")
                for item, features in items.items()
            }
            assert {i.id: i.score for i in answer.items} == pytest.approx(wanted, abs=1e-9)
            assert [i.ctr for i in answer.items] == sorted((i.ctr for i in answer.items), reverse=True)
            assert all(i.ctr == pytest.approx(1 / (1 + math.exp(-i.score))) for i in answer.items)
            assert (answer.unknown_items, answer.unknown_fields, answer.degraded) == ((), (), ())
