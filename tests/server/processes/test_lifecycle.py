"""A server process's life, from the outside: real processes, real signals, health and reflection."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ftrie.client.client import Client, RankFailed
from model_store.store import Store
from server.rpc.ranking_service import SERVICE
from server.settings import DEFAULT_THREADS, Settings
from tests.server import shop
from tests.server.one_process import Server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health_of(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status)


@pytest.fixture
def serve(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `ftrie serve shop` as a process of its own; ended with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    processes = []

    def started(*flags: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "ftrie",
            "serve",
            shop.NAME,
            "--store",
            store_url,
            "--port",
            "0",
            *flags,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.terminate()  # by a kill its workers would live on, and wait for a successor
        process.communicate(timeout=30)


def test_health_follows_loading_serving_and_draining(start: Callable[[], Server], store: Store) -> None:
    server = start()
    assert [health_of(server.address, name) for name in ("", SERVICE)] == [NOT_SERVING, NOT_SERVING]
    shop.fill(store)
    assert server.ready.wait(180)
    assert [health_of(server.address, name) for name in ("", SERVICE)] == [SERVING, SERVING]
    with grpc.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        draining = threading.Thread(target=server.drain)
        draining.start()
        assert next(watch).status == NOT_SERVING
        watch.cancel()
        draining.join()


def test_a_draining_server_answers_while_clients_that_watch_its_health_leave(
    shop_store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.processes.worker.LEAVE_S", 2.0)
    server = Server(Settings((shop.NAME,), store_url, drain_s=10.0))
    server.startup()
    assert server.ready.wait(180)
    with grpc.insecure_channel(server.address) as channel, Client(server.address, timeout_s=10) as client:
        assert client.rank(candidates=["item-1"]).items
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        draining = threading.Thread(target=server.drain)
        draining.start()
        assert next(watch).status == NOT_SERVING
        assert client.rank(candidates=["item-1"]).items
        watch.cancel()
        draining.join()
        with pytest.raises(RankFailed):
            client.rank(candidates=["item-1"])
    server.shutdown()


@pytest.mark.slow
def test_a_server_with_one_worker_asks_clients_to_reconnect_if_it_is_told_to(
    shop_store: Store, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve("--connection-age", "0.5", "--json")
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    closed, was_ready = threading.Event(), threading.Event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            was_ready.set()
        elif was_ready.is_set():
            closed.set()

    with grpc.insecure_channel(address) as channel:
        channel.subscribe(changed, try_to_connect=True)
        assert closed.wait(30)
    assert process.poll() is None


def test_reflection_lists_the_services(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(stub.ServerReflectionInfo(iter([request])))
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


def test_open_reflection_streams_keep_nobody_waiting(server: Server) -> None:
    closing = threading.Event()

    def questions() -> Iterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        closing.wait()

    with grpc.insecure_channel(server.address) as channel, Client(server.address, timeout_s=20) as client:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        streams = [stub.ServerReflectionInfo(questions())]
        next(streams[0])  # calls that wait for a connection may leave in any order
        streams += [stub.ServerReflectionInfo(questions()) for _ in range(2 * DEFAULT_THREADS)]
        assert client.rank(candidates=["item-1"]).items
        assert health_of(server.address) == SERVING
        closing.set()
        for stream in streams:
            stream.cancel()


def test_reflection_answers_under_the_name_of_its_first_version_too(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        answer = next(ask(iter([request]), timeout=20))
    assert answer.file_descriptor_response.file_descriptor_proto


def test_a_drained_server_refuses_calls(server: Server) -> None:
    with Client(server.address, timeout_s=10) as client:
        assert client.rank(candidates=["item-1"]).items
        server.drain()
        with pytest.raises(RankFailed) as failed:
            client.rank(candidates=["item-1"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE


def test_a_process_says_when_it_is_ready_and_ends_on_sigterm(
    shop_store: Store, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve()
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[:5] == ["serving", shop.NAME, "version", "1", "on"]
    with Client(words[5], timeout_s=20) as client:
        assert client.rank(shop.NAME, candidates=["item-1"]).version == 1
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["event"] for line in lines if "worker" not in line][::-1][:2] == ["stopped", "draining"]
    assert [line["event"] for line in lines if line.get("worker") == 0][-1] == "draining"


@pytest.mark.slow
def test_calls_that_have_begun_end_before_the_process_does(
    shop_store: Store, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve("--json")
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert (ready["model"], ready["version"]) == (shop.NAME, 1)
    outcomes: list[grpc.StatusCode | None] = []

    def load() -> None:
        with Client(ready["address"], timeout_s=20) as client:
            while not outcomes or outcomes[-1] is None:
                try:
                    client.rank(candidates=list(shop.ITEMS) * 100)
                    outcomes.append(None)
                    if len(outcomes) == 5:
                        process.send_signal(signal.SIGINT)
                except RankFailed as failed:
                    outcomes.append(failed.code)

    caller = threading.Thread(target=load)
    caller.start()
    caller.join()
    assert process.wait(30) == 0
    assert outcomes[-1] is grpc.StatusCode.UNAVAILABLE  # refused, not broken off
    assert len(outcomes) > 5


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(
    shop_store: Store, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve("--drain", "100", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    address = json.loads(process.stdout.readline())["address"]
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        endless = threading.Event()

        def requests() -> Iterator[reflection_pb2.ServerReflectionRequest]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            endless.wait()

        call = stub.ServerReflectionInfo(requests())
        next(call)  # a call that never ends holds the drain
        process.send_signal(signal.SIGTERM)
        for line in process.stderr:
            if json.loads(line)["event"] == "draining":
                break
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        endless.set()


@pytest.mark.slow
def test_a_taken_port_is_an_error_with_a_remedy(
    server: Server, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve("--port", server.address.rpartition(":")[2])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert out == ""
    assert "is the port taken? --port 0 chooses a free one" in err


@pytest.mark.slow
def test_a_name_that_no_model_can_have_ends_the_command_at_once(store_url: str) -> None:
    command = [sys.executable, "-m", "ftrie", "serve", "my model", "--store", store_url, "--port", "0"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert "got the model name 'my model'" in finished.stderr
