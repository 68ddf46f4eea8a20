"""Calls that one thread takes at once: their users are read together, and each is answered as if it were alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc
import pytest

from ctr.v1.ranking_pb2 import DEGRADATION_REASON_UNAVAILABLE, RankRequest, RankResponse
from model_store.keys import USER, record_key
from model_store.store import Store
from server.ranking.features import UserFields
from server.ranking.resolve import Resolver
from server.ranking.users import PendingRead, Users
from server.serve.gate import MOST_TOGETHER
from server.serve.grpc_server import IN_PROGRESS
from server.serve.ranking_service import RANK, RankingService
from tests.server import shop
from tests.server.one_process import Server
from tests.stalling import stalled
from tests.waiting import eventually

BUDGET_S = 4.0  # so long that a busy machine does not blur which call waits for what
HELD = "held"


class Crowd:
    """A server with one thread, which a call holds until `release`, so that the calls after it wait together."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.go, self.begun = threading.Event(), threading.Event()
        self.shared: list[list[str]] = []
        self.channel = grpc.insecure_channel(server.address)
        self._rank = self.channel.unary_unary(RANK, RankRequest.SerializeToString, RankResponse.FromString)
        answer, read = RankingService._answer, Users.read_together

        def held(service: RankingService, message: Any, request_id: str, *rest: Any) -> bytes:
            if request_id == HELD:
                self.begun.set()
                assert self.go.wait(60)
            return answer(service, message, request_id, *rest)

        def noted(
            users: Users, cookies: Iterable[str], model: str, wanted: UserFields, wait_s: float
        ) -> Mapping[str, PendingRead]:
            reads = read(users, cookies, model, wanted, wait_s)
            self.shared.append(list(reads))
            return reads

        monkeypatch.setattr(RankingService, "_answer", held)
        monkeypatch.setattr(Users, "read_together", noted)

    def call(self, request_id: str, timeout_s: float = 20.0, **fields: Any) -> Any:
        return self._rank.future(
            RankRequest(request_id=request_id, item_ids=list(shop.ITEMS), **fields), timeout=timeout_s
        )

    def wait_together(self, *calls: dict[str, Any]) -> list[Any]:
        """Make calls that all wait for the one thread, which is held."""
        self.go.clear()
        self.begun.clear()
        held = self.call(HELD)
        assert self.begun.wait(20)
        waiting = [self.call(f"call-{n}", **fields) for n, fields in enumerate(calls)]
        eventually(lambda: self._in_progress() == 1 + len(calls))
        time.sleep(0.1)  # counted when it begins; its message comes with it
        assert not held.done()
        return waiting

    def _in_progress(self) -> float:
        taken = self.server._worker._meter.take()["gauges"]
        return float({name: value for name, _, value in taken}[IN_PROGRESS.name])


@pytest.fixture
def crowd(shop_store: Store, start: Callable[..., Server], monkeypatch: Any) -> Iterator[Crowd]:
    server = start(threads=1, store_budget_s=BUDGET_S)
    assert server.ready.wait(180)
    made = Crowd(server, monkeypatch)
    made.go.set()
    eventually(lambda: not made.call("first", cookie="u1").result().degraded)  # opens the thread's connection
    server._worker._service.forget()
    yield made
    made.go.set()
    made.channel.close()


def outcome(call: Any) -> object:
    try:
        return call.result()
    except grpc.RpcError as error:
        return error.code(), error.details()  # type: ignore[attr-defined]


def test_each_call_is_answered_as_if_it_were_alone(crowd: Crowd, store: Store) -> None:
    store.client.set(record_key(USER, "no hash"), "text")
    context = RankRequest(cookie="u1").context
    context.values["distance"].number = 3.0
    user = RankRequest().user
    user.values["age"].text = "40"
    calls: list[dict[str, Any]] = [
        {"cookie": "u1"},
        {"cookie": "no hash"},
        {"cookie": "u2", "user": user},
        {},
        {"cookie": "x" * 5000},
        {"cookie": "nobody"},
        {"cookie": "u2"},
        {"cookie": "u1", "context": context},
    ]
    assert len(calls) == MOST_TOGETHER
    waiting = crowd.wait_together(*calls)
    crowd.go.set()
    together = [outcome(call) for call in waiting]
    assert crowd.shared == [["u1", "no hash", "u2", "nobody"]]
    alone = []
    for n, fields in enumerate(calls):
        crowd.server._worker._service.forget()
        alone.append(outcome(crowd.call(f"call-{n}", **fields)))
    assert together == alone
    assert len(crowd.shared) == 1
    degraded = [len(each.degraded) for each in together if isinstance(each, RankResponse)]
    assert degraded == [0, 1, 0, 0, 0, 0, 0]
    assert isinstance(together[4], tuple)
    assert together[4][0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.slow
def test_calls_wait_together_for_a_stalled_store_as_long_as_each_may_and_others_not_at_all(
    crowd: Crowd, store: Store
) -> None:
    began = time.monotonic()
    waiting = crowd.wait_together(
        {"cookie": "u1"},
        {"cookie": "hurried", "timeout_s": 2 * BUDGET_S},
        {"cookie": "late", "timeout_s": BUDGET_S},
        {"cookie": "u2"},
        {},
    )
    patient, (hurried, late, reads_nothing) = [waiting[0], waiting[3]], (*waiting[1:3], waiting[4])
    assert outcome(late)[0] is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[index]
    time.sleep(max(began + 1.5 * BUDGET_S - time.monotonic(), 0.0))  # the hurried call has half a budget left
    with stalled(store):
        began = time.monotonic()
        crowd.go.set()
        assert not reads_nothing.result().degraded
        of_hurried = outcome(hurried)
        assert not any(call.done() for call in patient)
        reasons = [call.result().degraded[0].reason for call in patient]
        took_s = time.monotonic() - began
    assert crowd.shared == [["u1", "hurried", "u2"], ["u1", "u2"]]
    if isinstance(of_hurried, RankResponse):  # else the answer took longer than the margin of 4 ms
        assert "no answer within" in of_hurried.degraded[0].detail
    assert reasons == [DEGRADATION_REASON_UNAVAILABLE] * 2
    assert BUDGET_S * 0.9 < took_s < 1.75 * BUDGET_S


def test_a_read_that_is_shared_counts_for_each_call_and_one_that_fails_fails_none(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    crowd.server._worker._meter.take()
    waiting = crowd.wait_together({"cookie": "u1"}, {"cookie": "u2"}, {"cookie": "u1"})
    crowd.go.set()
    assert not any(call.result().degraded for call in waiting)
    assert crowd.shared == [["u1", "u2"]]
    counts = crowd.server._worker._meter.take()["counts"]
    assert sum(value for name, labels, value in counts if "user_cache" in name and "miss" in labels) == 3
    waiting = crowd.wait_together({"cookie": "u1"}, {}, {"cookie": "u2"})
    monkeypatch.setattr(Resolver, "read_together", fails)
    crowd.go.set()
    assert not any(call.result().degraded for call in waiting)
