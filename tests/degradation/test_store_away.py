"""docs/degradation.md, "The store": it refuses, stalls, breaks off, comes back, is empty, was flushed."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from ftrie.client import RankFailed
from model_store.store import Store
from tests.degradation.system import Proxy, Running, Valkey, eventually, serving
from tests.server import shop

CANDIDATES = list(shop.ITEMS)
BUDGET = ("--store-budget", "150")


def known_user(running: Running, cookie: str = "u1") -> tuple[str, ...]:
    """What `degraded` says of a request that needs the user's record; its scores are always whole or said not to be."""
    answer = running.client.rank(cookie=cookie, candidates=["item-1"], variant="base")
    fields = {**shop.ITEMS["item-1"], "device": cookie}
    whole = shop.expected_score({**fields, **shop.USERS.get(cookie, {})}, 0, seed=answer.version)
    without = shop.expected_score(fields, 0, seed=answer.version)
    stale = any("stale" in reason for reason in answer.degraded)
    expected = whole if not answer.degraded or stale else without
    assert answer.items[0].score == pytest.approx(expected)
    return answer.degraded


def test_store_refuses_while_serving(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, *BUDGET, "--user-ttl", "0.2") as running:
        running.await_ready()
        assert known_user(running) == ()
        valkey.kill()
        eventually(lambda: any("stale" in reason for reason in known_user(running)), "a stale answer")
        assert any(reason.startswith("user_features: ") for reason in known_user(running, "u2"))
        assert running.healthy()
        eventually(lambda: running.model()["store_away"], "store_away")
        eventually(lambda: running.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
        eventually(lambda: running.metric("ftrie_degraded_total", part="user_features") > 0, "the count")
        with pytest.raises(RankFailed) as failed:
            running.client.rank(candidate_set="front")
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE


def test_store_comes_back_with_its_data(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, *BUDGET, "--user-ttl", "0.2") as running:
        running.await_ready()
        valkey.kill()
        eventually(lambda: known_user(running, "u2") != (), "a degraded answer")
        valkey.start()
        with Store.open(valkey.url) as store:
            shop.fill(store)
            version = shop.publish(store, seed=2)
        eventually(lambda: running.client.rank(candidates=["item-1"]).version == version, "the new version")
        eventually(lambda: known_user(running, "u2") == (), "a whole answer")
        eventually(lambda: running.metric("ftrie_store_away", model="shop") == 0, "ftrie_store_away")


def test_store_stalls(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, *BUDGET, "--user-ttl", "0.2") as running:
        running.await_ready()
        valkey.stall()
        assert any(reason.startswith("user_features: ") for reason in known_user(running, "u2"))
        assert running.healthy()
        inline = running.client.rank(
            candidates=["item-1"], user={"age": "20", "likes": ["red"], "device": "x"}, cookie="x"
        )
        assert inline.degraded == ()
        valkey.go_on()
        eventually(lambda: known_user(running, "u2") == (), "a whole answer")


def test_store_dies_in_the_middle_of_an_answer(valkey: Valkey, tmp_path: Path) -> None:
    proxy = Proxy(valkey.port)
    with serving(proxy.url, tmp_path, *BUDGET, "--user-ttl", "0.2") as running:
        running.await_ready()
        assert known_user(running) == ()
        proxy.cut_after = 20
        for _ in range(10):
            known_user(running, "u2")
        assert proxy.cuts
        proxy.cut_after = None
        eventually(lambda: known_user(running, "u2") == (), "a whole answer")
    proxy.close()


def test_store_away_at_start_and_nothing_on_disk(valkey: Valkey, tmp_path: Path) -> None:
    valkey.kill()
    with serving(valkey.url, tmp_path) as running:
        with pytest.raises(RankFailed) as failed:
            running.client.rank(candidates=["item-1"])
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE
        assert not running.healthy()
        assert running.metric("ftrie_ready", model="shop") == 0
        valkey.start()
        with Store.open(valkey.url) as store:
            shop.fill(store)
        running.await_ready()
        assert running.healthy()
        assert known_user(running) == ()


def test_store_away_at_start_and_a_good_model_on_disk(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path) as running:
        running.await_ready()
        before = running.client.rank(candidates=CANDIDATES, variant="base").items
    valkey.kill()
    with serving(valkey.url, tmp_path, *BUDGET) as running:
        running.await_ready()
        answer = running.client.rank(candidates=CANDIDATES, variant="base")
        assert answer.items == before
        assert any(reason.startswith("model: ") for reason in answer.degraded)
        assert running.healthy()
        assert running.model()["source"] == "disk"
        assert running.metric("ftrie_serving_from_disk", model="shop") == 1
        valkey.start()
        with Store.open(valkey.url) as store:
            shop.fill(store, seed=2)
        eventually(lambda: running.model()["source"] == "store", "a model from the store")
        eventually(lambda: running.client.rank(candidates=CANDIDATES).degraded == (), "a whole answer")
        wanted = shop.expected_score(shop.ITEMS["item-1"], 0, seed=2)
        answer = running.client.rank(candidates=["item-1"], variant="base")
        assert answer.items[0].score == pytest.approx(wanted)


def test_store_is_empty_at_start(valkey: Valkey, tmp_path: Path) -> None:
    with Store.open(valkey.url) as store:
        store.client.flushall()
        with serving(valkey.url, tmp_path) as running:
            with pytest.raises(RankFailed) as failed:
                running.client.rank(candidates=["item-1"])
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert not running.healthy()
            shop.fill(store)
            running.await_ready()
            assert running.healthy()


def test_store_was_flushed_while_serving(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, *BUDGET) as running, Store.open(valkey.url) as store:
        running.await_ready()
        before = running.client.rank(candidates=CANDIDATES, variant="base").items
        store.client.flushall()
        eventually(lambda: bool(running.model()["problem"]), "a problem in the status")
        answer = running.client.rank(candidates=CANDIDATES, variant="base")
        assert answer.items == before
        assert running.healthy()
        shop.fill(store, seed=2)
        wanted = shop.expected_score(shop.ITEMS["item-1"], 0, seed=2)
        eventually(
            lambda: (
                running.client.rank(candidates=["item-1"], variant="base").items[0].score
                == pytest.approx(wanted)
            ),
            "the new model",
        )
        eventually(lambda: not running.model()["problem"], "the end of the problem")
