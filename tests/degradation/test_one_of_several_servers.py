"""docs/degradation.md, "One of several servers": they leave and come back under clients that balance; no call fails.

Two clients call all the time, one of them in turn and one by cookie; each call has a user of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ftrie.api.access import BALANCES
from ftrie.demo.processes import free_ports
from model_store.store import Store
from tests.degradation.load import BalancedLoad
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, serving
from tests.server import shop
from tests.waiting import eventually

SERVERS = 3


class Servers:
    """Servers of one store, each at an address that it keeps over its ends."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.ports = free_ports(SERVERS)
        self.addresses = [f"127.0.0.1:{port}" for port in self.ports]
        self.running: dict[int, Running] = {}
        self._open: dict[int, ExitStack] = {}

    def start(self, number: int) -> Running:
        folder = self._folder / f"server-{number}"
        folder.mkdir(exist_ok=True)
        self._open[number] = ExitStack()
        started = serving(self._store, folder, "--port", str(self.ports[number]))
        self.running[number] = self._open[number].enter_context(started)
        return self.running[number]

    def end(self, number: int) -> None:
        self._open.pop(number).close()

    def kill(self, number: int) -> None:
        running = self.running[number]
        for pid in [running.process.pid, *running.workers()]:
            os.kill(pid, signal.SIGKILL)
        running.process.wait()
        self.end(number)

    def called(self, number: int) -> float:
        return self.running[number].metric("ftrie_call_seconds_count")

    def all_are_called(self) -> None:
        before = [self.called(number) for number in self.running]
        for number in self.running:
            eventually(lambda n=number: self.called(n) > before[n], f"calls of server {number}")

    def close(self) -> None:
        for number in list(self._open):
            self.end(number)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All of them run, and each test leaves them so."""
    folder = tmp_path_factory.mktemp("servers")
    valkey = Valkey(folder)
    several = Servers(valkey.url, folder)
    try:
        with Store.open(valkey.url) as store:
            shop.fill(store)
        for number in range(SERVERS):
            several.start(number)
        for running in several.running.values():
            running.await_ready()
        yield several
    finally:
        several.close()
        valkey.kill()


@contextmanager
def balanced(addresses: list[str]) -> Iterator[list[BalancedLoad]]:
    """A client of each kind, while both call all servers. In the end, no call of theirs may have failed."""
    with ExitStack() as both:
        loads = [both.enter_context(BalancedLoad(addresses, b).running()) for b in BALANCES]
        yield loads
    for load in loads:
        assert (load.failed, load.wrong) == (0, 0), load.answers


@pytest.mark.slow
def test_servers_are_replaced_one_after_another(servers: Servers, recovered: Recovered) -> None:
    with balanced(servers.addresses) as loads:
        servers.all_are_called()
        for number in range(SERVERS):
            servers.end(number)
            for load in loads:
                load.some_more()  # by the others
            servers.start(number).await_ready()
            recovered.then(lambda n=number: servers.called(n) > 0, "the replacement gets calls")
        servers.all_are_called()


@pytest.mark.slow
def test_one_of_several_servers_is_killed(servers: Servers, recovered: Recovered) -> None:
    with balanced(servers.addresses) as loads:
        servers.all_are_called()
        servers.kill(0)
        recovered.from_now()
        for load in loads:
            load.some_more(30)
        recovered.when(lambda: True, "the others have answered 60 calls")
        servers.start(0).await_ready()
        recovered.then(lambda: servers.called(0) > 0, "its replacement gets calls")


@pytest.mark.slow
def test_one_of_several_servers_is_unhealthy(servers: Servers, tmp_path: Path, recovered: Recovered) -> None:
    empty = Valkey(tmp_path)
    try:
        with (
            serving(empty.url, tmp_path) as unhealthy,
            balanced([unhealthy.address, *servers.addresses]) as loads,
        ):
            assert not unhealthy.healthy()
            for load in loads:
                load.some_more(60)
            assert unhealthy.metric("ftrie_call_seconds_count") == 0
            assert unhealthy.metric("ftrie_errors_total", method="Rank") == 0
            with Store.open(empty.url) as store:
                shop.fill(store)
            unhealthy.await_ready()
            recovered.then(lambda: unhealthy.metric("ftrie_call_seconds_count") > 0, "it gets calls")
    finally:
        empty.kill()
