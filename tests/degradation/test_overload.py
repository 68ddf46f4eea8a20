"""docs/degradation.md, "Load": more calls than a worker takes, and calls that have waited too long.

Calls take long while the store stalls, until the server leaves the store alone: so each attempt has a stall of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from ctr.v1.ranking_pb2 import RankRequest
from ftrie.api.access import CallFailed
from ftrie.api.client import METHOD
from tests.degradation.conftest import PLACES, THREADS
from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import CANDIDATES, WholeShop
from tests.waiting import eventually

AT_ONCE = 4 * PLACES
OK, EXHAUSTED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
SHORT_S = 0.03


@contextmanager
def calls_take_long(whole: WholeShop) -> Iterator[list[str]]:
    """Calls for the users given take the store's budget; afterwards the store is as it was."""
    users = [whole.new_user() for _ in range(AT_ONCE)]
    whole.valkey.stall()
    try:
        yield users
    finally:
        whole.valkey.go_on()
    eventually(lambda: whole.degraded(whole.new_user()) == (), "a whole answer")


@contextmanager
def connected(whole: WholeShop) -> Iterator[grpc.UnaryUnaryMultiCallable]:
    """The method, over a connection that is there."""
    with grpc.insecure_channel(whole.running.address) as channel:
        grpc.channel_ready_future(channel).result(20.0)
        yield channel.unary_unary(METHOD, request_serializer=RankRequest.SerializeToString)


def calls(whole: WholeShop, requests: Sequence[RankRequest]) -> list[grpc.Future]:
    with connected(whole) as ask:
        ended = [ask.future(request, timeout=20.0) for request in requests]
        for call in ended:
            call.exception()  # waits
        return ended


def asking_for(user: str) -> RankRequest:
    return RankRequest(item_ids=["item-1"], cookie=user, variant="base")


def test_more_calls_than_a_worker_takes(whole: WholeShop, recovered: Recovered) -> None:
    refused: list[grpc.Future] = []

    def some_are_refused() -> bool:
        with calls_take_long(whole) as users:
            ended = calls(whole, list(map(asking_for, users)))
            assert whole.running.healthy()
        assert {call.code() for call in ended} <= {OK, EXHAUSTED}
        refused.extend(call for call in ended if call.code() is EXHAUSTED)
        return len(refused) > 0

    eventually(some_are_refused, "calls that are refused")
    for call in refused:
        after_s = CallFailed.of("", call).retry_after_s
        pushback = dict(call.trailing_metadata())["grpc-retry-pushback-ms"]
        assert after_s is not None and 20 <= int(pushback) == round(1000 * after_s) <= 100
    eventually(lambda: whole.metric("ftrie_places") == PLACES, "the number of places")
    eventually(lambda: whole.metric("ftrie_refused_total", reason="overload") >= len(refused), "the count")
    recovered.then(lambda: whole.degraded("u1") == (), "answers are whole")


def test_deadline_has_passed_before_a_thread_is_free(whole: WholeShop, recovered: Recovered) -> None:
    late = RankRequest(item_ids=CANDIDATES, variant="plain")

    def computed() -> float:
        return whole.metric("ftrie_call_seconds_count", variant="plain")

    def counted_late() -> float:
        """How many calls like the late one were computed: one more is made, and waited for in the counts."""
        before = computed()
        (call,) = calls(whole, [late])
        assert call.code() is OK
        eventually(lambda: computed() > before, "its count")
        return computed()

    def waited_in_vain() -> bool:
        before = counted_late()
        with connected(whole) as ask, calls_take_long(whole) as users:
            # Over one connection, so that they arrive in this order.
            holding = [ask.future(asking_for(user), timeout=20.0) for user in users[:THREADS]]
            call = ask.future(late, timeout=SHORT_S)
            assert {each.code() for each in holding} == {OK}
        return call.code() is grpc.StatusCode.DEADLINE_EXCEEDED and counted_late() == before + 1

    eventually(waited_in_vain, "a call whose deadline passes, and that is not computed")
    recovered.then(lambda: whole.degraded("u1") == (), "answers are whole")
