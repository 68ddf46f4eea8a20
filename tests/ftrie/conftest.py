"""Commands that run in this process, and servers on the shop's model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftrie.cli import run
from model_store.store import Store
from tests.model_store.models import model
from tests.server.conftest import client, server, shared_client, shared_server, shop_store, start

__all__ = ["client", "server", "shared_client", "shared_server", "shop_store", "start"]

Said = tuple[int, str, str]
Say = Callable[..., Said]
Ask = Callable[..., Any]


@pytest.fixture
def default_store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's store is the one that commands use by default."""
    monkeypatch.setenv("FTRIE_STORE", store_url)


@pytest.fixture
def ads(store: Store, default_store: None) -> None:
    """ads, with the variants base and plain, is active in the default store."""
    store.model("ads").publish_and_activate(model())


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run `ftrie …`: its exit code, what it printed, and what it said on stderr."""

    def said(*words: object) -> Said:
        capsys.readouterr()
        return run([*map(str, words)]), *capsys.readouterr()

    return said


@pytest.fixture
def ask(say: Say) -> Ask:
    """The same with --json: the answer."""

    def answer(*words: object) -> Any:
        code, out, err = say(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return answer
