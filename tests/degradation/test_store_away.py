"""docs/degradation.md, "The store": while a server serves, its store refuses, stalls, breaks off, is emptied."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from ftrie.api.client import RankFailed
from model_store.store import Store
from tests.degradation.proxy import Proxy
from tests.degradation.recovered import Recovered
from tests.degradation.system import Valkey, serving
from tests.degradation.whole_shop import CANDIDATES, SET, WholeShop
from tests.server import shop
from tests.waiting import eventually


def says(whole: WholeShop, cookie: str, beginning: str) -> bool:
    """Whether an answer for this user says so in `degraded`."""
    return any(reason.startswith(beginning) for reason in whole.degraded(cookie))


def test_store_refuses(whole: WholeShop, recovered: Recovered) -> None:
    read, unread = whole.new_user(), whole.new_user()
    whole.awaits_whole_answer(read)
    members = {item.id for item in whole.client.rank(candidate_set=SET).items}
    whole.valkey.save()
    whole.valkey.kill()
    eventually(lambda: says(whole, read, "user_features: stale"), "a stale answer")
    assert says(whole, unread, "user_features: ")
    unknown = whole.client.rank(candidates=["item-1", "no such item"], variant="base")
    assert any(str(reason).startswith("items: ") for reason in unknown.degraded)
    reasons = lambda: tuple(map(str, whole.client.rank(candidate_set=SET).degraded))  # noqa: E731
    eventually(lambda: reasons()[:1] > ("candidate_set: stale",), "a stale set")
    assert {item.id for item in whole.client.rank(candidate_set=SET).items} == members
    with pytest.raises(RankFailed) as failed:
        whole.client.rank(candidate_set=whole.new_name())
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    assert whole.running.healthy()
    eventually(lambda: whole.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
    for part in ("user_features", "items", "candidate_set"):
        eventually(lambda part=part: whole.metric("ftrie_degraded_total", part=part) > 0, part)
    for result in ("stale", "failed"):
        eventually(lambda result=result: whole.metric("ftrie_user_cache_total", result=result) > 0, result)
    eventually(lambda: whole.metric("ftrie_errors_total", status="UNAVAILABLE") > 0, "the error's count")

    whole.valkey.start()
    recovered.then(lambda: whole.degraded(unread) == (), "answers are whole")
    recovered.when(whole.follows, "versions are followed")
    assert whole.metric("ftrie_store_away", model="shop") == 0


@pytest.mark.slow
def test_store_comes_back_and_reads_its_data(whole: WholeShop, recovered: Recovered) -> None:
    unread = whole.new_user()
    # While it loads, Valkey looks for callers after each KiB: many keys of that size, and a pause after each.
    whole.store.client.mset({f"filler:{number}": os.urandom(1100) for number in range(100)})
    whole.valkey.save()
    whole.valkey.kill()
    eventually(lambda: says(whole, unread, "user_features: "), "a degraded answer")
    whole.valkey.start(load_delay_us=10_000)
    eventually(lambda: any("LOADING" in reason for reason in whole.degraded(unread)), "its word for it")
    assert whole.running.healthy()
    eventually(whole.valkey.answers, "all of its data")
    recovered.then(lambda: whole.degraded(unread) == (), "answers are whole")
    recovered.when(whole.follows, "versions are followed")


@pytest.mark.slow
def test_store_stalls(whole: WholeShop, recovered: Recovered) -> None:
    unread = whole.new_user()
    whole.valkey.stall()
    assert says(whole, unread, "user_features: ")
    assert whole.running.healthy()
    inline = {"age": "20", "likes": ["red"], "device": "x"}
    assert whole.client.rank(candidates=["item-1"], user=inline, cookie="x").degraded == ()
    eventually(lambda: whole.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
    whole.valkey.go_on()
    recovered.then(lambda: whole.degraded(unread) == (), "answers are whole")
    recovered.when(whole.follows, "versions are followed")


def test_store_dies_in_the_middle_of_answers(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    proxy = Proxy(valkey.port)
    with serving(proxy.url, tmp_path, "--user-ttl", "0") as running, Store.open(valkey.url) as store:
        running.await_ready()
        whole = WholeShop(running, store)
        whole.answers_as(1, seed=1)
        whole.awaits_whole_answer("u1")
        proxy.cut_after = 20
        version = whole.publish(seed=2)
        eventually(lambda: says(whole, "u2", "user_features: ") and proxy.cuts > 10, "answers cut off")
        eventually(lambda: whole.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
        assert whole.ask("u1").version == 1
        assert running.healthy()
        proxy.cut_after = None
        recovered.then(lambda: whole.degraded("u2") == (), "answers are whole")
        recovered.when(lambda: whole.serves(version), "the new version is served")
    proxy.close()


def test_store_comes_back_empty(whole: WholeShop, recovered: Recovered) -> None:
    before = whole.ask()
    whole.valkey.kill()
    (whole.valkey.folder / "dump.rdb").unlink(missing_ok=True)
    whole.valkey.start()
    stays_as_it_was_until_filled(whole, before.version, recovered)


def test_store_was_flushed(whole: WholeShop, recovered: Recovered) -> None:
    before = whole.ask()
    whole.store.client.flushall()
    stays_as_it_was_until_filled(whole, before.version, recovered)


def stays_as_it_was_until_filled(whole: WholeShop, version: int, recovered: Recovered) -> None:
    """The model stays, and is told from another one of the same number."""
    eventually(lambda: "no active version" in whole.running.model()["problem"], "the problem's name")
    eventually(lambda: says(whole, "", "items: the store lost its data"), "what answers lack")
    assert "the store lost its data" in whole.running.model()["problem"]
    eventually(lambda: whole.metric("ftrie_items_kept", model="shop") == len(shop.ITEMS), "the metric")
    assert whole.ask().version == version
    assert {item.id for item in whole.client.rank(candidates=CANDIDATES).items} == set(shop.ITEMS)
    assert whole.running.healthy()
    with pytest.raises(RankFailed) as failed:
        whole.client.rank(candidate_set=whole.new_name())
    assert failed.value.code is grpc.StatusCode.NOT_FOUND
    eventually(lambda: whole.metric("ftrie_store_away", model="shop") == 0, "a store that is not away")
    sha256 = whole.running.model()["sha256"]
    refilled = whole.fill_with_another_model()
    recovered.then(lambda: whole.serves(refilled) and whole.follows(), "the new model is served")
    assert whole.running.model()["sha256"] != sha256
