"""docs/degradation.md, "Processes": workers and supervisors are killed while calls are made on fresh connections."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.degradation.load import CALLERS, Load
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, serving
from tests.degradation.whole_shop import whole_shop
from tests.waiting import eventually

TWO = ("--workers", "2")
HANGS_S = 40.0  # what a supervisor waits for a sign of life, and a worker's start on a busy machine


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with two workers, for the tests that leave it with two."""
    with whole_shop(tmp_path_factory.mktemp("two"), *TWO) as whole:
        yield whole.running


def replaced(running: Running, victim: int) -> bool:
    """Whether two workers answer, and this is none of them."""
    workers = running.workers()
    return len(workers) == 2 and victim not in workers


def says_that_it_is_alone(running: Running) -> bool:
    reasons = [str(each) for each in running.client.rank(candidates=["item-1"]).degraded]
    return any(reason.startswith("model: ") for reason in reasons)


@pytest.mark.slow
def test_worker_killed_under_load(two_workers: Running, recovered: Recovered) -> None:
    running = two_workers
    restarts = running.metric("ftrie_worker_restarts_total")
    with Load(running.address).running() as load:
        victim = running.workers()[0]
        os.kill(victim, signal.SIGKILL)
        recovered.then(lambda: replaced(running, victim), "it is replaced")
        assert running.metric("ftrie_worker_restarts_total") == restarts + 1
        load.some_more()
    assert load.wrong == 0
    assert load.failed <= CALLERS  # those that the killed worker had: at most one a thread
    assert running.healthy()


@pytest.mark.slow
def test_worker_that_hangs(two_workers: Running, recovered: Recovered) -> None:
    running = two_workers
    restarts = running.metric("ftrie_worker_restarts_total")
    victim = running.workers()[0]
    with Load(running.address, timeout_s=0.5).running() as load:
        os.kill(victim, signal.SIGSTOP)
        recovered.from_now()
        load.some_more()  # by the other one, while every other new connection falls to this one
        recovered.when(lambda: replaced(running, victim), "it is replaced", within_s=HANGS_S)
    assert load.wrong == 0
    assert set(load.answers) <= {"OK", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert running.metric("ftrie_worker_restarts_total") == restarts + 1
    assert running.logs("worker hangs, ending it")[0]["pid"] == victim
    with Load(running.address).running() as load:
        load.some_more()
    assert (load.wrong, load.failed) == (0, 0)


@pytest.mark.slow
def test_supervisor_killed_and_succeeded(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with serving(valkey.url, tmp_path) as running:
        running.await_ready()
        old = running.workers()
        with Load(running.address).running() as load:
            running.process.kill()
            running.process.wait()
            eventually(lambda: says_that_it_is_alone(running), "answers that say so")
            assert running.healthy()
            load.some_more()
            port = running.address.rpartition(":")[2]
            recovered.from_now()
            with serving(valkey.url, tmp_path, "--port", port) as successor:
                successor.await_ready()
                assert successor.address == running.address
                gone = "its successor's workers have replaced its own"
                recovered.when(lambda: not any(map(alive, old)), gone)
                load.some_more()
                load.stop()
                assert successor.client.rank(candidates=["item-1"]).degraded == ()
                assert load.wrong == 0
                # A call that reaches an old worker in the instant in which it leaves may be cancelled
                # (docs/serving.md), or pass its deadline there on a busy machine: at most the one that each caller has
                # under way.
                cut_off = load.answers["CANCELLED"] + load.answers["DEADLINE_EXCEEDED"]
                assert cut_off == load.failed <= CALLERS, load.answers


@pytest.mark.slow
def test_supervisor_killed_without_successor(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with serving(valkey.url, tmp_path, "--alone", "1") as running:
        running.await_ready()
        old = running.workers()
        running.process.kill()
        running.process.wait()
        recovered.then(lambda: not any(map(alive, old)), "its workers have ended, with --alone 1")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
