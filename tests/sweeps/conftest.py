"""The store of the sweeps: opened by its socket, so that opening it takes no locks and starts nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from model_store.redis.embedded import SOCKET


@pytest.fixture
def socket_url(valkey_url: str) -> str:
    return f"unix://{valkey_url.removeprefix('embedded:')}/{SOCKET}"


@pytest.fixture
def control(socket_url: str) -> Iterator[Redis[bytes]]:
    """A connection of the test's own, open before anything fails."""
    with Redis.from_url(socket_url, socket_timeout=None) as client:
        client.ping()
        yield client
