"""What a request does about a store that stalls or is away, and when it stops asking."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest

from ftrie.client.client import Client, RankFailed
from model_store.errors import StoreUnavailable
from model_store.store import Store
from server.errors import DeadlinePassed
from server.ranking.store_reads import FAILURES_BEFORE_PAUSE, LONGEST_PAUSE_S, Breaker, StoredReads
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


def test_after_three_failures_the_store_is_left_alone_and_then_found_again(
    client: Client, store: Store
) -> None:
    with stalled(store):
        answers = [client.rank(cookie="u1", candidates=["item-1"]) for _ in range(FAILURES_BEFORE_PAUSE + 1)]
    assert "next try in" in answers[-1].degraded[0].detail
    eventually(lambda: client.rank(cookie="u1", candidates=["item-1"]).degraded == ())


def test_near_its_deadline_a_request_does_not_ask_the_store(store: Store, store_url: str) -> None:
    reads = StoredReads(store_url)
    reads.connect()
    for remaining_s, error in ((0.003, StoreUnavailable), (-0.1, DeadlinePassed)):
        with stalled(store), pytest.raises(error, match="deadline"):
            reads.items(["item-1"], SimpleNamespace(time_remaining=lambda: remaining_s))  # type: ignore[arg-type]  # noqa: B023
    reads.close()


def test_the_breaker_lets_one_caller_try_after_each_pause_and_doubles_it() -> None:
    clock = [100.0]
    breaker = Breaker(lambda: clock[0])
    for _ in range(FAILURES_BEFORE_PAUSE):
        assert breaker.pause_s() == 0.0
        breaker.failed()
    pauses = []
    for _ in range(8):
        pauses.append(breaker.pause_s())
        clock[0] += pauses[-1]
        assert breaker.pause_s() == 0.0
        assert breaker.pause_s() > 0.0
        breaker.failed()
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert pauses[-1] == LONGEST_PAUSE_S
    breaker.succeeded()
    assert breaker.pause_s() == 0.0
