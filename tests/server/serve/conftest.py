"""The store of the server that tests share, for those that report feedback to it or look into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server


@pytest.fixture(scope="session")
def shared_store(shared_server: Server) -> Iterator[Store]:
    """The store of `shared_server`. Who changes the shop's own records in it needs a server of its own."""
    with Store.open(shared_server._settings.store) as opened:
        yield opened


@pytest.fixture
def clicks(shared_store: Store) -> Callable[[], list[dict[str, Any]]]:
    """Reads the feedback in the stream, where there is none yet, nor known from before."""
    stream = shared_store.clicks(shop.NAME)
    shared_store.client.delete(stream.key, *shared_store.client.keys("ftrie:{shop}:feedback:*"))
    return lambda: [json.loads(payload) for payload in stream.read((0, 0), 10_000).payloads]
