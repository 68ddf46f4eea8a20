"""`ftrie rank` and `ftrie explain` as a user types them, against a running server; what `ftrie admin status` prints."""

from __future__ import annotations

import re

import pytest

from ctr.v1 import admin_pb2
from ftrie.api.client import Client
from ftrie.api.messages import AnyOf, Between, NoneOf, Thompson
from ftrie.commands.admin import plain, traffic
from model_store.errors import FieldValueError
from tests.ftrie.conftest import Ask, Say
from tests.server import shop
from tests.server.one_process import Server

HOUR = "hour=2024-05-01T08:00:00"
ITEMS = ["item-1", "item-2", "item-3"]
ASKED = ["--cookie", "u1", "--candidates", ",".join(ITEMS), "--context", HOUR]


@pytest.fixture
def rank(shared_server: Server) -> list[str]:
    return ["rank", shop.NAME, "--address", shared_server.address]


def test_json_has_an_object_for_each_item_and_what_a_script_needs_of_the_answer(
    rank: list[str], shared_client: Client, ask: Ask
) -> None:
    wanted = shared_client.rank(
        cookie="u1", candidates=ITEMS, context={"hour": HOUR[5:], "moon": "full"}, top_k=2, request_id="r1"
    )
    assert ask(*rank, *ASKED, "--top-k", 2, "--context", "moon=full", "--request-id", "r1") == {
        "cookie": "u1",
        "ctr": [{item.id: item.ctr} for item in wanted.items],
        "request_id": "r1",
        "version": 1,
        "variant": wanted.variant,
        "degraded": [],
        "unknown_items": [],
        "unknown_fields": ["moon"],
    }


def test_a_user_is_an_id_or_features(rank: list[str], ask: Ask) -> None:
    same = ["--candidates", ",".join(ITEMS), "--user", "likes=red", "--request-id", "r1"]
    by_name = [ask(*rank, *same, *flags) for flags in (["--user", "u1"], ["--cookie", "u1"])]
    assert by_name[0] == by_name[1] and by_name[0]["cookie"] == "u1"
    assert ask(*rank, *same, "--cookie", "a=b")["cookie"] == "a=b"


def test_flags_ask_what_the_client_asks(rank: list[str], shared_client: Client, ask: Ask) -> None:
    tests = ["brand=b1,b2,b3", "tags!=red", "price>=2", "price<=100"]
    flags = [word for test in tests for word in ("--filter", test)]
    flags += ["--user", "likes=red", "--user", "likes=blue", "--objective", "ctr * price", "--cap", "brand=1"]
    flags += ["--explore", "thompson:0.5", "--request-id", "r1", "--variant", "base"]
    printed = ask(*rank, *ASKED, *flags)
    wanted = shared_client.rank(
        cookie="u1",
        candidates=ITEMS,
        context={"hour": HOUR[5:]},
        user={"likes": ["red", "blue"]},  # a repeated feature is a set
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
    assert printed["request_id"] == "r1" and wanted.items
    assert printed["ctr"] == [{item.id: item.ctr} for item in wanted.items]
    assert [(i["id"], i["objective"], i["propensity"]) for i in printed["items"]] == [
        (item.id, item.objective, item.propensity) for item in wanted.items
    ]


def test_a_table_names_version_and_variant_and_has_what_was_asked(rank: list[str], say: Say) -> None:
    flags = ["--candidate-set", "front page", "--variant", "plain", "--context", "hourr=21"]
    code, out, _ = say(*rank, *flags)
    lines = out.splitlines()
    assert (code, lines[0].split()) == (0, ["rank", "item", "ctr", "score"])
    assert {*ITEMS} <= {word for line in lines for word in line.split()}
    assert re.fullmatch(r"shop version 1, variant plain, request [0-9a-f]{32}", lines[-2])  # for feedback
    assert lines[-1].startswith("unknown fields: hourr; the model has: ")
    assert lines[-1].endswith("; did you mean hour?")
    flags = ["--explore", "ucb:1", "--objective", "score + no_such_field"]
    lines = say(*rank, *ASKED, *flags)[1].splitlines()
    assert lines[0].split() == ["rank", "item", "ctr", "score", "uncertainty", "propensity"]
    assert "degraded: objective: 3 of 3 candidates have no value" in lines[-1]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--candidates", "a,,b"], 6, "INVALID_ARGUMENT: item_ids[1]: empty"),
        (["--candidate-set", "no such"], 6, "NOT_FOUND: candidate_set: the store has no set 'no such'"),
        ([*ASKED, "--candidate-set", "b"], 2, "give either --candidates A,B,C or --candidate-set"),
        ([], 2, "give either --candidates A,B,C or --candidate-set NAME"),
        (["--candidates", "a", "--context", "hour"], 2, "got 'hour', expected FIELD=VALUE"),
        ([*ASKED, "--user", "u2"], 2, "got the user ids u1, u2; give one"),
        ([*ASKED, "--filter", "price>=dear"], 2, "expected a number where 'dear' stands"),
        ([*ASKED, "--filter", "price"], 2, "expected FIELD=A,B, FIELD!=A,B, FIELD>=N or FIELD<=N"),
        ([*ASKED, "--cap", "brand=0"], 2, "got 'brand=0', expected FIELD=N with a whole number from 1 on"),
        ([*ASKED, "--cap", "brand"], 2, "got 'brand', expected FIELD=N"),
        ([*ASKED, "--explore", "greedy:1"], 2, "got 'greedy:1', expected ucb:WIDTH or thompson:WIDTH"),
        ([*ASKED, "--explore", "ucb"], 2, "expected a number where '' stands"),
        ([*ASKED, "--explore", "ucb:-1"], 6, "INVALID_ARGUMENT: exploration.ucb.width: got -1.0"),
        ([*ASKED, "--objective", "ctr +"], 6, "INVALID_ARGUMENT: objective: at character 6: got the end"),
        # As Python hands on the byte 0xff:
        ([*ASKED, "--variant", "\udcff"], FieldValueError.exit_code, "which is not Unicode text"),
        (
            [*ASKED, "--address", "127.0.0.1:1", "--timeout", "5"],
            6,
            "no server at 127.0.0.1:1: Connection refused",
        ),
    ],
)
def test_errors_go_to_stderr_with_a_code_and_say_what_is_expected(
    rank: list[str], say: Say, flags: list[str], code: int, message: str
) -> None:
    ended, out, err = say(*rank, *flags)
    assert (ended, out) == (code, "")
    assert message in err


