"""`ftrie store dead` as a user types it."""

from __future__ import annotations

import json

import pytest

from ftrie.cli import run
from model_store.store import Store
from model_store.streams.dead_letters import Letter


@pytest.fixture(autouse=True)
def letters(store: Store) -> None:
    said = Letter("redis#clicks", "1700000000123-0", "no request_id", '{"item": "ü"}'.encode())
    store.dead_letters("ads").add(1, [said, Letter("file:a", "7", "not JSON", b"\xff" * 500)])


def test_letters_are_listed_latest_first(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "dead", "ads", "--store", store_url]) == 0
    out = capsys.readouterr().out
    assert out.index("not JSON") < out.index("no request_id")
    assert "redis#clicks" in out and '{"item": "ü"}' in out and "…" in out


def test_as_json_each_has_its_whole_event(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "dead", "ads", "--store", store_url, "--json", "--last", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"number": 2, "source": "file:a", "place": "7", "reason": "not JSON", "event": "\\xff" * 500}
    ]


def test_a_model_without_any_has_none(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "dead", "shop", "--store", store_url]) == 0
    assert capsys.readouterr().out == "shop: no dead letters\n"


def test_what_users_have_sent_gives_no_orders_to_the_terminal(
    store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = Letter("file:a", "8", 'event: got "\x1b[2J"', b"\x1b]0;title\x07\r{")
    store.dead_letters("ads").add(3, [letter])
    assert run(["store", "dead", "ads", "--store", store_url, "--last", "1"]) == 0
    out = capsys.readouterr().out
    assert r'event: got "\x1b[2J"' in out and r"\x1b]0;title\x07\x0d{" in out
    assert "\x1b" not in out
