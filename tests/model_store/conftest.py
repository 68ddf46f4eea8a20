"""Runs what a store promises on every kind of store: one server, a cluster, and Sentinel's master."""

from __future__ import annotations

import pytest

KINDS = ("valkey_url", "cluster", pytest.param("sentinel_trio", marks=pytest.mark.slow))
"""Fixtures of tests/conftest.py."""
ON_EVERY_KIND = (
    "records.test_item_changes",
    "records.test_records",
    "streams.test_dead_letters",
    "streams.test_event_streams",
    "streams.test_feedback",
    "test_store_check",
    "versions.test_chains",
    "versions.test_experiments",
    "versions.test_lease",
    "versions.test_model_versions",
    "versions.test_pin",
    "versions.test_published_listed",
    "versions.test_rounds",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests of these modules that use a store."""
    is_for_all = metafunc.module.__name__.endswith(ON_EVERY_KIND)
    if is_for_all and "store_url" in metafunc.fixturenames:
        metafunc.parametrize("store_url", KINDS, indirect=True)
