"""Health watches: each hears every change, and none can stop the others or the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from ftrie.api.client import Client
from server.serve import gate
from server.serve.health import SERVICES, Health, _Sender
from server.settings import DEFAULT_THREADS
from tests.server import echo
from tests.server.one_process import Server
from tests.waiting import eventually

SERVING, NOT_SERVING, UNKNOWN = (
    getattr(health_pb2.HealthCheckResponse, name) for name in ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
)
ALONE = ("grpc.use_local_subchannel_pool", 1)


class Running:
    """A server with nothing but its health to say."""

    def __init__(self, health: Health, address: str) -> None:
        self.health, self.address = health, address

    def stub(self, *options: tuple[str, int]) -> tuple[grpc.Channel, Any]:
        channel = grpc.insecure_channel(self.address, [ALONE, *options])
        return channel, health_pb2_grpc.HealthStub(channel)

    def checked(self, service: str = "") -> int:
        channel, stub = self.stub()
        with channel:
            return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status)


@pytest.fixture
def running() -> Iterator[Running]:
    health = Health()
    with echo.serving(health=health, threads=1) as address:
        yield Running(health, address)


def test_a_watch_hears_the_status_and_each_change(running: Running) -> None:
    channel, stub = running.stub()
    with channel:
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=each), timeout=60) for each in SERVICES]
        for serving in (False, True, False):
            running.health.say(serving=serving)
            expected = SERVING if serving else NOT_SERVING
            assert [next(watch).status for watch in watches] == [expected] * len(SERVICES)
            assert {running.checked(service) for service in SERVICES} == {expected}


def test_one_that_drains_is_not_serving_and_an_unknown_service_is_told_so(running: Running) -> None:
    running.health.say(serving=True)
    running.health.drain()
    running.health.say(serving=True)
    assert running.checked() == NOT_SERVING
    channel, stub = running.stub()
    with channel:
        asked = health_pb2.HealthCheckRequest(service="ctr.v1.Unknown")
        assert next(stub.Watch(asked, timeout=20)).status == UNKNOWN
        with pytest.raises(grpc.RpcError) as failed:
            stub.Check(asked, timeout=20)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_and_reflection_know_the_services_of_a_server(shared_server: Server) -> None:
    asked = reflection_pb2.ServerReflectionRequest
    with grpc.insecure_channel(shared_server.address) as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        assert {*SERVICES[1:], "grpc.health.v1.Health"} <= {*known.get_services()}
        for service in SERVICES[1:]:
            check = health_pb2.HealthCheckRequest(service=service)
            assert health_pb2_grpc.HealthStub(channel).Check(check, timeout=20).status == SERVING
            assert known.FindFileContainingSymbol(service).package == "ctr.v1"
        # The database asks for version 1alpha; clients of version 1 are answered too.
        ask = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            asked.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        answer = next(ask(iter([asked(file_containing_symbol=SERVICES[1])]), timeout=20))
        assert answer.file_descriptor_response.file_descriptor_proto


def test_open_reflection_streams_keep_nobody_waiting(shared_server: Server, shared_client: Client) -> None:
    closing = threading.Event()

    def questions() -> Iterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        closing.wait()

    with grpc.insecure_channel(shared_server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        streams = [stub.ServerReflectionInfo(questions())]
        next(streams[0])  # calls that wait for a connection may leave in any order
        streams += [stub.ServerReflectionInfo(questions()) for _ in range(2 * DEFAULT_THREADS)]
        assert shared_client.rank(candidates=["item-1"]).items
        check = health_pb2.HealthCheckRequest()
        assert health_pb2_grpc.HealthStub(channel).Check(check, timeout=20).status == SERVING
        closing.set()
        for stream in streams:
            stream.cancel()


def test_one_thread_sends_the_first_status_of_a_watch_and_each_change(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grpc takes one message of a call at a time: the end of a second one that it refused never comes."""
    threads, send = set[int](), _Sender.send

    def noted(sender: _Sender, watch: Any, response: Any) -> None:
        threads.add(threading.get_ident())
        send(sender, watch, response)

    monkeypatch.setattr(_Sender, "send", noted)
    channel, stub = running.stub()
    with channel:
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == NOT_SERVING
        running.health.say(serving=True)
        assert next(watch).status == SERVING
    assert len(threads) == 1


def test_watches_that_begin_while_others_end_and_the_status_changes_stop_nothing(running: Running) -> None:
    """grpc_health's own servicer stops here for good: it sends under a lock that the end of a watch takes too."""
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            channel, stub = running.stub()
            watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(20)]
            for watch in watches:
                next(watch)
            channel.close()

    def change() -> None:
        while not over.wait(0.001):
            running.health.say(serving=True)
            running.health.say(serving=False)

    threads = [threading.Thread(target=each) for each in (come_and_go, come_and_go, come_and_go, change)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            running.checked()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    eventually(lambda: not running.health._watches)


def test_a_watch_that_takes_nothing_is_cancelled_and_the_others_go_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MESSAGE_WITHIN_S", 0.2)
    monkeypatch.setattr(gate, "LOOK_EVERY_S", 0.05)
    # Its window has no room for a whole message, and grows only when the message is asked for.
    narrow, narrow_stub = running.stub(("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0))
    channel, stub = running.stub()
    with narrow, channel:
        deaf = narrow_stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        eventually(lambda: len(running.health._watches) == 1)
        others = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(others).status == NOT_SERVING
        running.health.say(serving=True)
        assert next(others).status == SERVING
        eventually(lambda: len(running.health._watches) == 1)
        deaf.cancel()
