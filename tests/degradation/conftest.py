"""Systems to break: one that many tests share, each mending what it broke, and what is needed to make one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model_store.store import Store
from tests.degradation.learning import OfFiles, OfStreams, ending
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S, Valkey
from tests.degradation.whole_shop import SharedShop, WholeShop
from tests.server import shop
from tests.stores import cluster, sentinel_trio
from tests.waiting import eventually

__all__ = ["cluster", "sentinel_trio"]

THREADS, PLACES = 2, 4


@pytest.fixture(scope="package")
def shared_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedShop]:
    flags = ("--threads", str(THREADS), "--max-concurrency", str(PLACES))
    shared = SharedShop(tmp_path_factory.mktemp("shop"), *flags)
    yield shared
    shared.close()


@pytest.fixture
def whole(shared_shop: SharedShop) -> Iterator[WholeShop]:
    """A whole shop, which must be whole again in the end."""
    yield shared_shop.get()
    shared_shop.check()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A running Valkey of the test's own, with the shop's first version active."""
    running = Valkey(tmp_path)
    try:
        with Store.open(running.url) as store:
            shop.fill(store)
        yield running
    finally:
        running.kill()


@pytest.fixture
def recovered(record_property: Callable[[str, object], None]) -> Recovered:
    return Recovered(record_property)


@pytest.fixture(scope="package")
def shared_of_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfFiles]:
    system = OfFiles(tmp_path_factory.mktemp("files"))
    with ending(system):
        yield system


@pytest.fixture
def of_files(shared_of_files: OfFiles) -> OfFiles:
    """A trainer that learns from a file, and has published all that there is."""
    eventually(shared_of_files.is_served, "all is served", COMPILE_S)
    return shared_of_files


@pytest.fixture(scope="package")
def shared_of_streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfStreams]:
    system = OfStreams(tmp_path_factory.mktemp("streams"))
    with ending(system):
        yield system


@pytest.fixture
def of_streams(shared_of_streams: OfStreams) -> OfStreams:
    """A trainer that learns from its store's streams, and has learned and published all that there is."""
    eventually(shared_of_streams.has_learned_all, "all is served", COMPILE_S)
    return shared_of_streams
