"""The experiment on disk: what a server divides its traffic by that starts while the store is away or empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftrie.client.client import Client
from model_store.errors import ArtefactError, OutputError
from model_store.store import Store
from model_store.versions.experiments import Experiment
from server.settings import Settings
from server.sync.last_good import KeptExperiments
from tests.server import shop
from tests.server.one_process import Server
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


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"check": "", "experiment": 3}', b"\xff"])
def test_a_damaged_file_is_told_and_not_used(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "ads.json").write_bytes(damage)
    with pytest.raises(ArtefactError, match=r"ads\.json is damaged"):
        KeptExperiments(tmp_path).load("ads")


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    kept = KeptExperiments(tmp_path)
    kept.save("ads", RECORD.to_json())
    file = tmp_path / "ads.json"
    file.write_bytes(file.read_bytes().replace(b"autumn", b"auturn"))
    with pytest.raises(ArtefactError, match="checksum"):
        kept.load("ads")


def test_a_disk_that_takes_nothing_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        KeptExperiments(tmp_path / "file").save("ads", RECORD.to_json())


def test_a_server_that_starts_without_its_store_divides_as_before(
    shop_store: Store, store_url: str, tmp_path: Path
) -> None:
    settings = Settings((shop.NAME,), store_url, drain_s=1.0, store_budget_s=0.2, state=str(tmp_path))

    def life(lives: Callable[[Server, Client], None]) -> None:
        server = Server(settings)
        server.startup()
        try:
            assert server.ready.wait(180)
            with Client(server.address, timeout_s=20.0) as client:
                lives(server, client)
        finally:
            server.drain()
            server.shutdown()

    def variants(client: Client) -> set[str]:
        return {client.rank(cookie=f"c{n}", candidates=["item-1"]).variant for n in range(30)}

    def first(server: Server, client: Client) -> None:
        shop_store.model(shop.NAME).experiments.change(lambda before: before.stopped("plain"))
        eventually(lambda: variants(client) == {"plain"})

    def second(server: Server, client: Client) -> None:
        assert variants(client) == {"plain"}
        shop.fill(shop_store)  # the store is back, and knows of no experiment: the last one stays in force
        assert variants(client) == {"plain"}
        shop_store.model(shop.NAME).experiments.clear()
        eventually(lambda: variants(client) == {"base", "plain"})

    life(first)
    shop_store.client.flushall()
    life(second)
