"""`ftrie rank` with options and `ftrie explain`, as a user types them, against a running server."""

from __future__ import annotations

import json
import re

import pytest

from ftrie.cli import run
from ftrie.client.client import Client
from ftrie.client.messages import AnyOf, Between, NoneOf, Thompson
from tests.server import shop
from tests.server.one_process import Server

HOUR = "hour=2024-05-01T08:00:00"
ASKED = ["--cookie", "u1", "--candidates", "item-1,item-2,item-3", "--context", HOUR, "--variant", "base"]


def test_flags_ask_what_the_client_asks(
    server: Server, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--objective",
        "ctr * price",
        "--filter",
        "brand=b1,b2,b3",
        "--filter",
        "tags!=red",
        "--filter",
        "price>=2",
    ]
    more = ["--filter", "price<=100", "--cap", "brand=1", "--explore", "thompson:0.5", "--request-id", "r1"]
    assert run(["rank", shop.NAME, "--address", server.address, *ASKED, *flags, *more, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    wanted = client.rank(
        cookie="u1",
        candidates=["item-1", "item-2", "item-3"],
        context={"hour": HOUR[5:]},
        variant="base",
        objective="ctr * price",
        filters=[
            AnyOf("brand", ["b1", "b2", "b3"]),
            NoneOf("tags", ["red"]),
            Between("price", 2),
            Between("price", most=100),
        ],
        caps={"brand": 1},
        exploration=Thompson(0.5),
        request_id="r1",
    )
    assert printed["request_id"] == "r1"
    assert printed["ctr"] == [{item.id: item.ctr} for item in wanted.items]
    assert [(i["id"], i["objective"], i["propensity"]) for i in printed["items"]] == [
        (item.id, item.objective, item.propensity) for item in wanted.items
    ]


def test_a_table_has_a_column_for_what_was_asked(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--explore", "ucb:1", "--objective", "score + no_such_field"]
    assert run(["rank", shop.NAME, "--address", server.address, *ASKED, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "item", "ctr", "score", "uncertainty", "propensity"]
    assert "degraded: objective: 3 of 3 candidates have no value" in lines[-1]
    assert re.fullmatch(
        "shop version 1, variant [a-z]+, request [0-9a-f]{32}", lines[-2]
    )  # for `ftrie feedback`


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--filter", "price>=dear"], 2, "got 'price>=dear', expected a number where 'dear' stands"),
        (["--filter", "price"], 2, "got 'price', expected FIELD=A,B, FIELD!=A,B, FIELD>=N or FIELD<=N"),
        (["--cap", "brand=0"], 2, "got 'brand=0', expected FIELD=N with a whole number from 1 on"),
        (["--cap", "brand"], 2, "got 'brand', expected FIELD=N"),
        (["--explore", "greedy:1"], 2, "got 'greedy:1', expected ucb:WIDTH or thompson:WIDTH"),
        (["--explore", "ucb"], 2, "expected a number where '' stands"),
        (["--explore", "ucb:-1"], 6, "INVALID_ARGUMENT: exploration.ucb.width: got -1.0"),
        (["--objective", "ctr +"], 6, "INVALID_ARGUMENT: objective: at character 6: got the end"),
    ],
)
def test_a_wrong_flag_says_what_is_expected(
    server: Server, flags: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rank", shop.NAME, "--address", server.address, *ASKED, *flags]) == code
    assert message in capsys.readouterr().err


def test_an_explanation_is_a_table_of_bars_an_item(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", shop.NAME, "--address", server.address, *ASKED, "--top-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if ": ctr " in line]
    assert [title.split(".")[0] for title in titles] == ["1", "2"]
    assert lines[1].split() == ["field", "or", "cross", "adds", "key", "weight", "x"]
    # The first group adds most, and its bar is the longest.
    bars = [sum(line.count(mark) for mark in "█░") for line in lines[3 : lines.index("")]]
    assert bars[0] == max(bars) == 24
    assert any("bias" in line for line in lines)
    assert lines[-1] == "shop version 1, variant base"


def test_an_explanation_as_json_adds_up(
    server: Server, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", shop.NAME, "--address", server.address, *ASKED, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for each in printed["items"]:
        total = 0.0
        for group in each["groups"]:
            for key in group["keys"]:
                total += key["contribution"]
        assert total == each["item"]["score"]
    assert printed["variant"] == "base"
