"""docs/degradation.md, "The store": what a server begins with when its store is away, refuses it, or holds nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import pytest

from ftrie.api.client import RankFailed
from ftrie.demo.processes import free_port
from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, serving
from tests.degradation.whole_shop import WholeShop, whole_shop
from tests.server import shop
from tests.waiting import eventually


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server has left on disk that served the model 1."""
    folder = tmp_path_factory.mktemp("kept")
    with whole_shop(folder):
        pass
    return folder / "state"


def answers_nothing(running: Running) -> None:
    """It says so, to callers and to who asks for its health."""
    assert not running.healthy()  # waits for the port, which the worker opens
    said = "still loading, or no version of it is active|is not served here: "
    with pytest.raises(RankFailed, match=said) as failed:
        running.client.rank(candidates=["item-1"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    assert not running.status()["ready"]
    assert running.metric("ftrie_ready", model="shop") == 0


def serves_once_filled(running: Running, valkey: Valkey, recovered: Recovered, seed: int = 1) -> None:
    with Store.open(valkey.url) as store:
        whole = WholeShop(running, store)
        whole.answers_as(1, seed=1)  # the one that the fixture may have activated
        version = whole.fill(seed)
        recovered.from_now()
        running.await_ready()
        recovered.when(lambda: whole.serves(version), "the model is served")
        recovered.when(lambda: whole.degraded("u1") == (), "answers are whole")
        assert running.healthy()
        assert running.metric("ftrie_ready", model="shop") == 1


@pytest.mark.slow
def test_store_away_at_start_and_nothing_on_disk(tmp_path: Path, recovered: Recovered) -> None:
    port = free_port()
    with serving(f"redis://127.0.0.1:{port}", tmp_path) as running:
        answers_nothing(running)
        eventually(lambda: running.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
        valkey = Valkey(tmp_path, port)
        serves_once_filled(running, valkey, recovered)
    valkey.kill()


@pytest.mark.slow
def test_store_away_at_start_and_a_good_model_on_disk(
    kept: Path, tmp_path: Path, recovered: Recovered
) -> None:
    shutil.copytree(kept, tmp_path / "state")
    port = free_port()
    with serving(f"redis://127.0.0.1:{port}", tmp_path) as running:
        running.await_ready()
        answer = running.client.rank(candidates=list(shop.ITEMS), variant="base")
        wanted = {item: shop.expected_score(fields, 0) for item, fields in shop.ITEMS.items()}
        assert {item.id: item.score for item in answer.items} == pytest.approx(wanted)
        assert any(str(reason).startswith("model: the store is away") for reason in answer.degraded)
        assert running.healthy()
        assert running.model()["source"] == "disk"
        assert running.metric("ftrie_serving_from_disk", model="shop") == 1
        eventually(lambda: running.metric("ftrie_degraded_total", part="model") > 0, "the count")
        valkey = Valkey(tmp_path, port)
        with Store.open(valkey.url) as store:
            whole = WholeShop(running, store)
            version = whole.fill(seed=2)
            whole.answers_as(answer.version, seed=1)
            recovered.then(lambda: whole.serves(version) and whole.follows(), "the store's model is served")
        assert running.metric("ftrie_serving_from_disk", model="shop") == 0
    valkey.kill()


@pytest.mark.slow
def test_copy_on_disk_is_damaged(kept: Path, tmp_path: Path, recovered: Recovered) -> None:
    shutil.copytree(kept, tmp_path / "state")
    parts = sorted((tmp_path / "state").rglob("*.part"))
    assert parts
    for part in parts:
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(bytes(data))
    port = free_port()
    with serving(f"redis://127.0.0.1:{port}", tmp_path) as running:
        said = "the last good model on disk is of no use"
        eventually(lambda: bool(running.logs(said)), "a look at the disk")
        answers_nothing(running)
        valkey = Valkey(tmp_path, port)
        serves_once_filled(running, valkey, recovered)
    valkey.kill()


@pytest.mark.slow
def test_store_is_empty_at_start(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with Store.open(valkey.url) as store:
        store.client.flushall()
    with serving(valkey.url, tmp_path) as running:
        eventually(lambda: "no active version" in running.model()["problem"], "the problem's name")
        answers_nothing(running)
        serves_once_filled(running, valkey, recovered)


@pytest.mark.slow
def test_store_refuses_the_password_at_start(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with Store.open(valkey.url) as store:
        store.client.config_set("requirepass", "another one")
        with serving(valkey.url, tmp_path) as running:
            eventually(lambda: running.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
            answers_nothing(running)
            store.client.config_set("requirepass", "")
            serves_once_filled(running, valkey, recovered)
