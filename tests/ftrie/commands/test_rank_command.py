"""`ftrie rank` as a user types it, against a running server."""

from __future__ import annotations

import json
import re

import pytest

from ftrie.cli import run
from ftrie.client.client import Client
from model_store.errors import FieldValueError
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server

HOUR = "hour=2024-05-01T08:00:00"


def test_json_has_an_object_for_each_item_and_what_a_script_needs_of_the_answer(
    server: Server, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--cookie", "u1", "--candidates", "item-1,item-2,item-3", "--context", HOUR, "--top-k", "2"]
    more = ["--context", "moon=full", "--request-id", "r1"]
    assert run(["rank", shop.NAME, "--address", server.address, *flags, *more, "--json"]) == 0
    wanted = client.rank(
        cookie="u1",
        candidates=["item-1", "item-2", "item-3"],
        context={"hour": HOUR[5:], "moon": "full"},
        top_k=2,
        request_id="r1",
    )
    assert json.loads(capsys.readouterr().out) == {
        "cookie": "u1",
        "ctr": [{item.id: item.ctr} for item in wanted.items],
        "request_id": "r1",
        "version": 1,
        "variant": wanted.variant,
        "degraded": [],
        "unknown_items": [],
        "unknown_fields": ["moon"],
    }


def test_a_table_names_version_and_variant(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--candidate-set", "front page", "--variant", "plain", "--context", "moon=full"]
    assert run(["rank", shop.NAME, "--address", server.address, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "item", "ctr", "score"]
    assert {"item-1", "item-2", "item-3"} <= {word for line in lines for word in line.split()}
    assert re.fullmatch(r"shop version 1, variant plain, request [0-9a-f]{32}", lines[-2])
    assert lines[-1] == "unknown fields: moon"


def test_a_repeated_feature_is_a_set(
    server: Server, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--candidates", "item-1", "--user", "likes=red", "--user", "likes=blue", "--variant", "base"]
    assert run(["rank", shop.NAME, "--address", server.address, *flags, "--json"]) == 0
    wanted = client.rank(candidates=["item-1"], user={"likes": ["red", "blue"]}, variant="base").items[0].ctr
    assert json.loads(capsys.readouterr().out)["ctr"] == [{"item-1": wanted}]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--candidates", "a,,b"], 6, "INVALID_ARGUMENT: item_ids[1]: empty"),
        (["--candidate-set", "no such"], 6, "NOT_FOUND: candidate_set: the store has no set 'no such'"),
        (
            ["--candidates", "a", "--candidate-set", "b"],
            2,
            "give either --candidates A,B,C or --candidate-set",
        ),
        ([], 2, "give either --candidates A,B,C or --candidate-set NAME"),
        (["--candidates", "a", "--context", "hour"], 2, "got 'hour', expected FIELD=VALUE"),
    ],
)
def test_errors_go_to_stderr_with_a_code(
    server: Server, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, message: str
) -> None:
    assert run(["rank", shop.NAME, "--address", server.address, *flags]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_nobody_listening_is_an_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rank", "ads", "--address", "127.0.0.1:1", "--candidates", "a", "--timeout", "5"]) == 6
    assert "127.0.0.1:1: UNAVAILABLE" in capsys.readouterr().err


def test_text_that_is_not_unicode_is_named_and_not_sent(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--cookie", "\udcff", "--candidates", "item-1"]  # as Python hands on the byte 0xff
    assert run(["rank", shop.NAME, "--address", server.address, *flags]) == FieldValueError.exit_code
    assert "which is not Unicode text" in capsys.readouterr().err
