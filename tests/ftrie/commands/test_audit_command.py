"""`ftrie store audit`, after changes with every tool that writes the audit; and `ftrie store dead`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ftrie
from model_store.store import Store
from model_store.streams.dead_letters import Letter
from model_store.versions.audit import operator
from tests.ftrie.conftest import Ask, Say
from tests.model_store.models import model

COMMANDS = """
store activate ads 1
store rollback ads
store resume ads
store resume ads
experiment set ads base=0.9 plain=0.1
experiment pin ads u1=plain
experiment unpin ads --all
experiment shadow ads plain
experiment set ads --salt s
experiment stop ads --winner plain
experiment set ads base=1
experiment clear ads
"""
"""Of which the second resume changes nothing: nothing is pinned any more."""


@pytest.fixture(autouse=True)
def three_versions(store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three versions of `ads`, the last one active, in the store that commands use by default."""
    monkeypatch.setenv("FTRIE_STORE", store_url)
    for number in range(3):
        store.model("ads").publish_and_activate(model(weights=[number + 1.0] * 5))


def entries(ask: Ask) -> list[dict[str, Any]]:
    """What `ftrie store audit ads --json` lists, oldest first."""
    listed: list[dict[str, Any]] = ask("store", "audit", "ads")
    return listed[::-1]


def test_every_command_that_changes_what_is_served_is_listed(store: Store, ask: Ask, say: Say) -> None:
    assert say("store", "audit", "ads")[1] == "ads: no change by an operator is known\n"
    store.trainer_lease("ads", "folder").take()  # with a trainer, a manual activation pins
    for command in COMMANDS.strip().splitlines():
        assert say(*command.split())[0] == 0, command
    found = entries(ask)
    assert [(each["tool"], each["action"]) for each in found] == [
        ("ftrie store activate", "activate"),
        ("ftrie store rollback", "rollback"),
        ("ftrie store resume", "resume"),
        ("ftrie experiment set", "shares"),
        ("ftrie experiment pin", "pin"),
        ("ftrie experiment unpin", "unpin"),
        ("ftrie experiment shadow", "shadow"),
        ("ftrie experiment set", "settings"),
        ("ftrie experiment stop", "stop"),
        ("ftrie experiment set", "start"),
        ("ftrie experiment clear", "clear"),
    ]
    assert {each["who"] for each in found} == {operator()}
    assert [(each["before"], each["after"]) for each in found[:3]] == [("3", "1"), ("1", "3"), ("3", "")]
    assert json.loads(found[3]["after"]) == {"shares": {"base": 0.9, "plain": 0.1}}
    out = say("store", "audit", "ads", "--last", "1")[1]  # the latest
    assert "ftrie experiment clear" in out and operator() in out
    assert out.count(" UTC ") == 1


def test_a_change_from_python_is_listed_and_a_command_that_fails_is_not(ask: Ask, say: Say) -> None:
    assert say("store", "activate", "ads", "9")[0] != 0
    assert say("experiment", "set", "ads", "none=1")[0] != 0
    with ftrie.Store() as opened:
        assert opened.activate("ads", 1) == 3
        assert opened.rollback("ads", 2) == 2
    found = [(each["tool"], each["action"], each["before"], each["after"]) for each in entries(ask)]
    assert found == [("python", "activate", "3", "1"), ("python", "rollback", "1", "2")]


def test_the_change_stays_if_the_audit_cannot_be_written(store: Store, say: Say) -> None:
    store.client.set("ftrie:{ads}:audit", "no stream")
    code, _, err = say("store", "activate", "ads", "1")
    assert (code, "not in the audit" in err) == (0, True)
    assert store.model("ads").active() == 1


def test_dead_letters_are_listed_latest_first_and_give_no_orders_to_the_terminal(
    store: Store, ask: Ask, say: Say
) -> None:
    said = Letter("redis#clicks", "1700000000123-0", "no request_id", '{"item": "ü"}'.encode())
    letters = store.dead_letters("ads")
    letters.add(1, [said, Letter("file:a", "7", "not JSON", b"\xff" * 500)])
    _, out, _ = say("store", "dead", "ads")
    assert out.index("not JSON") < out.index("no request_id")
    assert "redis#clicks" in out and '{"item": "ü"}' in out and "…" in out
    assert ask("store", "dead", "ads", "--last", "1") == [  # with its whole event
        {"number": 2, "source": "file:a", "place": "7", "reason": "not JSON", "event": "\\xff" * 500}
    ]
    letters.add(3, [Letter("file:a", "8", 'event: got "\x1b[2J"', b"\x1b]0;title\x07\r{")])
    _, out, _ = say("store", "dead", "ads", "--last", "1")
    assert r'event: got "\x1b[2J"' in out and r"\x1b]0;title\x07\x0d{" in out
    assert "\x1b" not in out
    assert say("store", "dead", "shop") == (0, "shop: no dead letters\n", "")
