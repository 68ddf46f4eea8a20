"""From an order by two models to what the second one learns of it: server, streams, trainer, and its own metrics."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from ftrie.cli import run
from model_store.store import Store
from model_store.versions.online_metrics import CTR_UNIT
from tests.server import shop
from tests.server.one_process import serving
from tests.server.ranking.test_two_models import purchase
from tests.waiting import eventually

REQUESTS = 30
SPEC = shop.SPEC.replace('name = "shop"', 'name = "purchase"').replace(
    'label = "click"', 'label = "click"\nrows = "clicked"\nitem = "id"'
) + (
    '[join]\npositive = "conversion"\nwindow = "1h"\n'
)  # fmt: skip


def test_a_trainer_learns_what_followed_the_clicks_of_an_order_by_two_models(tmp_path: Path) -> None:
    """Given answers by ctr * purchase.ctr, with clicks and conversions: purchase is judged by what it predicted."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        shop.fill(store)
        versions = store.model("purchase")
        versions.activate(versions.publish(purchase()))
        expected, converted = 0.0, 0
        with (
            serving(store.url, "shop", "purchase", impressions=("store",)) as server,
            Client(server.address, 20.0) as client,
        ):
            for n in range(REQUESTS):
                asked: dict[str, Any] = {"cookie": f"u{1 + n % 2}", "candidates": [*shop.ITEMS], "top_k": 4}
                asked["context"] = {"hour": shop.HOURS[0], "distance": 2.5}
                answer = client.rank("shop", **asked, objective="ctr * purchase.ctr", request_id=f"r{n}")
                clicked = answer.items[n % 4]
                assert clicked.models is not None
                expected += clicked.models["purchase"].ctr
                told = [Feedback(f"r{n}", clicked.id)]
                if n % 3 == 0:
                    told.append(Feedback(f"r{n}", clicked.id, "conversion"))
                    converted += 1
                client.feedback("shop", told)
            eventually(lambda: len(store.impressions("shop").read((0, 0), 1_000).payloads) == REQUESTS)
        (tmp_path / "purchase.toml").write_text(SPEC)
        keys = store.model("shop").keys
        sources = ["--from", f"store#{keys.impressions}", "--from", f"store#{keys.clicks}"]
        flags = ["--store", store.url, "--checkpoint", str(tmp_path / "state"), "--once", "--activate"]
        assert run(["trainer", str(tmp_path / "purchase.toml"), *sources, *flags]) == 0
        now = int(time.time()) // 60
        cells = [cell.sums for _, cell in store.model("purchase").online.read(now - 60, now + 2, now)]
        assert sum(each.shown for each in cells) == REQUESTS
        assert sum(each.positives for each in cells) == converted == REQUESTS / 3
        assert sum(each.ctr_nano for each in cells) * CTR_UNIT == pytest.approx(expected)
        assert versions.active() == 2
