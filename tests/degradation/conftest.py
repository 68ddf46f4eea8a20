"""A Valkey that a test may kill, with the shop in it, and a folder for what a server leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.store import Store
from tests.degradation.system import Valkey
from tests.server import shop


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A running Valkey of the test's own, with the shop's first version active."""
    running = Valkey(tmp_path)
    with Store.open(running.url) as store:
        shop.fill(store)
    yield running
    running.go_on()
    running.kill()
