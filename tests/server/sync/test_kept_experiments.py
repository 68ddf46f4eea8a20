"""The experiment on disk: what a server divides its traffic by that starts while the store is away or empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftrie.client.client import Client
from model_store.errors import ArtefactError, OutputError
from model_store.store import Store
from model_store.versions.experiments import Experiment
from server.sync.last_good import KeptExperiments
from tests.server import shop
from tests.server.one_process import Server
from tests.server.sync.served_models import asking, end
from tests.waiting import eventually

RECORD = Experiment(revision=3, shares={"plain": 1.0}, pins={"ü": "base"}, salt="autumn")


def test_a_record_is_kept_replaced_and_forgotten(tmp_path: Path) -> None:
    kept = KeptExperiments(tmp_path / "new")
    assert kept.load("ads") is None
    kept.save("ads", None)
    kept.save("ads", Experiment().to_json())
    kept.save("ads", RECORD.to_json())
    assert KeptExperiments(tmp_path / "new").load("ads") == RECORD
    kept.save("ads", None)
    assert kept.load("ads") is None


def test_a_damaged_file_is_told_and_not_used(tmp_path: Path) -> None:
    kept, file = KeptExperiments(tmp_path), tmp_path / "ads.json"
    kept.save("ads", RECORD.to_json())
    flipped = file.read_bytes().replace(b"autumn", b"auturn")
    for damage, told in (
        (b"", r"ads\.json is damaged"),
        (b"{}", r"ads\.json is damaged"),
        (b'{"check": "", "experiment": 3}', r"ads\.json is damaged"),
        (b"\xff", r"ads\.json is damaged"),
        (flipped, "checksum"),
    ):
        file.write_bytes(damage)
        with pytest.raises(ArtefactError, match=told):
            kept.load("ads")
    with pytest.raises(OutputError):  # a disk that takes nothing
        KeptExperiments(file).save("ads", RECORD.to_json())


def test_a_server_that_starts_without_its_store_divides_as_before(
    shop_store: Store, start: Callable[..., Server], tmp_path: Path
) -> None:
    def variants(client: Client) -> set[str]:
        return {client.rank(cookie=f"c{n}", candidates=["item-1"]).variant for n in range(30)}

    first = start(state=str(tmp_path))
    with asking(first) as client:
        shop_store.model(shop.NAME).experiments.change(lambda before: before.stopped("plain"))
        eventually(lambda: variants(client) == {"plain"})
    end(first)
    shop_store.client.flushall()
    with asking(start(state=str(tmp_path))) as client:
        assert variants(client) == {"plain"}
        shop.fill(shop_store)  # the store is back, and knows of no experiment: the last one stays in force
        assert variants(client) == {"plain"}
        shop_store.model(shop.NAME).experiments.clear()
        eventually(lambda: variants(client) == {"base", "plain"})
