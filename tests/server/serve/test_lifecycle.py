"""A server process's life, from the outside: real processes, real signals, and what they leave behind.

What happens when they are killed is in tests/degradation too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Semaphore

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from ftrie.api.client import Client, RankFailed
from ftrie.demo.processes import free_port
from model_store.store import Store
from server.serve import takeover
from server.serve.ranking_service import SERVICE
from server.serve.takeover import Inherited
from server.settings import Settings
from server.sync.state_folder import RECORD, Process, StateFolder
from tests.degradation.system import Running, serving
from tests.integration.processes import FTRIE
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

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
        command += ["--state", str(tmp_path / "state"), *flags]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield started
    for process in processes:
        process.terminate()  # by a kill its workers would live on, and wait for a successor
        process.communicate(timeout=30)


def test_health_follows_loading_serving_and_draining_and_then_calls_are_refused(
    start: Callable[..., Server], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.serve.worker.LEAVE_S", 2.0)
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
    port = free_port()
    process = serve("ads", "--metrics-port", str(port))
    assert process.stdout is not None
    line = process.stdout.readline()
    words = line.split()
    assert words[:5] == ["serving", shop.NAME, "version", "1", "on"]
    assert line.endswith("; NOT SERVED: ads (the store names no active version)\n")
    with Client(words[5].rstrip(";"), timeout_s=20) as client:
        assert client.rank(shop.NAME, candidates=["item-1"]).version == 1

    def health(query: str) -> tuple[int, dict[str, str]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz{query}", timeout=20) as page:
                return page.status, json.load(page)["not_served"]
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["not_served"]

    missing = {"ads": "the store names no active version"}
    asked = ("", f"?model={shop.NAME}", "?model=ads", "?model=unknown")
    assert [health(each) for each in asked] == [(code, missing) for code in (200, 200, 503, 404)]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    (ready,) = (line for line in lines if line["event"] == "READY WITHOUT A MODEL")
    assert (ready["level"], ready["model"]) == ("error", "ads")
    assert [line["event"] for line in lines if "worker" not in line][::-1][:2] == ["stopped", "draining"]
    assert [line["event"] for line in lines if line.get("worker") == 0][-1] == "draining"


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(
    shop_store: Store, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    process = serve("--drain", "100", "--json")
    assert process.stdout is not None and process.stderr is not None
    with grpc.insecure_channel(json.loads(process.stdout.readline())["address"]) as channel:
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


CANDIDATES = list(shop.ITEMS)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def blocks_mapped(pid: int) -> int:
    """How many blocks of models a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:ftrie")


def served_by_all(running: Running) -> set[int]:
    return {worker["versions"].get(shop.NAME) for worker in running.status()["workers"]}


def check_many_versions(two_workers: Running, store: Store) -> None:
    """Twenty swaps take no more open files and mapped blocks than ten."""
    processes = [two_workers.process.pid, *two_workers.workers()]
    versions = store.model(shop.NAME)
    models = [shop.artefact(1), shop.artefact(2)]
    active = versions.active_or_fail()
    held = []
    for turn in range(20):
        before, after = models[turn % 2], models[(turn + 1) % 2]
        delta = after.changes_since(before)
        active = versions.publish(delta, parent=active) if turn % 5 else versions.publish(after)
        versions.activate(active)
        eventually(lambda version=active: served_by_all(two_workers) == {version}, "a swap in every worker")
        two_workers.client.rank(cookie="u1", candidates=CANDIDATES)
        held.append([(open_files(pid), blocks_mapped(pid)) for pid in processes])
    for early, late in zip(held[9], held[-1], strict=True):
        assert late[0] <= early[0] + 4
        assert late[1] <= early[1] + 4


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_replaced_after_growing_pauses(
    shop_store: Store, store_url: str, tmp_path: Path
) -> None:
    with serving(store_url, tmp_path, "--workers", "1") as running:
        running.await_ready()
        for deaths in range(1, 5):
            eventually(lambda deaths=deaths: len(running.logs("worker started")) == deaths, "a new one")
            os.kill(running.logs("worker started")[-1]["pid"], signal.SIGKILL)
            eventually(lambda deaths=deaths: len(running.logs("worker died, replacing it")) == deaths)
        pauses = [line["in_s"] for line in running.logs("worker died, replacing it")]
        assert pauses == sorted(pauses)
        assert pauses[-1] > 2 * pauses[0]
        eventually(lambda: len(running.workers()) == 1, "a worker again", within_s=60)


CALLERS = 4


def logged(store: Store) -> list[str]:
    read = store.impressions(shop.NAME).read((0, 0), 1_000_000)
    return [json.loads(payload)["request_id"] for payload in read.payloads]


def answered(running: Running, caller: int, many: Semaphore) -> list[str]:
    """Call until the server is gone; the ids of the requests that were answered."""
    shown: list[str] = []
    with Client(running.address, timeout_s=5.0) as client, pytest.raises(RankFailed) as failed:
        while True:
            request_id = f"{caller}-{len(shown)}"
            client.rank(cookie="u1", candidates=list(shop.ITEMS), request_id=request_id)
            shown.append(request_id)
            many.release()
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE, "refused, not broken off"
    return shown


