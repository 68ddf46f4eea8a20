"""Commands that run in this process, and servers on the shop's model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftrie.cli import run
from tests.server.conftest import client, server, shared_client, shared_server, shop_store, start

__all__ = ["client", "server", "shared_client", "shared_server", "shop_store", "start"]

Said = tuple[int, str, str]
Say = Callable[..., Said]
Ask = Callable[..., Any]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run `ftrie …`: its exit code, what it printed, and what it said on stderr."""

    def said(*words: object) -> Said:
        capsys.readouterr()
        code = run([*map(str, words)])
        return code, *capsys.readouterr()

    return said


@pytest.fixture
def ask(say: Say) -> Ask:
    """The same with --json: the answer."""

    def answer(*words: object) -> Any:
        code, out, err = say(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return answer
