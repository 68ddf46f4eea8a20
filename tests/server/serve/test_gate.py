"""More callers than places: who is refused is told so at once, who waits is answered, health always is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ftrie.api.access import CallFailed
from server.serve import gate as pools
from server.serve import grpc_server as grpc_server_module
from server.serve.gate import REFUSED, RETRY_AFTER_MS, CallPool
from server.serve.grpc_server import IN_PROGRESS, PLACES, REFLECTION_PLACES
from server.telemetry.meter import Meter
from tests.server import echo
from tests.server.one_process import Server
from tests.waiting import eventually

THREADS, WAITING = 2, 3
BIG = b"x" * (8 << 20)


class Slow:
    """A service whose calls end when they are let go; counts those that have begun to compute."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.computed: list[bytes] = []

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        slow = grpc.unary_unary_rpc_method_handler(self.Wait)
        return grpc.method_handlers_generic_handler("test.Slow", {"Wait": slow})

    def Wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.computed.append(request)
        self.begun.release()
        assert self.go.wait(60)
        return request


class Running:
    """A server of the slow service, with few places."""

    def __init__(self, slow: Slow, meter: Meter, address: str, channel: grpc.Channel) -> None:
        self.slow, self.meter, self.address, self.channel = slow, meter, address, channel
        self.wait = channel.unary_unary("/test.Slow/Wait")

    def in_progress(self) -> float:
        gauges: dict[str, float] = {name: value for name, _, value in self.meter.take()["gauges"]}
        return gauges[IN_PROGRESS.name]

    def fill(self) -> list[Any]:
        """Every place taken: THREADS calls compute, WAITING wait."""
        calls = [self.wait.future(b"%d" % n, timeout=60) for n in range(THREADS + WAITING)]
        for _ in range(THREADS):
            assert self.slow.begun.acquire(timeout=20)
        eventually(lambda: self.in_progress() == THREADS + WAITING)
        return calls


@contextmanager
def started() -> Iterator[Running]:
    slow, meter = Slow(), Meter()
    with (
        echo.serving(
            slow.handlers(), threads=THREADS, max_concurrency=THREADS + WAITING, meter=meter
        ) as address,
        grpc.insecure_channel(address) as channel,
    ):
        yield Running(slow, meter, address, channel)
        slow.go.set()


@pytest.fixture
def running() -> Iterator[Running]:
    with started() as made:
        yield made


def refused(running: Running, request: bytes = b"more") -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as failed:
        running.wait(request, timeout=20)
    return failed.value


