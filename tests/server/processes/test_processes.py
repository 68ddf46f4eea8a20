"""A supervisor and its workers as processes: what they print, what they leave, what they hold after many versions.

What happens when they are killed is in tests/degradation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.store import Store
from server.sync.state_folder import Process
from tests.degradation.system import Running, serving
from tests.integration.processes import FTRIE
from tests.server import shop
from tests.waiting import eventually

CANDIDATES = list(shop.ITEMS)


@pytest.fixture
def two_workers(store: Store, store_url: str, tmp_path: Path) -> Iterator[Running]:
    """A server of two workers, ready."""
    shop.fill(store)
    with serving(store_url, tmp_path, "--workers", "2") as running:
        yield running


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def blocks_mapped(pid: int) -> int:
    """How many blocks of models a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:ftrie")


@pytest.mark.slow
def test_many_versions_leave_neither_files_nor_memory_behind(two_workers: Running, store: Store) -> None:
    two_workers.await_ready()
    processes = [two_workers.process.pid, *two_workers.workers()]
    versions = store.model(shop.NAME)
    models = [shop.artefact(1), shop.artefact(2)]
    active = versions.active_or_fail()
    held = []
    for turn in range(20):
        before, after = models[turn % 2], models[(turn + 1) % 2]
        if turn % 5:
            active = versions.publish(after.changes_since(before), parent=active)
        else:
            active = versions.publish(after)
        versions.activate(active)
        eventually(
            lambda version=active: all(
                worker["versions"] == {shop.NAME: version} for worker in two_workers.status()["workers"]
            ),
            "a swap in every worker",
        )
        two_workers.client.rank(cookie="u1", candidates=CANDIDATES)
        held.append([(open_files(pid), blocks_mapped(pid)) for pid in processes])
    for early, late in zip(held[9], held[-1], strict=True):
        assert late[0] <= early[0] + 4
        assert late[1] <= early[1] + 4


@pytest.mark.slow
def test_pinned_workers_are_told_apart_hold_their_folder_and_are_gone_with_their_supervisor(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    shop.fill(store)
    with serving(store_url, tmp_path, "--workers", "2", "--pin") as running:
        assert running.process.stdout is not None
        assert json.loads(running.process.stdout.readline()) == {
            "model": shop.NAME,
            "version": 1,
            "models": {shop.NAME: 1},
            "address": running.address,
            "workers": 2,
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
        second = subprocess.run(
            [*command, "--state", str(tmp_path / "state")], capture_output=True, text=True, timeout=60
        )
        assert second.returncode == 6
        assert "name another folder with --state" in second.stderr
        workers = [Process.of(pid) for pid in pids]
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(30) == 0
        assert not any(worker is not None and worker.alive() for worker in workers)


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_replaced_after_growing_pauses(two_workers: Running) -> None:
    two_workers.await_ready()
    killed = two_workers.status()["workers"][0]["pid"]
    for deaths in range(1, 5):
        os.kill(killed, signal.SIGKILL)
        eventually(
            lambda deaths=deaths: len(two_workers.logs("worker died, replacing it")) == deaths, "a death"
        )
        if deaths < 4:
            eventually(
                lambda deaths=deaths: len(two_workers.logs("worker started")) == 2 + deaths, "a new one"
            )
            killed = two_workers.logs("worker started")[-1]["pid"]
    pauses = [line["in_s"] for line in two_workers.logs("worker died, replacing it")]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]
    eventually(lambda: len(two_workers.workers()) == 2, "both workers", within_s=60)
