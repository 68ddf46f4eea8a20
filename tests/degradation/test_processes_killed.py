"""docs/degradation.md, "Processes": workers and supervisors are killed while calls are made on fresh connections."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from ftrie.client import METHOD
from tests.degradation.system import Valkey, eventually, serving
from tests.server import shop

REQUEST = RankRequest(item_ids=list(shop.ITEMS), variant="base")
EXPECTED = {item: shop.expected_score(fields, 0) for item, fields in shop.ITEMS.items()}


class Load:
    """Calls one after another, each on a connection of its own, by a few threads."""

    def __init__(self, address: str, threads: int = 3) -> None:
        self._address = address
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self.wrong = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        while not self._stop.is_set():
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(self._address, options=options) as channel:
                call = channel.unary_unary(
                    METHOD,
                    request_serializer=RankRequest.SerializeToString,
                    response_deserializer=RankResponse.FromString,
                )
                try:
                    answer = call(REQUEST, timeout=10, wait_for_ready=True)
                except grpc.RpcError as error:
                    self.answers[error.code().name] += 1
                    continue
            self.answers["OK"] += 1
            scores = {item.id: item.score for item in answer.items}
            self.wrong += scores != pytest.approx(EXPECTED)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """While calls are made; waits for some before, and for some after the block."""
        for thread in self._threads:
            thread.start()
        try:
            self.some_more()
            yield self
            self.some_more()
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def some_more(self, calls: int = 30) -> None:
        """Wait until so many more calls were answered."""
        wanted = self.answers["OK"] + calls
        eventually(lambda: self.answers["OK"] >= wanted, f"{calls} more answers")


def test_worker_killed_under_load(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, "--workers", "2") as running:
        running.await_ready()
        with Load(running.address).running() as load:
            for _ in range(2):
                victim = running.workers()[0]
                os.kill(victim, signal.SIGKILL)
                eventually(
                    lambda killed=victim: len(running.workers()) == 2 and killed not in running.workers(),
                    "a worker in place of the killed one",
                )
                load.some_more()
        assert load.wrong == 0
        # The calls that the killed worker had are lost: at most one a thread and kill.
        assert sum(load.answers.values()) - load.answers["OK"] <= 6
        assert running.metric("ftrie_worker_restarts_total") == 2
        assert running.healthy()


def test_worker_that_hangs_is_replaced(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, "--workers", "2") as running:
        running.await_ready()
        victim = running.workers()[0]
        os.kill(victim, signal.SIGSTOP)
        eventually(
            lambda: len(running.workers()) == 2 and victim not in running.workers(),
            "a worker in place of the one that hangs",
            within_s=60,
        )
        assert running.client.rank(candidates=["item-1"]).version == 1


def test_supervisor_killed_and_succeeded(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, "--workers", "2") as running:
        running.await_ready()
        old = running.workers()
        with Load(running.address).running() as load:
            running.process.kill()
            running.process.wait()
            eventually(
                lambda: any(
                    reason.startswith("model: ")
                    for reason in running.client.rank(candidates=["item-1"]).degraded
                ),
                "answers that say that the supervisor is gone",
            )
            assert running.healthy()
            load.some_more()
            port = running.address.rpartition(":")[2]
            with serving(valkey.url, tmp_path, "--workers", "2", "--port", port) as successor:
                successor.await_ready()
                assert successor.address == running.address
                eventually(lambda: not any(map(alive, old)), "the end of the old workers")
                load.some_more()
                assert successor.client.rank(candidates=["item-1"]).degraded == ()
                assert load.wrong == 0
                assert load.answers == {"OK": load.answers["OK"]}
                load._stop.set()
                for thread in load._threads:
                    thread.join()
                load.some_more = lambda calls=0: None  # type: ignore[method-assign]


def test_workers_without_a_supervisor_end_by_themselves(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path, "--alone", "1") as running:
        running.await_ready()
        old = running.workers()
        running.process.kill()
        running.process.wait()
        eventually(lambda: not any(map(alive, old)), "the end of the workers")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
