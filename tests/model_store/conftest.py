"""Runs what a store promises on every kind of store: one server, a cluster, and Sentinel's master."""

from __future__ import annotations

import pytest

from tests.stores import cluster, sentinel_trio

__all__ = ["cluster", "sentinel_trio"]

# Fixtures. A cluster's and Sentinel's own code is run by redis/test_several_servers.py, and by the
# tests that are marked by `on_every_kind`; the others use a cluster in `make test-all` only.
OF_ALL = ("valkey_url", "cluster", pytest.param("sentinel_trio", marks=pytest.mark.slow))
OF_THE_OTHERS = ("valkey_url", pytest.param("cluster", marks=pytest.mark.slow))
MODULES = (
    *("records.test_item_changes", "records.test_records"),
    *("streams.test_dead_letters", "streams.test_event_streams", "streams.test_feedback"),
    *("versions.test_chains", "versions.test_experiments", "versions.test_lease"),
    *("versions.test_model_versions", "versions.test_pin", "versions.test_rounds", "test_store_check"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests of these modules that use a store."""
    if metafunc.module.__name__.endswith(MODULES) and "store_url" in metafunc.fixturenames:
        kinds = OF_ALL if hasattr(metafunc.function, "on_every_kind") else OF_THE_OTHERS
        metafunc.parametrize("store_url", kinds, indirect=True)
