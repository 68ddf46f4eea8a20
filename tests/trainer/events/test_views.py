"""Views: what is one, and the rows that they become with `[join] positive = "view"`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ftrie.cli import run
from model_store.errors import SpecError
from model_store.spec.spec import parse_spec
from tests.trainer.events.sources import Listed, block_of, lines_of
from tests.trainer.oracles.histories import expected, plain
from trainer.events.columns import Wanted, digests
from trainer.events.events import BAD, IMPRESSION, VIEW
from trainer.events.join import Join
from trainer.events.parse import parse, read_lines, validated
from trainer.events.waiting_rows import Segments
from trainer.examples.joined import EventRows, labelled
from trainer.examples.open_log import Log, open_log
from trainer.runs.rounds import check_mergeable
from trainer.sources.merge import Merger

SPEC = parse_spec("""
[model]
name = "m"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
cookie = "cookie"
item = "id"
[fields]
id = {side = "item"}
brand = {side = "item", optional = true}
age = {side = "user", optional = true}
viewed = {side = "user", kind = "set", history = "viewed", measure = "counts", half_life = "20s", scale = "sqrt"}
viewed_before = {side = "item", kind = "number", history = "viewed", measure = "count"}
viewed_brand = {side = "item", kind = "number", history = "viewed", measure = "count", of = "brand"}
shown_before = {side = "item", kind = "number", history = "seen", measure = "count"}
[join]
positive = "view"
alternatives = 3
""").resolve(("click", "ts", "request_id", "cookie", "id", "brand", "age"))
OF_ITEMS = ("id", "brand", "viewed_before", "viewed_brand", "shown_before")
NAMES = (*OF_ITEMS, "age", "viewed", "request_id", "click")
START = 1_700_000_000


def a_view(second: float, item: str, cookie: str = "ann", **more: Any) -> dict[str, Any]:
    features = {"brand": f"b{ord(item[-1]) % 3}"}
    return {
        "event": "view",
        "ts": START + second,
        "cookie": cookie,
        "items": [{"id": item, "features": features}],
        **more,
    }


def a_story(seed: int, events: int) -> list[dict[str, Any]]:
    """Views of a few items, among lists that a server has shown and their clicks."""
    draw, story = random.Random(seed), list[dict[str, Any]]()
    for number in range(events):
        cookie, second = draw.choice(["ann", "bob", "Ümit"]), number + draw.choice([0.0, 0.5])
        if draw.random() < 0.7:
            story.append(
                a_view(second, f"i{draw.randrange(7)}", cookie, user={"age": draw.choice(["20", "30"])})
            )
            continue
        items = [{"id": f"i{each}", "features": {}} for each in draw.sample(range(9), 2)]
        shown = {"request_id": f"r{number}", "ts": START + second, "cookie": cookie, "items": items}
        story += [shown, {"request_id": f"r{number}", "item": items[0]["id"], "ts": START + second}]
    return story


def lists_of(story: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of views, by the book: the item that was viewed, and the last three others, the latest first."""
    rows, lists, latest, views = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, Any](), 0
    for number, event in enumerate(story):
        if event.get("event") != "view":
            lists.append(dict(event))
            continue
        item, views = event["items"][0], views + 1
        latest.pop(item["id"], None)
        items = [item, *list(latest.values())[::-1][:3]]
        latest[item["id"]] = item
        # A list of these that is shown at this time has the same history.
        asked = {"request_id": f"view {number}", "ts": event["ts"], "cookie": event["cookie"], "items": items}
        if len(items) > 1:
            found = expected(SPEC, [*lists, asked])[-len(items) :]
            for place, (each, values) in enumerate(zip(items, found, strict=True)):
                own = {
                    "id": each["id"],
                    "brand": each["features"].get("brand", ""),
                    "age": event["user"]["age"],
                    "request_id": f"view {views}",
                }
                rows.append({**own, **values, "click": int(place == 0)})
        lists.append(dict(event))
    return rows


class Reading:
    """Reads some events to their end, from where another has stopped."""

    def __init__(self, folder: Path) -> None:
        self.segments, self.join = Segments(folder, 1 << 20), Join(SPEC.join)
        self.state: dict[str, Any] = {}
        self.rows = list[dict[str, Any]]()

    def read(self, story: Sequence[Mapping[str, Any]], forget: str = "") -> None:
        merger = Merger([Listed("log", lines_of(story))], Wanted.of(SPEC), self.segments, once=True)
        events = EventRows(merger, self.join, self.segments, SPEC)
        if self.state:
            events.restore_history(self.state)
        if forget:
            events.forget(digests(pa.array([forget.encode()], pa.binary())), np.zeros(0, np.uint64))
        while not merger.ended:
            if (found := events.step(1.0)) is not None:
                joined = found[1]
                places = joined.segment, joined.row, joined.label
                for _, columns in labelled(self.segments, places, SPEC.input, names=NAMES):
                    texts = (columns[name].to_pylist() for name in NAMES)
                    self.rows += [
                        dict(zip(NAMES, map(shown, row), strict=True)) for row in zip(*texts, strict=True)
                    ]
        merger.close()
        self.state = {name: array.copy() for name, array in events.history_state().items()}