def test_who_finds_no_place_is_told_when_to_come_back_and_who_has_one_is_answered(running: Running) -> None:
    placed = running.fill()
    error: Any = refused(running)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details().startswith("this worker has 5 calls in progress")
    told = CallFailed.of("", error)
    assert told.reason == "OVERLOADED" and told.retry_after_s is not None
    after_ms = round(1000 * told.retry_after_s)
    assert RETRY_AFTER_MS[0] <= after_ms <= RETRY_AFTER_MS[1]
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == str(after_ms)
    too_long_to_wait_for: Any = refused(running, BIG)
    assert too_long_to_wait_for.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    stub = health_pb2_grpc.HealthStub(running.channel)
    for _ in range(20):
        status = stub.Check(health_pb2.HealthCheckRequest(), timeout=20).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    taken = running.meter.take()
    assert [REFUSED.name, ["Wait", "overload"], 2] in taken["counts"]
    assert [PLACES.name, [], 5] in taken["gauges"]
    with ThreadPoolExecutor(32) as callers:
        errors = list(callers.map(lambda _: refused(running), range(60)))
    assert {error.code() for error in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(running.slow.computed) == THREADS  # nobody else has come near a thread
    running.slow.go.set()
    assert [call.result(timeout=20) for call in placed] == [b"%d" % n for n in range(5)]
    eventually(lambda: running.in_progress() == 0)
    assert running.wait(b"again", timeout=20) == b"again"


RETRYING = {
    "maxAttempts": 5,
    "initialBackoff": "600s",  # only the server's hint makes it come back sooner
    "maxBackoff": "600s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
}


def test_a_client_with_a_retry_policy_comes_back_when_it_is_told_to(running: Running) -> None:
    running.fill()
    config = {"methodConfig": [{"name": [{}], "retryPolicy": RETRYING}]}
    options = [("grpc.service_config", json.dumps(config))]
    with grpc.insecure_channel(running.address, options=options) as channel:
        call = channel.unary_unary("/test.Slow/Wait").future(b"patient", timeout=60)
        refusals: list[Any] = []
        eventually(lambda: refusals.extend(running.meter.take()["counts"]) or bool(refusals))
        running.slow.go.set()
        assert call.result(timeout=20) == b"patient"


def test_a_call_whose_deadline_passed_while_it_waited_is_not_computed(running: Running) -> None:
    running.fill()
    running.slow.go.set()
    eventually(lambda: running.in_progress() == 0)
    running.slow.go.clear()
    running.slow.computed.clear()
    held = [running.wait.future(b"held", timeout=60) for _ in range(THREADS)]
    eventually(lambda: len(running.slow.computed) == THREADS)
    with pytest.raises(grpc.RpcError) as failed:
        running.wait(b"late", timeout=0.05)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # The server counts the time from when the call arrives, which a busy machine delays.
    threading.Event().wait(0.5)
    running.slow.go.set()
    for call in held:
        call.result(timeout=20)
    eventually(lambda: running.in_progress() == 0)  # the late one has left its place too
    assert b"late" not in running.slow.computed


@contextmanager
def silent_calls(address: str, *methods: str) -> Iterator[list[Any]]:
    """As many calls of each method as there are threads, which send no message."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield b""

    with grpc.insecure_channel(address) as channel:
        yield [channel.stream_unary(method).future(nothing()) for method in methods for _ in range(THREADS)]
        over.set()


@pytest.mark.parametrize("asks", [True, False])
def test_callers_who_send_no_message_hold_no_thread_for_long(
    running: Running, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setattr(pools, "_ASKS", asks)
    monkeypatch.setattr(pools, "MESSAGE_WITHIN_S", 0.1)
    monkeypatch.setattr(pools, "LOOK_EVERY_S", 0.05)
    computing = running.wait.future(b"long", timeout=60)
    assert running.slow.begun.acquire(timeout=20)
    methods = ("/test.Slow/Wait", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
    with silent_calls(running.address, *methods) as hung:
        assert {call.exception(timeout=30).code() for call in hung} == {grpc.StatusCode.CANCELLED}
    running.slow.go.set()
    assert computing.result(timeout=20) == b"long", "one that computes for long is left alone"
    assert running.wait(b"next", timeout=20) == b"next"
    health_pb2_grpc.HealthStub(running.channel).Check(health_pb2.HealthCheckRequest(), timeout=20)


@pytest.mark.parametrize("asks", [True, False])
def test_calls_without_a_message_hold_no_thread_if_grpc_is_known(
    running: Running, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    assert pools._ASKS  # of the grpc that is installed
    monkeypatch.setattr(pools, "_ASKS", asks)
    running.slow.go.set()
    with silent_calls(running.address, "/test.Slow/Wait") as hung:
        waited = running.wait.future(b"next", timeout=20)
        if asks:
            assert waited.result() == b"next"
        for call in hung:
            call.cancel()
        assert waited.result() == b"next"


def test_callers_who_send_no_message_take_no_place_from_others(running: Running) -> None:
    running.slow.go.set()
    most = pools.WAITING_A_PLACE * (THREADS + WAITING)
    with silent_calls(running.address, *["/test.Slow/Wait"] * most) as hung:  # THREADS calls each
        eventually(lambda: sum(call.done() for call in hung) >= len(hung) - most)
        for n in range(20):
            assert running.wait(b"%d" % n, timeout=20) == b"%d" % n
        gone = [call.exception().code() for call in hung if call.done()]
        assert {*gone} == {grpc.StatusCode.CANCELLED}
        assert running.meter.take()["counts"] == [[REFUSED.name, ["Wait", "no_message"], len(gone)]]
        eventually(lambda: running.in_progress() == 0)


def test_a_caller_that_ends_its_side_without_a_message_is_told_so(running: Running) -> None:
    running.slow.go.set()
    with grpc.insecure_channel(running.address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.stream_unary("/test.Slow/Wait")(iter(()), timeout=20)
    error: Any = failed.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == '"/test.Slow/Wait" requires exactly one request message.'
    assert running.slow.computed == []


def reflecting(channel: grpc.Channel, open_until: threading.Event) -> Any:
    """A stream of reflection with one question, open after its answer."""

    def questions() -> Iterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        open_until.wait()

    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(questions())


def ended(stream: Any) -> grpc.StatusCode:
    """How a stream ends, once its answers have been read."""
    with pytest.raises(grpc.RpcError) as failed:
        for _ in stream:
            pass
    code: grpc.StatusCode = failed.value.code()
    return code


def test_reflection_takes_so_many_streams_and_gives_up_those_that_ask_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_EVERY_S", 0.02)
    over = threading.Event()
    streams = [reflecting(running.channel, over) for _ in range(3 * REFLECTION_PLACES)]
    refused: list[int] = []

    def all_but_the_places_are_refused() -> bool:
        for name, labels, number in running.meter.take()["counts"]:
            assert (name, labels) == (REFUSED.name, ["ServerReflectionInfo", "overload"])
            refused.append(number)
        return sum(refused) == 2 * REFLECTION_PLACES

    eventually(all_but_the_places_are_refused)
    running.slow.go.set()
    assert running.wait(b"ranked", timeout=20) == b"ranked"
    monkeypatch.setattr(pools, "MESSAGE_WITHIN_S", 0.1)
    codes = sorted(ended(stream).name for stream in streams)
    assert codes == ["CANCELLED"] * REFLECTION_PLACES + ["RESOURCE_EXHAUSTED"] * 2 * REFLECTION_PLACES
    over.set()
    again = reflecting(running.channel, over)
    assert next(again).list_services_response.service


def test_a_connection_has_a_bounded_number_of_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server_module, "MAX_STREAMS", 3)
    request = health_pb2.HealthCheckRequest()
    with started() as running:
        stub = health_pb2_grpc.HealthStub(running.channel)
        watches = [stub.Watch(request) for _ in range(3)]
        assert {next(watch).status for watch in watches} == {health_pb2.HealthCheckResponse.SERVING}
        with pytest.raises(grpc.RpcError) as failed:
            stub.Check(request, timeout=0.5)  # held back by the client's own library
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with grpc.insecure_channel(running.address, [("grpc.use_local_subchannel_pool", 1)]) as another:
            health_pb2_grpc.HealthStub(another).Check(request, timeout=20)
        watches[0].cancel()
        stub.Check(request, timeout=20)


def test_a_server_has_as_many_places_as_its_settings_say(start: Callable[..., Server]) -> None:
    server = start(threads=1, max_concurrency=3)
    assert [PLACES.name, [], 3] in server._worker._meter.take()["gauges"]


def test_a_task_that_fails_leaves_its_place() -> None:
    pool = CallPool(1, "calls", 1)
    future = pool.submit(lambda: 1 / 0)
    assert isinstance(future.exception(timeout=20), ZeroDivisionError)
    pool.submit(int).result(timeout=20)
    pool.shutdown()
    assert pool.in_progress() == 0


def test_a_thread_leaves_a_call_to_each_idle_thread_and_ends_when_it_takes_the_end() -> None:
    ready: pools.SimpleQueue[Any] = pools.SimpleQueue()
    for number in range(20):
        ready.put(number)
    taken: list[Any] = ["its own"]
    assert pools._take_more(ready, 17, taken)
    assert taken == ["its own", 0, 1, 2]
    assert pools._take_more(ready, 17, taken)
    assert len(taken) == 4
    assert pools._take_more(ready, 0, taken[:1])
    assert ready.qsize() == 17 - (pools.MOST_TOGETHER - 1)
    ends: pools.SimpleQueue[Any] = pools.SimpleQueue()
    for each in (1, None, 2):
        ends.put(each)
    taken = [0]
    assert not pools._take_more(ends, 0, taken)
    assert taken == [0, 1], "what it has is still answered"
