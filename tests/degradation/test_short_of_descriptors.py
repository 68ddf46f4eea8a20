"""docs/degradation.md, "Descriptors": many connections, and a process that may open no more files (`ulimit -n`)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from ftrie.api.client import Client, RankFailed
from model_store.store import Store
from tests.degradation.learning import OfStreams, ending
from tests.degradation.load import EXPECTED
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S, ROOT, Valkey, serving
from tests.degradation.test_trainer_and_disk import checkpoints
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.waiting import eventually

SHELLS = 256
"""Descriptors that the shell allows; the system allows more."""
IDLE, ASKING = 1900, 100
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What a client of HTTP/2 sends first: its preface, and settings without any."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeShop]:
    """A shop whose server was started by a shell with few descriptors."""
    folder = tmp_path_factory.mktemp("descriptors")
    valkey = Valkey(folder)
    within = ["sh", "-c", f'ulimit -Sn {SHELLS} && exec "$@"', "sh"]
    flags = ("--user-ttl", "0.2", "--store-budget", "1000")
    try:
        with Store.open(valkey.url) as store:
            version = shop.fill(store)
            with serving(valkey.url, folder, *flags, within=within) as running:
                running.await_ready()
                whole = WholeShop(running, store)
                whole.answers_as(version, 1)
                yield whole
    finally:
        valkey.kill()


@pytest.fixture
def whole(begun: WholeShop) -> WholeShop:
    for _ in range(20):
        begun.awaits_whole_answer("u1")
    return begun


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def few_descriptors(pid: int, more: int) -> Iterator[None]:
    """The process may open so many more files than it has open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    counts = []
    for _ in range(50):  # the least of a second: a file that it has open for a moment leaves room afterwards
        counts.append(descriptors(pid))
        time.sleep(0.02)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(counts) + more, most))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def connected(address: str, count: int) -> Iterator[None]:
    """So many idle connections. Beyond what the server accepts, those that it has not accepted yet."""
    host, _, port = address.rpartition(":")
    with ExitStack() as last:
        for _ in range(count):
            end = last.enter_context(socket.create_connection((host, int(port)), timeout=10))
            end.sendall(HELLO)
        yield


@pytest.mark.slow
def test_two_thousand_connections(whole: WholeShop, recovered: Recovered) -> None:
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (ours[1], ours[1]))
    running, (worker,) = whole.running, whole.running.workers()
    before = descriptors(worker), threads(worker)
    with connected(running.address, IDLE), ExitStack() as last:
        clients = [last.enter_context(Client(running.address, 30.0)) for _ in range(ASKING)]
        # The clients of a process share a connection to an address unless each has its own pool.
        with ThreadPoolExecutor(16) as pool:
            answers = list(
                pool.map(lambda each: each.rank(candidates=list(EXPECTED), variant="base"), clients)
            )
        assert all(
            {item.id: item.score for item in each.items} == pytest.approx(EXPECTED) for each in answers
        )
        assert descriptors(worker) >= before[0] + IDLE
        assert running.healthy()
        version = whole.publish(seed=2)
        eventually(lambda: whole.serves(version), "the new version")
    recovered.then(lambda: descriptors(worker) <= before[0] + 4, "no descriptor of theirs is left")
    assert threads(worker) <= before[1] + 4
    assert running.workers() == [worker]


@pytest.mark.slow
def test_worker_may_open_no_more(whole: WholeShop, recovered: Recovered) -> None:
    running, (worker,) = whole.running, whole.running.workers()
    with few_descriptors(worker, 2), connected(running.address, 20):
        with ThreadPoolExecutor(8) as pool:  # each thread of the server reads by a connection of its own
            list(pool.map(whole.ask, [whole.new_user() for _ in range(40)]))
        with pytest.raises(grpc.RpcError) as waits, grpc.insecure_channel(running.address) as channel:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=0.5)
        assert waits.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        version = whole.publish(seed=3)
        eventually(lambda: bool(running.status()["workers"][0]["refused"]), "its refusal")
        assert "ulimit -n" in running.status()["workers"][0]["refused"]["shop"]
        assert whole.ask("u1").version < version
    recovered.then(lambda: whole.serves(version) and running.healthy(), "the version is served")
    assert running.workers() == [worker]
    assert not running.logs("rank failed")


@pytest.mark.slow
def test_supervisor_may_open_no_more(whole: WholeShop, recovered: Recovered) -> None:
    running, supervisor, (worker,) = whole.running, whole.running.process.pid, whole.running.workers()
    # Fewer than it has: what a worker that dies leaves is not enough for the next one.
    with ExitStack() as last, few_descriptors(supervisor, -8):
        last.enter_context(connected(running.metrics, 3))
        began_s = cpu_s(supervisor)
        time.sleep(1.0)
        assert cpu_s(supervisor) - began_s < 0.3  # it does not try to accept them all the time
        version = whole.publish(seed=4)
        eventually(lambda: bool(running.logs("version refused")), "its refusal")
        assert whole.ask("u1").version < version
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: bool(running.logs("no worker could be started")), "the line in the log")
    recovered.then(lambda: serves(whole, version), "the version is served, by a new worker", COMPILE_S)
    assert running.workers() != [worker]


@pytest.mark.slow
def test_trainer_may_open_no_more(tmp_path: Path, recovered: Recovered) -> None:
    # Not forked: a fork has gaps among its descriptors, numbers that are free though as many are open as may be.
    system = OfStreams(tmp_path, "--every", "1s", within=("env",))
    trainer = system.trainer
    with ending(system):
        eventually(system.has_learned_all, "all is served", COMPILE_S)
        eventually(lambda: bool(checkpoints(trainer.state)), "a checkpoint")
        with few_descriptors(trainer.process.pid, 0):
            system.more()
            eventually(lambda: trainer.has("failed_checkpoints", 1), "a failed checkpoint", COMPILE_S)
            eventually(system.has_learned_all, "all is served")
            assert "Too many open files" in trainer.said()
            learned = trainer.status()["examples"]
        what = "a checkpoint of what was learned"
        recovered.then(lambda: int(checkpoints(trainer.state)[-1].stem) >= learned, what)


def serves(whole: WholeShop, version: int) -> bool:
    try:
        return whole.serves(version)
    except RankFailed as error:
        if error.code is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


@pytest.mark.slow
def test_server_with_too_few_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ftrie", "serve", shop.NAME, "--store", f"embedded:{tmp_path}"]
    limited = ["sh", "-c", 'ulimit -n 63 && exec "$@"', "sh", *command, "--port", "0"]
    ended = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, timeout=COMPILE_S)
    assert ended.returncode == 6
    assert "ulimit -n 63" in ended.stderr
