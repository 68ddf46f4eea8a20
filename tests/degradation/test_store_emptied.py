"""docs/operating.md, "A store that lost its data": emptied and restored under load, with a trainer running."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback, ReportFailed
from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.store import Store
from tests.degradation.learning import LONG_S, Learning
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S, Running, Valkey, serving
from tests.server import shop
from tests.waiting import eventually

SPEC = """
[model]
name = "shop"
[input]
label = "click"
cookie = "device"
[fields]
age = { side = "user" }
brand = { side = "item" }
[[crosses]]
fields = ["age", "brand"]
[join]
window = "2s"
lateness = "1s"
"""
CANDIDATES = list(shop.ITEMS)
LIKED = {item for item, fields in shop.ITEMS.items() if fields["brand"] == "b1"}


def spec() -> ModelSpec:
    return parse_spec(SPEC).resolve(["click", "device", "age", "brand"])


def first_model() -> Artefact:
    """Users like one brand, whatever their age."""
    plan = FeaturePlan.of(spec())
    keys = {key for brand in range(4) for key, _, _ in plan.keys({"age": "20", "brand": f"b{brand}"})}
    ordered = sorted(keys)
    weights = np.array([1.0 if key.endswith(b"b1") else -1.0 for key in ordered], np.float32)
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(ordered), np.uint8).copy(),
        key_offsets=np.cumsum([0, *map(len, ordered)]).astype(np.int64),
        weight=weights,
        variants=np.ones(len(ordered), np.uint32),
        rate=np.full_like(weights, 0.1),
        spec=spec(),
        metrics={},
    )


class Load(threading.Thread):
    """Asks for all items again and again, and clicks what users like. `wrong` has every answer that was not right."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._over = threading.Event()
        self.answers = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        with Client(self._address, timeout_s=20.0) as client:
            while not self._over.wait(0.03):
                try:
                    self._ask(client)
                except Exception as error:
                    self.wrong.append(error)

    def _ask(self, client: Client) -> None:
        answer = client.rank(cookie="u1", candidates=CANDIDATES)
        self.answers += 1
        best = {item.id for item in answer.items[: len(LIKED)]}
        if best != LIKED or answer.unknown_items:
            self.wrong.append(answer)
        try:
            client.feedback(shop.NAME, [Feedback(answer.request_id, item) for item in LIKED])
        except ReportFailed:
            return  # the store is being restored: a caller would repeat it

    def end(self) -> None:
        self._over.set()
        self.join()


def every_signal_is_lit(running: Running, trainer: Learning) -> None:
    eventually(lambda: "lost its data" in running.model()["problem"], "the problem in /healthz")
    eventually(lambda: running.metric("ftrie_items_kept", model="shop") == len(CANDIDATES), "the metric")
    said = [str(each) for each in running.client.rank(cookie="u1", candidates=CANDIDATES).degraded]
    assert any(each.startswith("items: the store lost its data: 12 items") for each in said)
    eventually(lambda: running.metric("ftrie_degraded_total", part="items") > 0, "answers are counted")
    eventually(lambda: trainer.status()["store_losses"] == 1, "the trainer's status", LONG_S)
    assert "THE STORE LOST ITS DATA" in trainer.said()
    eventually(lambda: trainer.metric("ftrie_trainer_store_losses_total") == 1, "the trainer's metric")


@pytest.mark.slow
def test_store_is_emptied_and_restored_under_load(tmp_path: Path, recovered: Recovered) -> None:
    valkey = Valkey(tmp_path)
    with Store.open(valkey.url) as store:
        store.records.put_users(shop.USERS.items())
        store.records.put_items(shop.ITEMS.items())
        versions = store.model(shop.NAME)
        versions.activate(versions.publish(first_model()))
    with serving(valkey.url, tmp_path, "--impressions", "store", "--user-ttl", "0.2") as running:
        running.await_ready()
        load = Load(running.address)
        load.start()
        (tmp_path / "trainer").mkdir()
        trainer = Learning(tmp_path / "trainer", valkey.url, ["--init-from", "active", "--every", "1s"], SPEC)
        try:
            eventually(lambda: trainer.has("examples", 60), "it learns", COMPILE_S)
            eventually(lambda: (running.model()["version"] or 0) > 2, "its versions are served", LONG_S)
            valkey.save()
            lost = running.model()["sha256"]
            with Store.open(valkey.url) as store:
                store.client.flushall()
            every_signal_is_lit(running, trainer)
            eventually(lambda: running.model()["sha256"] != lost, "what is learned is served", LONG_S)
            valkey.kill()  # and comes back with the backup
            valkey.start()
            for kind, id_column, records in (("users", "cookie", shop.USERS), ("items", "item", shop.ITEMS)):
                lines = [json.dumps({id_column: name, **record}) for name, record in records.items()]
                file = tmp_path / f"{kind}.jsonl"
                file.write_text("\n".join(lines) + "\n")
                assert run(["store", "load", kind, str(file), "--store", valkey.url]) == 0
            recovered.then(lambda: running.model()["problem"] == "", "nothing is kept any more", LONG_S)
            asked = {"cookie": "u1", "candidates": CANDIDATES}
            recovered.when(lambda: running.client.rank(**asked).degraded == (), "answers are whole", LONG_S)  # type: ignore[arg-type]
            learned = trainer.status()["examples"]
            eventually(lambda: trainer.has("examples", learned + 60), "it learns on", LONG_S)
            version = trainer.status()["version"]
            eventually(lambda: (running.model()["version"] or 0) > version, "it is served again", LONG_S)
            assert trainer.status()["counts"]["unknown_items"] == 0
        finally:
            load.end()
            trainer.kill()
    valkey.kill()
    assert load.answers > 60
    assert load.wrong == []
