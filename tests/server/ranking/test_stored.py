"""What a request does about a store that stalls or is away, and when it stops asking."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from ftrie.api.client import Client, RankFailed
from model_store.clock import Clock
from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from server.errors import DeadlinePassed
from server.ranking import store_reads
from server.ranking.candidates import FRESH_S, MAX_IDS, CandidateSets
from server.ranking.store_reads import (
    FAILURES_BEFORE_PAUSE,
    LONGEST_PAUSE_S,
    Breaker,
    Source,
    StoredReads,
)
from tests.clocks import ManualClock
from tests.server import shop
from tests.stalling import stalled
from tests.waiting import eventually


def test_a_stalled_store_costs_what_is_asked_of_it_and_nothing_else(client: Client, store: Store) -> None:
    user = {"age": "20", "device": "u1", "likes": ["red"]}
    with stalled(store):
        assert client.rank(cookie="u1", candidates=["item-1"], user=user).degraded == ()
        assert client.rank(candidates=["item-1"]).degraded == ()
        answer = client.rank(cookie="u1", candidates=["item-1"], user={"age": "30"}, variant="base")
        items = client.rank(candidates=["item-1", "no such"])
        with pytest.raises(RankFailed) as failed:
            client.rank(candidate_set="front page")
    assert str(answer.degraded[0]).startswith("user_features: ")
    known = {"device": "u1", "age": "30", **shop.ITEMS["item-1"]}
    assert answer.items[0].score == pytest.approx(shop.expected_score(known, 0))
    assert items.unknown_items == ("no such",)
    assert str(items.degraded[0]).startswith("items: ")
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE


def test_after_three_failures_the_store_is_left_alone_then_found_again(client: Client, store: Store) -> None:
    def degraded() -> str:
        return str(client.rank(cookie="u1", candidates=["item-1"]).degraded[0])

    with stalled(store):
        assert all("next try in" not in degraded() for _ in range(FAILURES_BEFORE_PAUSE))
        # On a busy machine more than the first pause may have passed; each one is twice as long as the one before.
        eventually(lambda: "next try in" in degraded())
    eventually(lambda: client.rank(cookie="u1", candidates=["item-1"]).degraded == ())


def test_near_its_deadline_a_request_does_not_ask_the_store(store: Store, store_url: str) -> None:
    reads = StoredReads(store_url)
    reads.connect()
    for remaining_s, error in ((0.003, StoreUnavailable), (-0.1, DeadlinePassed)):
        with stalled(store), pytest.raises(error, match="deadline"):
            reads.items(["item-1"], SimpleNamespace(time_remaining=lambda: remaining_s))  # type: ignore[arg-type]  # noqa: B023
    reads.close()


def test_the_breaker_lets_one_caller_try_after_each_pause_and_doubles_it() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    for _ in range(FAILURES_BEFORE_PAUSE):
        assert breaker.pause_s() == 0.0
        breaker.failed()
    pauses = []
    for _ in range(8):
        pauses.append(breaker.pause_s())
        clock.advance(pauses[-1])
        assert breaker.pause_s() == 0.0
        assert breaker.pause_s() > 0.0
        breaker.failed()
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert pauses[-1] == LONGEST_PAUSE_S
    breaker.succeeded()
    assert breaker.pause_s() == 0.0


def test_threads_that_are_the_first_to_read_share_one_breaker(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2)

    class Slow(Breaker):
        def __init__(self, clock: Clock) -> None:
            together.wait(20)
            super().__init__(clock)

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    def read() -> None:
        with pytest.raises(StoreUnavailable):
            source.read(away, 1.0)

    monkeypatch.setattr(store_reads, "Breaker", Slow)
    source = Source.of(store, budget_s=1.0)
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source._breakers[""]._failures == 2


PATIENT: Any = SimpleNamespace(time_remaining=lambda: None)
CLOCK = ManualClock()


@pytest.fixture
def sets(store: Store, store_url: str) -> Iterator[CandidateSets]:
    store.records.put_candidates("home", ["b", "a"])
    reads = StoredReads(store_url, budget_s=1.0, clock=CLOCK)
    reads.connect()
    yield CandidateSets(reads)
    reads.close()


def test_a_set_is_kept_for_a_moment_then_read_again_and_served_on_while_the_store_is_away(
    store: Store, sets: CandidateSets
) -> None:
    assert sets.members("home", PATIENT) == (["b", "a"], [])
    assert sets.members("none", PATIENT) == (None, [])
    store.records.put_candidates("home", ["c"])
    store.records.put_candidates("none", ["d"])
    assert sets.members("home", PATIENT) == (["b", "a"], [])
    assert sets.members("none", PATIENT) == (None, [])
    CLOCK.advance(FRESH_S)
    assert sets.members("home", PATIENT) == (["c"], [])
    assert sets.members("none", PATIENT) == (["d"], [])
    store.client.set("ftrie:candidates:home", "text")
    CLOCK.advance(60.0)
    with stalled(store):
        ids, problems = sets.members("home", PATIENT)
        with pytest.raises(StoreUnavailable):
            sets.members("another", PATIENT)
    assert ids == ["c"]
    assert str(problems[0]).startswith("candidate_set: stale, read 60 s ago: ")
    CLOCK.advance(FRESH_S)
    with pytest.raises(StoreError, match="expected a LIST, SET or ZSET"):
        sets.members("home", PATIENT)


def test_no_more_ids_are_kept_than_there_is_room_for(store: Store, sets: CandidateSets) -> None:
    store.records.put_candidates("big", [str(n) for n in range(9_999)])
    for n in range(2 * MAX_IDS // 10_000):
        store.client.copy("ftrie:candidates:big", f"ftrie:candidates:{n}")
        sets.members(str(n), PATIENT)
        assert sum(kept.size for kept in sets._kept.values()) == sets._ids <= MAX_IDS
