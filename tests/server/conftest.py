"""A running server in this process, on the shop's model, and a client to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ftrie.api.client import Client
from model_store.store import Store
from server.settings import Settings
from tests.server import shop
from tests.server.one_process import Server, serving


@pytest.fixture
def shop_store(store: Store) -> Store:
    """A store with the shop's records and its first model, active."""
    shop.fill(store)
    return store


@pytest.fixture
def start(store: Store, store_url: str) -> Iterator[Callable[..., Server]]:
    """Starts a server on the store; it is stopped when the test ends, without a pause in which it refuses calls."""
    servers = []

    def started(url: str = store_url, *, store_budget_s: float = 0.2, **more: Any) -> Server:
        server = Server(Settings((shop.NAME,), url, drain_s=1.0, store_budget_s=store_budget_s, **more))
        server.startup()
        servers.append(server)
        return server

    yield started
    for server in servers:
        server.end()


@pytest.fixture
def server(shop_store: Store, start: Callable[[], Server]) -> Server:
    """A server that serves the shop's first model."""
    running = start()
    assert running.ready.wait(180)
    return running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, timeout_s=20.0) as connected:
        yield connected


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """A server on the shop's first model with a store of its own, for the tests that only ask."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        shop.fill(store)
        with serving(store.url, store_budget_s=2.0) as server:
            yield server


@pytest.fixture(scope="session")
def shared_client(shared_server: Server) -> Iterator[Client]:
    with Client(shared_server.address, timeout_s=20.0) as connected:
        yield connected
