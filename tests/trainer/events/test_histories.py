"""Values of histories, filled into the rows of impressions as events pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from model_store.features.history import HistoryPlan
from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.trainer.events.sources import Tables, block_of, lines_of
from tests.trainer.oracles.histories import expected, plain
from trainer.events import histories
from trainer.events.columns import Wanted
from trainer.events.events import Chunk
from trainer.events.histories import EventHistories
from trainer.events.parse import Parser
from trainer.sources.merge import Parsed, Part, merge

SPEC = parse_spec("""
[model]
name = "m"
[input]
label = "click"
timestamp = "ts"
cookie = "cookie"
item = "id"
[fields]
brand = {side = "item"}
seen_items = {side = "user", kind = "set", history = "seen", measure = "last", last = 7}
clicked_brands = {side = "user", kind = "set", history = "clicked", measure = "last", of = "brand", last = 2}
clicks = {side = "user", kind = "number", history = "clicked", measure = "count", within = "60s"}
quiet = {side = "user", kind = "number", history = "clicked", measure = "age"}
seen_before = {side = "item", kind = "number", history = "seen", measure = "count", within = "90s"}
seen_ago = {side = "item", kind = "number", history = "seen", measure = "age"}
brand_clicks = {side = "item", kind = "number", history = "clicked", measure = "count", of = "brand"}
viewed_items = {side = "user", kind = "set", history = "viewed", measure = "counts", half_life = "20s"}
viewed_brands = {side = "user", kind = "set", history = "viewed", measure = "counts", of = "brand", within = "60s"}
views = {side = "item", kind = "number", history = "viewed", measure = "count"}
bought_ago = {side = "item", kind = "number", history = "converted", measure = "age", of = "brand"}
[join]
window = "40s"
lateness = "3s"
""").resolve(("click", "ts", "cookie", "id", "brand"))
FIELDS = [name for name, field in SPEC.fields.items() if field.history is not None]
START = 1_700_000_000


class Segments(Tables):
    def table(self, number: int) -> Mapping[str, Any]:
        return self.tables[number]

    def replace(self, number: int, columns: Mapping[str, Any]) -> None:
        self.tables[number] = columns


def a_story(seed: int, events: int = 500) -> list[dict[str, Any]]:
    """Impressions, feedback and views: out of order, repeated, early, late, of unknown items, without cookies."""
    draw = random.Random(seed)
    story, shown, now = list[dict[str, Any]](), list[dict[str, Any]](), 0.0
    for number in range(events):
        now += draw.choice([0, 0, 0.25, 0.5, 1.75])
        ts = START + max(0.0, now - draw.choice([0, 0, 0, 1.5, 4.0]))
        if draw.random() < 0.2:
            viewed = draw.randrange(9)
            item = {"id": f"i{viewed}", "features": {"brand": f"b{viewed % 3}"} if viewed % 4 else {}}
            cookie = draw.choice(["ann", "bob", "ann", "Ümit", ""])
            story.append({"event": "view", "ts": ts, "cookie": cookie, "items": [item]})
        elif draw.random() < 0.5 or not shown:
            items = draw.sample(range(9), draw.randint(0, 4))
            brands = {k: {"brand": f"b{k % 3}"} if k % 4 else {} for k in items}
            event = {
                "request_id": f"r{number}",
                "ts": ts,
                "cookie": draw.choice(["ann", "bob", "ann", "Ümit", ""]),
                "items": [{"id": f"i{k}", "features": brands[k]} for k in items],
            }
            shown.append(event)
            story.append(event if draw.random() < 0.9 else {"request_id": "other", "ts": ts, "item": "i1"})
            if draw.random() < 0.05:
                story.append(draw.choice(shown))
        else:
            request = draw.choice(shown[-12:] if draw.random() < 0.9 else shown)
            item = draw.choice(request["items"])["id"] if request["items"] and draw.random() < 0.95 else "i99"
            what = draw.choice(["click", "click", "conversion"])
            event = {"request_id": request["request_id"], "ts": ts, "item": item, "event": what}
            story += [event] * draw.choice([1, 1, 2])
    return story


def take(taken: EventHistories, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history columns of the rows of these events, as filled."""
    data, starts = block_of(lines_of(events))
    parsed = Parser(Wanted.of(SPEC)).parse(data, starts)
    marks = np.zeros((len(events), 1), np.int64)
    chunk = Parsed(Chunk(data, starts, None, marks, {}), parsed, np.arange(len(events)), 0)
    segments = Segments()
    taken.take(merge([Part(0, chunk, 0, len(events))], [], segments.add), segments)
    if not segments.tables:
        return []
    columns = segments.tables[0]
    rows = zip(*(columns[name].to_pylist() for name in FIELDS), strict=True)
    return [{name: plain(value) for name, value in zip(FIELDS, row, strict=True)} for row in rows]


