"""A server process's life, from the outside: real processes, real signals, health and reflection."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ftrie.client.client import Client, RankFailed
from model_store.store import Store
from server.rpc.ranking_service import SERVICE
from tests.integration.processes import FTRIE
from tests.server import shop
from tests.server.one_process import Server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health_of(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status)


@pytest.fixture
def serve(store_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `ftrie serve shop` as a process of its own; ended with the test."""
    processes = []

    def started(*flags: str) -> subprocess.Popen[str]:
        command = [*FTRIE, "serve", shop.NAME, "--store", store_url, "--port", "0"]
        process = subprocess.Popen(
            [*command, "--state", str(tmp_path / "state"), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.terminate()  # by a kill its workers would live on, and wait for a successor
        process.communicate(timeout=30)


def test_health_follows_loading_serving_and_draining_and_then_calls_are_refused(
    start: Callable[..., Server], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.processes.worker.LEAVE_S", 2.0)
    server = start()
    assert [health_of(server.address, name) for name in ("", SERVICE)] == [NOT_SERVING, NOT_SERVING]
    shop.fill(store)
    assert server.ready.wait(180)
    assert [health_of(server.address, name) for name in ("", SERVICE)] == [SERVING, SERVING]
    with grpc.insecure_channel(server.address) as channel, Client(server.address, timeout_s=10) as client:
        assert client.rank(candidates=["item-1"]).items
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        draining = threading.Thread(target=server.drain)
        draining.start()
        assert next(watch).status == NOT_SERVING
        assert client.rank(candidates=["item-1"]).items, "while clients that watch its health leave"
        watch.cancel()
        draining.join()
        with pytest.raises(RankFailed) as failed:
            client.rank(candidates=["item-1"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE


def test_a_server_asks_clients_to_reconnect_if_it_is_told_to(start: Callable[..., Server]) -> None:
    closed, was_ready = threading.Event(), threading.Event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            was_ready.set()
        elif was_ready.is_set():
            closed.set()

    with grpc.insecure_channel(start(connection_age_s=0.2).address) as channel:
        channel.subscribe(changed, try_to_connect=True)
        assert closed.wait(30)


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
def test_a_second_signal_ends_the_process_at_once(
    shop_store: Store, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve("--drain", "100", "--json")
    assert process.stdout is not None and process.stderr is not None
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
