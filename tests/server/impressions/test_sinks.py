"""What `--impressions` may name, and what is told at the start of one that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.errors import OutputError, ServerError, StoreError
from server.impressions import sinks
from server.settings import Settings


@pytest.mark.parametrize("name", ["kafka://x", "file:", "file", "", "stores"])
def test_a_sink_that_is_none_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ServerError, match="expected store, redis://HOST:PORT or file:PATH"):
        sinks.check(Settings(("shop",), "", impressions=(name,)))


def test_a_password_in_a_sink_is_not_shown() -> None:
    with pytest.raises(ServerError) as refused:
        sinks.check(Settings(("shop",), "", impressions=("redis:/:secret@host",)))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis://:secret@host:notaport", "redis://:secret@host:99999"])
def test_a_url_that_is_none_is_told_at_the_start(url: str) -> None:
    with pytest.raises(StoreError, match="cannot read the store's URL") as refused:
        sinks.check(Settings(("shop",), "", impressions=(url,)))
    assert "secret" not in str(refused.value)


def test_a_sink_is_named_once() -> None:
    with pytest.raises(ServerError, match="one sink is given twice"):
        sinks.check(Settings(("shop",), "", impressions=("store", "store")))


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write impressions to .*nowhere"):
        sinks.check(Settings(("shop",), "", impressions=(f"file:{tmp_path}/nowhere/x",)))
