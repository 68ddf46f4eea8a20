"""A running server in this process, on the shop's model, and a client to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ftrie.client.client import Client
from model_store.store import Store
from server.settings import Settings
from tests.server import shop
from tests.server.one_process import Server


@pytest.fixture
def shop_store(store: Store) -> Store:
    """A store with the shop's records and its first model, active."""
    shop.fill(store)
    return store


@pytest.fixture
def start(store: Store, store_url: str) -> Iterator[Callable[..., Server]]:
    """Starts a server on the store; it is drained when the test ends."""
    servers = []

    def started(url: str = store_url, *, store_budget_s: float = 0.2, **more: Any) -> Server:
        server = Server(Settings((shop.NAME,), url, drain_s=1.0, store_budget_s=store_budget_s, **more))
        server.startup()
        servers.append(server)
        return server

    yield started
    for server in servers:
        server.drain()
        server.shutdown()


@pytest.fixture
def server(shop_store: Store, start: Callable[[], Server]) -> Server:
    """A server that serves the shop's first model."""
    running = start()
    assert running.ready.wait(180)
    return running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of `server`."""
    with Client(server.address, timeout_s=20.0) as connected:
        yield connected


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits until a condition that another process or thread brings about holds; fails after 20 seconds."""

    def wait(holds: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(2000):
            if holds():
                return
            pause.wait(0.01)
        pytest.fail("this did not come about within 20 s")

    return wait