def test_an_explanation_is_a_table_of_bars_an_item_and_as_json_adds_up(
    shared_server: Server, ask: Ask, say: Say
) -> None:
    explain = ["explain", shop.NAME, "--address", shared_server.address, *ASKED, "--variant", "base"]
    lines = say(*explain, "--top-k", "2")[1].splitlines()
    assert [line.split(".")[0] for line in lines if ": ctr " in line] == ["1", "2"]
    assert lines[1].split() == ["field", "or", "cross", "adds", "key", "weight", "x"]
    # The first group adds most, and its bar is the longest.
    bars = [sum(line.count(mark) for mark in "█░") for line in lines[3 : lines.index("")]]
    assert bars[0] == max(bars) == 24
    assert any("bias" in line for line in lines)
    assert lines[-1] == "shop version 1, variant base"
    said = say(*explain, "--context", "likess=red")[1].splitlines()[-1]
    assert said.startswith("unknown fields: likess; the model has: age, ") and said.endswith(
        "did you mean likes?"
    )

    printed = ask(*explain)
    assert printed["variant"] == "base"
    for each in printed["items"]:
        total = 0.0
        for group in each["groups"]:
            for key in group["keys"]:
                total += key["contribution"]
        assert total == each["item"]["score"]


def test_traffic_names_a_few_variants_and_counts_the_others() -> None:
    shares = [{"variant": f"v{number}", "share": 1 / 32} for number in range(32)]
    split = {"interleave": [], "draft": ""}
    assert traffic(split | {"shares": shares[:2]}) == "v0 3.1%, v1 3.1%"
    assert traffic(split | {"shares": shares}) == "v0 3.1%, v1 3.1%, v2 3.1%, v3 3.1%, … 32 in all"
    assert traffic(split | {"shares": []}) == ""
    together = {"interleave": ["v0", "v1"], "draft": "team", "shares": shares}
    assert traffic(together) == "v0+v1, team draft"


def test_a_status_as_json_has_every_field_in_order_and_null_for_one_that_is_absent() -> None:
    status = admin_pb2.GetStatusResponse(ready=True)
    status.models.add(name="ads", key_count=7, kind=admin_pb2.VERSION_KIND_DELTA).refusal_counts[
        "damaged"
    ] = 2
    status.workers.add(state=admin_pb2.WORKER_STATE_SERVING).versions["ads"] = 1 << 40
    made = plain(status)
    for message, found in ((status, made), (status.models[0], made["models"][0])):
        assert list(found) == [field.name for field in message.DESCRIPTOR.fields]
    model, worker = made["models"][0], made["workers"][0]
    assert (model["version"], model["publish_time"], model["traffic_split"]) == (None, None, None)
    assert (model["kind"], model["source"], model["key_count"]) == ("delta", "", 7)
    assert model["refusal_counts"] == {"damaged": 2} and worker["versions"] == {"ads": 1 << 40}
    assert worker["state"] == "serving"
