"""`ftrie store audit`, after changes with every tool that writes the audit."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ftrie
from ftrie.cli import run
from model_store.store import Store
from model_store.versions.audit import operator
from tests.model_store.models import model

Entry = dict[str, Any]


@pytest.fixture(autouse=True)
def three_versions(store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three versions of `ads`, the last one active, in the store that commands use by default."""
    monkeypatch.setenv("FTRIE_STORE", store_url)
    for number in range(3):
        store.model("ads").publish_and_activate(model(weights=[number + 1.0] * 5))


def entries(capsys: pytest.CaptureFixture[str]) -> list[Entry]:
    """What `ftrie store audit ads --json` lists, oldest first."""
    capsys.readouterr()
    assert run(["store", "audit", "ads", "--json"]) == 0
    listed: list[Entry] = json.loads(capsys.readouterr().out)
    return listed[::-1]


def test_every_command_that_changes_what_is_served_is_listed(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.trainer_lease("ads", "folder").take()  # with a trainer, a manual activation pins
    for command in (
        ["store", "activate", "ads", "1"],
        ["store", "rollback", "ads"],
        ["store", "resume", "ads"],
        ["store", "resume", "ads"],  # nothing is pinned any more
        ["experiment", "set", "ads", "base=0.9", "plain=0.1"],
        ["experiment", "pin", "ads", "u1=plain"],
        ["experiment", "unpin", "ads", "--all"],
        ["experiment", "shadow", "ads", "plain"],
        ["experiment", "set", "ads", "--salt", "s"],
        ["experiment", "stop", "ads", "--winner", "plain"],
        ["experiment", "set", "ads", "base=1"],
        ["experiment", "clear", "ads"],
    ):
        assert run(command) == 0, command
    found = entries(capsys)
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


def test_a_command_that_fails_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "activate", "ads", "9"]) != 0
    assert run(["experiment", "set", "ads", "none=1"]) != 0
    assert entries(capsys) == []


def test_a_change_from_python_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with ftrie.Store() as opened:
        assert opened.activate("ads", 1) == 3
        assert opened.rollback("ads", 2) == 2
    found = [(each["tool"], each["action"], each["before"], each["after"]) for each in entries(capsys)]
    assert found == [("python", "activate", "3", "1"), ("python", "rollback", "1", "2")]


def test_the_change_stays_if_the_audit_cannot_be_written(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.client.set("ftrie:{ads}:audit", "no stream")
    assert run(["store", "activate", "ads", "1"]) == 0
    assert "not in the audit" in capsys.readouterr().err
    assert store.model("ads").active() == 1


def test_the_table_has_the_latest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "audit", "ads"]) == 0
    assert capsys.readouterr().out == "ads: no change by an operator is known\n"
    for version in ("1", "2"):
        assert run(["store", "activate", "ads", version]) == 0
    capsys.readouterr()
    assert run(["store", "audit", "ads", "--last", "1"]) == 0
    out = capsys.readouterr().out
    assert "ftrie store activate" in out and operator() in out
    assert out.count(" UTC ") == 1