def ftrie(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def shown(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else plain(value)


def test_a_view_is_a_list_of_what_was_viewed_and_what_anyone_viewed_last_wherever_the_log_is_cut(
    tmp_path: Path,
):
    story = a_story(1, 150)
    whole, cut, draw, first = Reading(tmp_path / "whole"), Reading(tmp_path / "cut"), random.Random(2), 0
    whole.read(story)
    while first < len(story):
        stop = first + draw.randint(1, 40)
        cut.read(story[first:stop])
        first = stop
    assert len(whole.rows) > 300
    assert whole.rows == cut.rows == lists_of(story)
    assert {name: bytes(each) for name, each in whole.state.items()} == {
        name: bytes(each) for name, each in cut.state.items()
    }
    counts = whole.join.counts
    assert (counts.rows, counts.positives) == (len(whole.rows), sum(row["click"] for row in whole.rows))
    assert counts.rows == counts.positives + counts.negatives
    assert counts == cut.join.counts


def test_who_viewed_is_forgotten_and_what_was_viewed_last_is_not(tmp_path: Path):
    story = a_story(1, 150)
    whole, some = Reading(tmp_path / "whole"), Reading(tmp_path / "some")
    whole.read(story)
    some.read(story[:60])
    assert any(b"ann" in bytes(each) for each in some.state.values())
    some.read([], forget="ann")
    assert not any(b"ann" in bytes(each) for each in some.state.values())
    some.read(story[60:])
    lists = [[(row["id"], row["brand"], row["click"]) for row in each.rows] for each in (some, whole)]
    assert lists[0] == lists[1] and some.rows != whole.rows


def test_a_checkpoint_without_the_number_of_views_has_the_same_rows_numbered_from_one(tmp_path: Path):
    story = a_story(1, 100)
    new, old = Reading(tmp_path / "new"), Reading(tmp_path / "old")
    for each in (new, old):
        each.read(story[:60])
    del old.state["views.lists"]
    before = len(new.rows)
    for each in (new, old):
        each.read(story[60:])
    rows = [[row | {"request_id": ""} for row in each.rows] for each in (new, old)]
    assert rows[0] == rows[1]
    assert old.rows[before]["request_id"] == "view 1" != new.rows[before]["request_id"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"items": []}, "items: got 0 of them, expected the one that was viewed"),
        ({"items": [{"id": "a"}, {"id": "b"}]}, "items: got 2 of them, expected the one that was viewed"),
        ({"items": [{}]}, "items[0].id: missing"),
        ({"items": None, "item": "a"}, 'event: got "view"'),
        ({"items": "a"}, "items: got text, expected a list of objects"),
        ({"ts": None}, "ts: missing"),
    ],
)
def test_what_is_no_view_says_why_and_the_views_around_it_are_taken(wrong: dict[str, Any], reason: str):
    lines = lines_of([a_view(0, "i1"), a_view(1, "i2", request_id="r1") | wrong, a_view(2, "i3")])
    data, starts = block_of(lines)
    for events in (
        parse(data, starts, Wanted.of(SPEC)),
        validated(read_lines(lines, Wanted.of(SPEC)), 2**62),
    ):
        assert events.kind.tolist() == [VIEW, BAD, VIEW]
        assert list(events.bad) == [1] and reason in events.bad[1]
        assert np.diff(events.first).tolist() == [1, 0, 1]


def test_an_impression_of_any_other_event_stays_an_impression_and_views_need_no_request():
    data, starts = block_of(lines_of([a_view(0, "i1", event="shown", request_id="r1"), a_view(1, "i1")]))
    assert parse(data, starts, Wanted.of(SPEC)).kind.tolist() == [IMPRESSION, VIEW]


def test_a_log_of_views_is_read_as_one_of_rows(tmp_path: Path):
    story = [a_view(second, f"i{second % 3}", user={"age": "20"}) for second in range(5)]
    path = tmp_path / "views.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in story))
    with open_log(Log([str(path)]), SPEC) as opened:
        rows = [
            row
            for batch in opened.batches(())
            for row in zip(*(batch.columns[name].to_pylist() for name in ("id", "click")), strict=True)
        ]
    assert rows == [
        *[(b"i1", 1), (b"i0", 0)],
        *[(b"i2", 1), (b"i1", 0), (b"i0", 0)],
        *[(b"i0", 1), (b"i2", 0), (b"i1", 0)],
        *[(b"i1", 1), (b"i0", 0), (b"i2", 0)],
    ]


def test_the_rows_of_a_view_are_one_request_that_is_judged_and_drawn_whole(tmp_path: Path, capsys: Any):
    path, spec, model = (str(tmp_path / name) for name in ("views.jsonl", "m.toml", "m.arrow"))
    story = [a_view(second, f"i{second % 3}", user={"age": "20"}) for second in range(20)]
    Path(path).write_text("".join(json.dumps(each) + "\n" for each in story))
    # Of a request without a click hardly any row would be drawn; each of these has one.
    sections = '[join]\npositive = "view"\n[learner]\nsubsample = { unclicked = 0.01 }\n'
    Path(spec).write_text(
        '[model]\nname = "m"\n[input]\nlabel = "click"\nitem = "id"\n[fields]\nid = { side = "item" }\n'
        + sections
    )
    code, out, err = ftrie(capsys, "train", spec, path, "--save", model, "--json")
    assert (code, json.loads(out)["rows"]) == (0, 2 + 18 * 3), err
    code, out, err = ftrie(capsys, "evaluate", model, path, "--json")
    judged = json.loads(out)
    assert code == 0 and "every request has one row" not in err
    assert judged["requests"]["requests"] == judged["requests"]["clicked"] == 19


def test_without_a_spec_views_alone_are_refused_with_the_page_that_has_one(tmp_path: Path, capsys: Any):
    path = tmp_path / "views.jsonl"
    path.write_text(json.dumps(a_view(0, "i1")) + "\n")
    for command in ("init", "doctor"):
        code, _, err = ftrie(capsys, command, str(path))
        assert code == 3 and "of views alone docs/decide.md has a spec" in err


def test_partitions_refuse_views():
    with pytest.raises(SpecError, match='positive = "view": --partition divides events by request'):
        check_mergeable(SPEC)
