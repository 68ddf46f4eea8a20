"""`ftrie feedback` and `Client.feedback`, as users have them, against a running server."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback, Rejected, Report, ReportFailed
from model_store.errors import FieldValueError
from model_store.store import Store
from tests.ftrie.conftest import Ask, Said, Say
from tests.server import shop
from tests.server.one_process import Server

ROOT = Path(__file__).resolve().parents[3]


def stream(store: Store) -> list[dict[str, Any]]:
    payloads = store.clicks(shop.NAME).read((0, 0), 10_000).payloads
    return [json.loads(payload) for payload in payloads]


def test_what_a_client_reports_goes_to_the_stream_with_the_request_it_belongs_to(
    client: Client, store: Store
) -> None:
    ranking = client.rank(shop.NAME, cookie="u1", candidates=["item-1", "item-2"])
    when = datetime(2024, 5, 1, 10, tzinfo=timezone(timedelta(hours=2)))
    events = [
        Feedback(ranking.request_id, ranking.items[0].id),
        Feedback(ranking.request_id, ranking.items[1].id, "conversion", "sale-7", when, 49.5),
    ]
    assert client.feedback(shop.NAME, events) == Report(2, 0)
    assert client.feedback(shop.NAME, events) == Report(0, 2)
    click, sale = stream(store)
    assert (click["request_id"], click["item"]) == (ranking.request_id, ranking.items[0].id)
    assert (sale["ts"], sale["value"]) == (datetime(2024, 5, 1, 8, tzinfo=UTC).timestamp(), 49.5)
    report = client.feedback("", [Feedback("r", "a"), Feedback("r", "")])
    assert report == Report(1, 0, (Rejected(1, "item_id: got 0 bytes, expected 1 to 4,096"),))


def test_a_failed_report_says_when_to_come_back_if_that_would_help(client: Client, store: Store) -> None:
    with pytest.raises(ReportFailed, match="NOT_FOUND: model: this server serves 'shop'") as wrong:
        client.feedback("other", [Feedback("r", "a")])
    assert (wrong.value.code, wrong.value.retry_after_s) == (grpc.StatusCode.NOT_FOUND, None)
    store.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(ReportFailed, match="UNAVAILABLE") as full:
            client.feedback("", [Feedback("r", "a")])
    finally:
        store.client.config_set("maxmemory", "0")
    assert full.value.retry_after_s is not None and 0.2 <= full.value.retry_after_s <= 1.0


def test_the_command_reports_item_by_item_and_once(server: Server, store: Store, ask: Ask, say: Say) -> None:
    def told(*words: str) -> Said:
        return say("feedback", shop.NAME, *words, "--address", server.address)

    assert told("r1", "item-1", "item-2") == (0, "2 accepted, 0 reported before\n", "")
    assert told("r1", "item-1", "item-2")[1] == "0 accepted, 2 reported before\n"
    assert [event["item"] for event in stream(store)] == ["item-1", "item-2"]

    asked = ["--cookie", "u1", "--candidates", "item-1,item-2", "--address", server.address]
    answer = ask("rank", shop.NAME, *asked)
    (best,) = answer["ctr"][0]  # a click on what it printed is reported as it stands there
    assert told(answer["request_id"], best)[:2] == (0, "1 accepted, 0 reported before\n")
    event = stream(store)[-1]
    assert (event["request_id"], event["item"]) == (answer["request_id"], best)

    words = [shop.NAME, "r1", "item-1", "--conversion", "--value", "2.5", "--event-id", "e"]
    found = ask("feedback", *words, "--address", server.address)
    assert found == {"accepted": 1, "duplicates": 0, "rejected": 0}
    event = stream(store)[-1]
    assert (event["event"], event["value"], event["event_id"]) == ("conversion", 2.5, "e")

    for words, new in (
        ("a b --seen", 2),
        ("--seen-to 3", 1),
        ("--seen-to 3", 0),
        ("--seen-to 4", 1),
        ("--activated", 1),
    ):
        assert (
            told("r2", *words.split())[1]
            == f"{new} accepted, {words.count('--') - min(new, 1)} reported before\n"
        )
    of_r2 = [(each["event"], each.get("item"), each.get("position")) for each in stream(store)[-5:]]
    seen = [("seen", "a", None), ("seen", "b", None), ("seen", None, 3), ("seen", None, 4)]
    assert of_r2 == [*seen, ("activated", None, None)]
    assert (
        told("r2", "a", "--seen-to", "3")[0]
        == told("r2", "--seen")[0]
        == told("r2", "--seen-to", "0")[0]
        == 2
    )
    lines = io.StringIO('{"request_id": "r3", "event": "seen", "position": 1.5}\n')
    assert Feedback.from_json('{"request_id": "r3", "event": "seen", "position": 2}').position == 2
    with pytest.raises(FieldValueError, match="position: got 1.5, expected a whole number of 1 or more"):
        Feedback.from_json(lines.read())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("jq"), reason="needs jq, as the script does")
def test_the_script_of_the_documentation_ranks_and_reports_a_click(server: Server, store: Store) -> None:
    (script,) = re.findall(r"```sh\n(answer=.*?)```", (ROOT / "docs/events.md").read_text(), re.DOTALL)
    script = script.replace(" ads ", f" {shop.NAME} ").replace("shoes-7,shoes-9", "item-1,item-2")
    place = {"FTRIE_RANK_ADDRESS": server.address, "FTRIE_FEEDBACK_ADDRESS": server.address}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **place, "PATH": path}
    done = subprocess.run(["bash", "-euc", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "1 accepted, 0 reported before", done.stderr
    assert stream(store)[0]["item"] in ("item-1", "item-2")


def test_a_file_or_the_standard_input_is_reported_line_by_line_and_bad_lines_are_named(
    server: Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    lines = [json.dumps({"request_id": "r1", "item": number, "ts": 1.7e12}) for number in range(1500)]
    odd = [
        '{"request_id": "r1"}',
        "{",
        "[]",
        '{"item": 1, "ts": "soon"}',
        '{"event": "view"}',
        '{"event": "view", "ts": 1.7e9, "cookie": "ann", "items": [{"id": 7, "features": {"tags": ["a"]}}]}',
        "",
        "[" * 9999,
    ]
    path = tmp_path / "clicks.jsonl"
    path.write_text("\n".join([*lines[:700], *odd, *lines[700:]]))
    code, out, err = say("feedback", shop.NAME, "--file", path, "--address", server.address)
    assert (code, out) == (3, "1,500 accepted, 0 reported before\n")
    for number, reason in (
        (701, "item_id: got 0 bytes"),
        (702, "not JSON"),
        (703, "expected a JSON object"),
        (704, "ts: got 'soon'"),
        (705, "items: got None, expected the one that was viewed"),
        (706, "features.tags: got ['a'], expected a text or a number"),
        (708, "not JSON"),
    ):
        assert f"{path}:{number}: rejected: {reason}" in err
    assert "7 events rejected; the others are stored" in err
    assert {event["ts"] for event in stream(store)} == {1.7e9}

    view: dict[str, Any] = {"event": "view", "ts": 1.7e9, "cookie": "ann", "items": [{"id": 7}]}
    view["items"][0]["features"] = {"price": 9.5, "brand": 3.0, "size": None}
    path.write_text(json.dumps(view))
    for told in ("1 accepted, 0 reported before\n", "0 accepted, 1 reported before\n"):
        assert say("feedback", shop.NAME, "--file", path, "--address", server.address)[:2] == (0, told)
    assert stream(store)[-1] == view | {"items": [{"id": "7", "features": {"price": "9.5", "brand": "3"}}]}

    line = b'{"request_id": "r1", "item": "a", "ts": "2024-05-01T08:00:00Z", "event_id": "e"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert say("feedback", shop.NAME, "--file", "-", "--address", server.address)[0] == 0
    assert stream(store)[-1]["ts"] == datetime(2024, 5, 1, 8, tzinfo=UTC).timestamp()


def test_what_is_wrong_is_said(shared_server: Server, shared_client: Client, say: Say) -> None:
    for words, code, message in (
        ("r1", 2, "give REQUEST_ID and at least one ITEM, or --file FILE"),
        ("r1 a --file x", 2, "give either REQUEST_ID and ITEM, or --file, not both"),
        ("r1 a b --event-id e", 2, "--event-id identifies one event; got 2 items"),
        ("--file /no/such/file", 3, "cannot read /no/such/file: No such file"),
        ("r1 " + "x" * 5000, 3, "1 event rejected"),
    ):
        done, _, err = say("feedback", shop.NAME, *words.split(), "--address", shared_server.address)
        assert done == code
        assert message in " ".join(err.replace("│", " ").split())
    unknown: Any = "look"
    for bad in (Feedback("\udcff", "a"), Feedback("r", "a", unknown)):
        with pytest.raises(FieldValueError):  # and it is not sent
            shared_client.feedback("", [bad])