def new() -> EventHistories:
    taken = EventHistories.of(SPEC)
    assert taken is not None
    return taken


@pytest.mark.parametrize("seed", slow_except([0, 3], range(4)))
def test_a_row_has_what_the_raw_events_before_its_request_say(seed: int):
    story = a_story(seed, 150)  # the oracle reads all events before each request again
    assert take(new(), story) == expected(SPEC, story)


def test_values_do_not_depend_on_how_events_are_cut_nor_on_restarts_between(monkeypatch: pytest.MonkeyPatch):
    story = a_story(1)
    whole = new()
    rows = take(whole, story)
    monkeypatch.setattr(histories, "MOST_UNPACKED", 2)
    taken, found, first = new(), [], 0
    draw = random.Random(1)
    while first < len(story):
        stop = first + draw.randint(1, 40)
        found += take(taken, story[first:stop])
        saved = {name: array.copy() for name, array in taken.state().items()}
        taken = new()
        taken.restore(saved)
        first = stop
    assert found == rows
    assert {name: array.tobytes() for name, array in taken.state().items()} == {
        name: array.tobytes() for name, array in whole.state().items()
    }


def test_what_the_event_carries_or_the_server_has_computed_is_kept_and_what_it_lacks_is_computed():
    first, last = a_request("r1", 0, "i1"), a_request("r3", 10, "i1")
    carrying = a_request("r2", 9, "i1") | {"user": {"clicks": 5, "seen_items": ["x"]}}
    rows = take(new(), [first, carrying, last])
    assert [row["clicks"] for row in rows] == [0.0, 5.0, 0.0]
    assert [row["seen_items"] for row in rows] == [[], ["x"], ["i1"]]
    assert [row["seen_before"] for row in rows] == [0.0, 1.0, 2.0]
    served = a_request("r2", 9, "i1") | {"derived": SPEC.derivation}
    rows = take(new(), [first, served, last | {"derived": "0123456789abcdef"}])
    assert [row["seen_ago"] for row in rows] == [None, None, 1.0]
    assert [row["seen_items"] for row in rows] == [[], None, ["i1"]]


def test_a_request_sees_neither_its_own_rows_nor_events_of_its_own_time():
    rows = take(new(), [a_request("r1", 5, "i1"), a_request("r2", 5, "i1"), a_request("r3", 6, "i1")])
    assert [row["seen_before"] for row in rows] == [0.0, 0.0, 2.0]


def test_the_least_recently_used_user_is_dropped_and_counted():
    plan = HistoryPlan.of(SPEC)
    assert plan is not None
    taken = EventHistories(SPEC, plan, most_users=2)
    rows = take(taken, [a_request(f"r{n}", n, "i1", cookie) for n, cookie in enumerate("abacab")])
    assert [row["seen_before"] for row in rows] == [0.0, 0.0, 1.0, 0.0, 2.0, 0.0]
    assert (len(taken.users), taken.users.dropped) == (2, 2)


def clicked(request: str, second: float, item: str = "i1") -> dict[str, Any]:
    return {"request_id": request, "ts": START + second, "item": item}


def waiting(taken: EventHistories) -> list[float]:
    """The seconds of the clicks that wait for their request."""
    return sorted((taken.state()["early.times"][:, 1] / 1e6 - START).tolist())


def test_clicks_whose_request_never_comes_are_forgotten_each_at_its_time_and_at_most_max_pending_wait():
    taken = new()
    take(taken, [clicked("for ever", n) for n in range(10)])
    assert waiting(taken) == [*range(10)]
    again = new()
    again.restore(taken.state())
    for each in (taken, again):  # the window is 40 s, lateness 3 s: those before the 7th second are over
        take(each, [clicked("other", 20), clicked("for ever", 50)])
        assert waiting(each) == [7.0, 8.0, 9.0, 20.0, 50.0]
    few = SPEC.model_copy(update={"join": SPEC.join.model_copy(update={"max_pending": 3})})
    bound = EventHistories.of(few)
    assert bound is not None
    take(bound, [clicked(f"r{n}", n) for n in range(10)])
    assert waiting(bound) == [7.0, 8.0, 9.0]
    rows = take(bound, [a_request("r8", 8, "i1"), a_request("r1", 8, "i1"), a_request("last", 11, "i1")])
    assert [row["clicks"] for row in rows] == [0.0, 0.0, 1.0]
    assert waiting(bound) == [7.0, 9.0]


def a_request(name: str, second: float, item: str, cookie: str = "ann") -> dict[str, Any]:
    items = [{"id": item, "features": {"brand": "b"}}]
    return {"request_id": name, "ts": START + second, "cookie": cookie, "items": items}
