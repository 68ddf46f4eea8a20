"""What `--impressions` may name, and what is told at the start of one that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.errors import OutputError, ServerError, StoreError
from server.impressions import sinks
from server.settings import Settings


def check(*names: str) -> None:
    sinks.check(Settings(("shop",), "", impressions=names))


@pytest.mark.parametrize("name", ["kafka://x", "file:", "file", "", "stores", "redis:/:secret@host"])
def test_a_sink_that_is_none_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ServerError, match="expected store, redis://HOST:PORT or file:PATH") as refused:
        check(name)
    assert "secret" not in str(refused.value)


def test_one_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    for url in ("redis://:secret@host:notaport", "redis://:secret@host:99999"):
        with pytest.raises(StoreError, match="cannot read the store's URL") as refused:
            check(url)
        assert "secret" not in str(refused.value)
    with pytest.raises(ServerError, match="one sink is given twice"):
        check("store", "store")
    with pytest.raises(OutputError, match="cannot write impressions to .*nowhere"):
        check(f"file:{tmp_path}/nowhere/x")