@pytest.mark.slow
def test_two_pinned_workers_are_told_apart_follow_many_versions_and_drain_under_load(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    shop.fill(store)
    store.model(shop.NAME).experiments.change(lambda e: replace(e, shadows=("plain",)))
    log = tmp_path / "shadows.jsonl"
    flags = ("--impressions", "store", "--shadow-log", str(log), "--workers", "2", "--pin")
    with serving(store_url, tmp_path, *flags) as running:
        check_told_apart(running, store_url, tmp_path)
        check_many_versions(running, store)
        workers = [Process.of(pid) for pid in running.workers()]
        shown = drained_under_load(running)
        assert not any(worker is not None and worker.alive() for worker in workers)
    # No impression is lost, and no worker tears a line of the other in the shadow log.
    ids = [each for each in logged(store) if "-" in each]  # those of the load
    assert len(ids) == len(set(ids))
    assert shown <= set(ids)
    assert len(set(ids) - shown) <= CALLERS  # answered, but the answer came too late for who had asked
    shadowed = [json.loads(line)["request_id"] for line in log.read_text().splitlines()]
    shadowed = [each for each in shadowed if "-" in each]
    assert len(shadowed) == len(set(shadowed)) > len(ids) / 2
    assert set(shadowed) <= set(ids)


def check_told_apart(running: Running, store_url: str, folder: Path) -> None:
    """Each worker has a core of its own; and nobody else their supervisor's folder."""
    assert running.process.stdout is not None
    assert json.loads(running.process.stdout.readline()) == {
        "model": shop.NAME,
        "version": 1,
        "models": {shop.NAME: 1},
        "address": running.address,
        "workers": 2,
        "not_served": {},
    }
    status, pids = running.status(), running.workers()
    assert status["ready"] and [worker["number"] for worker in status["workers"]] == [0, 1]
    assert len({*pids, running.process.pid}) == 3
    assert {line["worker"] for line in running.logs("serving")} == {0, 1}
    mine = sorted(os.sched_getaffinity(0))
    cores = [sorted(os.sched_getaffinity(pid)) for pid in pids]
    assert sorted(cores) == sorted([mine[0]] if n == 0 else [mine[1 % len(mine)]] for n in range(2))
    assert sorted(os.sched_getaffinity(running.process.pid)) == mine
    command = [*FTRIE, "serve", shop.NAME, "--store", store_url, "--port", "0"]
    command += ["--state", str(folder / "state")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 6
    assert "or another folder with --state" in second.stderr


def drained_under_load(running: Running) -> set[str]:
    """The ids of the requests that were answered until the end, of which it is told while they come."""
    many = Semaphore(0)
    with ThreadPoolExecutor(CALLERS) as callers:
        calls = [callers.submit(answered, running, caller, many) for caller in range(CALLERS)]
        for _ in range(300):
            assert many.acquire(timeout=60)
        running.process.send_signal(signal.SIGHUP)
        shown = {request_id for call in calls for request_id in call.result()}
    assert running.process.wait(30) == 0
    return shown


class HungDisk:
    """`os.fsync` does not return before `answers` is set; `asked` is set by its first call."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def fsync(self, descriptor: int) -> None:
        self.asked.set()
        self.answers.wait()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    hung = HungDisk()
    monkeypatch.setattr(os, "fsync", hung.fsync)
    yield hung
    hung.answers.set()


def test_a_server_ends_within_its_drain_time_and_logs_what_is_not_on_disk(
    shop_store: Store, store_url: str, tmp_path: Path, disk: HungDisk
) -> None:
    server = Server(Settings((shop.NAME,), store_url, drain_s=0.3, state=str(tmp_path)))
    server.startup()
    assert server.ready.wait(180)
    assert disk.asked.wait(20)
    with capture_logs() as logged:
        server.drain()
        server.shutdown()
    [line] = [line for line in logged if line["event"].startswith("the disk does not answer")]
    assert (line["log_level"], line["folder"]) == ("error", str(tmp_path))


def test_the_workers_are_written_down_once_the_disk_answers_and_nobody_waits_for_it(
    tmp_path: Path, disk: HungDisk
) -> None:
    state, inherited = StateFolder(tmp_path), Inherited((), 0)
    with capture_logs() as logged:
        inherited.remember(state, "127.0.0.1:1", [])
        inherited.remember(state, "127.0.0.1:2", [])  # returns at once: one thread waits already
    assert [line["event"].partition(":")[0] for line in logged] == ["the disk does not answer"]
    disk.answers.set()

    def written_down() -> bool:
        inherited.remember(state, "127.0.0.1:2", [])
        return state.left_behind()[0] == "127.0.0.1:2"

    eventually(written_down)
    state.close()


def test_a_record_of_the_workers_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "REMEMBER_AGAIN_S", 0.0)
    state, inherited = StateFolder(tmp_path), Inherited((), 0)
    (tmp_path / RECORD).mkdir()  # nothing can be written there
    with capture_logs() as logged:
        inherited.remember(state, "127.0.0.1:1", [])
    assert [line["event"].partition(":")[0] for line in logged] == ["the workers could not be written down"]
    (tmp_path / RECORD).rmdir()
    inherited.remember(state, "127.0.0.1:1", [])
    assert state.left_behind()[0] == "127.0.0.1:1"
    state.close()
