"""From lines to events: both ways of reading give the same, and what is no event says why."""

from __future__ import annotations

import gzip
import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from model_store.ratios import BUCKETS
from model_store.spec.spec import parse_spec
from tests.matrix import examples, slow_except
from tests.trainer.events.sources import block_of, lines_of
from trainer.events.columns import RESERVED, Wanted
from trainer.events.events import (
    ACTIVATED,
    BAD,
    CLICK,
    CONVERSION,
    DEFERRED,
    FEEDBACK,
    IMPRESSION,
    SEEN,
    SEEN_TO,
    Events,
)
from trainer.events.parse import Parser, parse, read_lines, validated
from trainer.examples.token_columns import TokenColumn, token_columns

SPEC = parse_spec(
    """
[model]
name = "m"
[input]
label = "click"
item = "item_id"
weight = "importance"
[fields]
brand = {side = "item"}
price = {kind = "number"}
cost = {kind = "number", bucket = "log"}
tags = {kind = "set"}
hour = {}
age = {side = "user"}
session = {}
dotted = {column = "context.deep.x"}
item_id = {side = "item"}
"""
)
PLAN = FeaturePlan.of(SPEC)
WANTED = Wanted.of(SPEC)
TS = 1_700_000_000


def event(**more: Any) -> dict[str, Any]:
    return {"request_id": "r", "ts": TS, "items": [{"id": "a"}], **more}


def lines_in(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()


def told(**more: Any) -> dict[str, Any]:
    return {"request_id": "r", "ts": TS, "item": "a", **more}


def of_list(what: str, **more: Any) -> dict[str, Any]:
    return {"request_id": "r", "ts": TS, "event": what, **more}


def parsed(*events: Any) -> Events:
    return parse(*block_of(lines_of(events)), WANTED)


def line_by_line(lines: list[bytes]) -> Events:
    return validated(read_lines(lines, WANTED), np.full(len(lines), time.time_ns() // 1000))


def row_tokens(column: TokenColumn, rows: int) -> list[Any]:
    """Of each row, its tokens' texts and numbers, and why it is bad."""
    texts = column.text.to_pylist()
    x = [1.0] * len(texts) if column.x is None else column.x.tolist()
    bad = dict(column.bad)
    starts = range(rows + 1) if column.starts is None else column.starts.tolist()
    return [
        bad.get(row)
        or sorted((text, str(n)) for text, n in zip(texts[a:b], x[a:b], strict=True) if text or n != 1.0)
        for row, (a, b) in enumerate(pairwise(starts))
    ]


def seen_by_learning(events: Events) -> dict[str, list[Any]]:
    columns = token_columns(PLAN.fields, [events.columns[plan.column] for plan in PLAN.fields])
    rows = events.items.size
    seen = {plan.name: row_tokens(column, rows) for plan, column in zip(PLAN.fields, columns, strict=True)}
    return seen | {name: events.columns[name].to_pylist() for name in RESERVED}


def assert_same(one: Events, other: Events) -> None:
    for name in ("kind", "time_us", "request", "item", "what", "first", "items"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.bad == other.bad and seen_by_learning(one) == seen_by_learning(other)


texts = st.text(st.characters(codec="utf-8"), max_size=6)
odd_texts = st.sampled_from(
    ["", "\ud800", "2024-01-01", "2024-01-01 10:00:00", "\x00", "1", "1.0", "true", '["a"]', "a,b"]
)
ints = st.integers(-3, 99)
odd_ints = st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 0])
floats = st.floats(-100, 100)
odd_floats = st.sampled_from([float("nan"), float("inf"), 1e300, 1e22, -0.0, 0.1, 1.0, 2.0**53])
scalars = st.one_of(texts, odd_texts, ints, odd_ints, floats, odd_floats, st.booleans(), st.none())
weighted = st.dictionaries(texts, st.one_of(ints, floats, st.none()), max_size=3)


numbers = ints | floats
nested = st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(texts, x), max_leaves=4)
COMMON = [texts, ints, floats, texts | st.none(), ints | st.none(), st.lists(texts, max_size=3)]
ODD = [
    texts | odd_texts,
    ints | odd_ints,
    floats | odd_floats,
    st.booleans(),
    numbers,
    st.none(),
    weighted,
    scalars,
]
LISTS = [st.lists(each, max_size=3) for each in (ints, st.none() | texts, scalars)]
KINDS = st.sampled_from([*3 * COMMON, *ODD, *LISTS, scalars | st.lists(texts, max_size=2) | weighted, nested])
NEAT = st.sampled_from([*COMMON[:5], st.booleans(), numbers, st.just("2024-01-01")])


NEAT_SETS = st.sampled_from([st.lists(texts, max_size=3), st.lists(ints, max_size=2), texts, st.none()])
KNOWN = {
    **dict.fromkeys(("version", "position", "ctr", "propensity"), ints),
    **dict.fromkeys(("request_id", "id", "variant", "item"), texts.filter(bool)),
    "ts": st.integers(TS, TS + 99),
    "event": st.sampled_from(["click", "conversion", "seen", "activated", "deferred"]),
}
POSITIONS = st.sampled_from([1, 2, 2, "3", 0, -1, 1.5, 2.0, True, "", "x", None, 10**9, 10**30, [1]])
SCALARS = ("brand", "price", "cost", "hour", "age", "session", "x", "importance")


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Up to eight events, each member mostly of one kind in all of them, and here and there missing.

    Half of the blocks are neat: of such kinds as a block may have to be read as a whole.
    """
    neat = draw(st.booleans())
    choices = {name: draw(NEAT if neat else KINDS) for name in SCALARS}
    choices["tags"] = draw(NEAT_SETS if neat else KINDS)
    wild = not neat and draw(st.booleans())
    known = {name: draw(KINDS) for name in KNOWN} if wild else KNOWN
    rare = st.integers(0, 9)

    def some(names: tuple[str, ...], of: dict[str, Any]) -> dict[str, Any]:
        return {name: draw(of[name]) for name in names if draw(rare)}

    lines = []
    for _ in range(draw(st.integers(0, 8))):
        made: dict[str, Any] = some(("request_id", "ts"), known)
        if draw(st.booleans()):
            made |= some(("item", "event"), known)
            if draw(st.booleans()):
                made["position"] = draw(POSITIONS)
            if made.get("event") != "click" and draw(st.booleans()):
                made.pop("item", None)
        else:
            items = [
                {
                    **some(("id", "position", "ctr", "propensity"), known),
                    "features": some(("brand", "price", "tags"), choices),
                }
                for _ in range(draw(st.integers(0, 3)))
            ]
            made |= some(("version", "variant"), known) | some(("session", "cost", "importance"), choices)
            context, user = some(("hour", "brand", "cost"), choices), some(("age", "hour"), choices)
            made |= {"items": items, "context": context, "user": user}
            if draw(st.booleans()):
                made["context"]["deep"] = some(("x",), choices)
        if wild and not draw(rare):
            made[draw(st.sampled_from(("items", "context", "user")))] = draw(KINDS.flatmap(lambda kind: kind))
        lines.append(json.dumps(made, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass"))
    return lines


@examples(250)
@given(lines=blocks(), others=st.just([]) | blocks())
def test_by_blocks_and_line_by_line_give_the_same_whatever_was_read_before(lines, others):
    parser = Parser(WANTED)
    parser.parse(*block_of(others))
    assert_same(parser.parse(*block_of(lines)), line_by_line(lines))


BROKEN = st.sampled_from(
    [b"{", b'{"a": "\xff"}', b"{}{}", b'{"items": [null, {}]}', b'{"x": [null], "request_id": "r"}']
)


@examples(50)
@given(
    lines=blocks().filter(bool), copies=st.integers(20, 60), broken=st.lists(BROKEN, min_size=1, max_size=4)
)
def test_the_pieces_of_a_long_block_give_what_it_gives_line_by_line(lines, copies, broken):
    shown = json.dumps(event(items=[{"id": "a"}, {"id": "b"}], note=[None])).encode()  # odd, and good
    long = [*(lines * copies), *broken, shown, *(lines * copies), shown]
    assert_same(parsed(*long), line_by_line(long))


@examples(150)
@given(lines=blocks().filter(bool), data=st.data())
def test_lines_with_bytes_changed_are_read_as_line_by_line(lines: list[bytes], data: st.DataObject) -> None:
    changed = []
    for line in lines:
        at = data.draw(st.integers(0, len(line)))
        new = data.draw(st.sampled_from([b"", *(bytes([byte]) for byte in b'"\\{}[],:0-.eEu\tn x\x00\xc3')]))
        changed.append(line[:at] + new + line[at + data.draw(st.integers(0, 2)) :])
    assert_same(parsed(*changed), line_by_line(changed))


LITERALS = r"""
0 -0 01 1. .5 - 1.5 1e5 1e+ 1e999 12345678901234567890 9007199254740993 null nul true NaN "" "a "\x" "\b\f\n\r\t"
"\u00e9" "\ud83d\ude00" "\ud83d" "é" [] [1,2] ["a",1] [null] [1 {} {"a":1} {"a"}
"""
"""What `make test` tries; `make test-all` tries these too:"""
MORE_LITERALS = r"""
00 -01 -.5 + +1 1.50 1E+2 1e-2 1e 1e1.5 1.e5 0e0 -0.0 1e-999 0x1 1_000 1, 123456789012345678901234567890
1.00000000000000000000001 1e22 nulll tru truee false falsee True Infinity -Infinity "a"" "\\" "\" "\/" "\"" "\u12"
"\u12g4" "\ude00" "\ud83d\u0041" "\ud83dx" "\ud83d\ud83d" "\ude00\ud83d" "\uD83D\uDE00" "\u0000" "😀" [1] [1,] [,]
["a","b"] [null,"a"] [true,0.5] [[]] [{}] [1} {"a":1,} {,} {"a":} {"a":1,"a":2} {"a":[1,{"b":null}]} {a:1} {"a":1]
"""
SPACED = ['"\t"', '"\n"', '"a b"', " 1 ", "1 2", "\u00a01", "[1, 2]", '{"a" : 1}']


@pytest.mark.parametrize(
    "literal", slow_except(LITERALS.split(), [*LITERALS.split(), *MORE_LITERALS.split(), *SPACED])
)
def test_a_literal_is_read_as_line_by_line_wherever_it_stands(literal: str) -> None:
    for text in (
        '{"request_id": "r", "ts": 1, "items": [{"id": "a"}], "context": {"hour": ?}}',
        '{"request_id": "r", "ts": 1, "items": [{"id": "a"}], "user": {"tags": ?}}',
        '{"request_id": "r", "ts": 1, "items": [{"id": "a", "features": {"price": ?, "cost": 1}}]}',
        '{"request_id": "r", "ts": 1, "items": [{"id": "a"}], "other": ?, "session": "s"}',
        '{"request_id": "r", "ts": 1, "items": [{"id": "a", "features": ?}]}',
        '{"request_id": "r", "ts": 1, "items": ?}',
        '{"request_id": ?, "ts": 1, "item": "a"}',
        '{"request_id": "r", "ts": ?, "item": "a"}',
        '{"request_id": "r", "ts": 1, "items": [{"id": "a", "ctr": ?, "position": 1}], "version": ?}',
        "?",
    ):
        line = text.replace("?", literal).encode()
        assert_same(parsed(line), line_by_line([line]))


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_answered_with_a_reason(lines: list[bytes]) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    events = parsed(*lines)
    assert set(events.bad) == set(range(len(lines))) and (events.kind == BAD).all()


REASONS = [
    (b"{", "malformed JSON: Expecting property name enclosed in double quotes at character 2"),
    (b"[1]", "not a JSON object: got a list"),
    (b'{"a": "\xff"}', "invalid UTF-8: at byte 8 of the line"),
    (
        {"request_id": "r", "ts": TS},
        "got neither items nor item, expected items (an impression) or item (feedback)",
    ),
    (event(item="a"), "got both items and item, expected items (an impression) or item (feedback)"),
    ({"ts": TS, "item": "a"}, "request_id: missing, expected text or a whole number"),
    (told(request_id=""), "request_id: empty, expected text or a whole number"),
    (told(request_id=[1]), "request_id: got a list, expected text or a whole number"),
    (told(request_id=1.5), "request_id: got a number, expected text or a whole number"),
    ({"request_id": "r", "item": "a"}, "ts: missing, expected the time of the event"),
    (told(ts="soon"), "ts: got 'soon', expected a time like ISO-8601"),
    (told(ts=[1]), "ts: got a list, expected text, a number or a boolean"),
    (told(ts=True), "ts: got 'true', expected a time like ISO-8601"),
    (told(item=""), "item: empty, expected text or a whole number"),
    (told(event="view"), 'event: got "view", expected "click", "conversion", "seen" or "activated"'),
    (told(event="deferred"), 'event: got "deferred", expected "click", "conversion", "seen" or "activated"'),
    (told(event="activated"), 'event "activated": got item, expected neither'),
    (told(event="seen", position=2), 'event "seen": got item and position, expected one of them'),
    (of_list("seen", position=0), 'position: got "0", expected a whole number of 1 or more'),
    (of_list("seen", position=1.5), 'position: got "1.5", expected a whole number of 1 or more'),
    (of_list("seen", position="²"), 'position: got "²", expected a whole number of 1 or more'),
    (of_list("seen", position=[2]), "position: got a list, expected text, a number or a boolean"),
    (of_list("seen"), "got neither items nor item, expected items (an impression) or item (feedback)"),
    (told(event={}), "event: got an object, expected text or a whole number"),
    (event(items={}), "items: got an object, expected a list of objects"),
    (event(items=[1]), "items[0]: got a number, expected an object"),
    (event(items=[{"id": "a"}, None]), "items[1]: got null, expected an object"),
    (event(items=[{"id": "a"}, {}]), "items[1].id: missing, expected text or a whole number"),
    (event(items=[{"id": ""}]), "items[0].id: empty, expected text or a whole number"),
    (
        event(items=[{"id": "a"}, {"id": "b"}, {"id": "a"}]),
        'items[2].id: got "a" a second time, expected each item once',
    ),
    (event(items=[{"id": n} for n in range(10_001)]), "items: got 10,001 of them, expected at most 10,000"),
    (event(items=[{"id": "a", "features": []}]), "items[0].features: got a list, expected an object"),
    (event(context="home"), "context: got text, expected an object"),
    (event(user=1), "user: got a number, expected an object"),
    (event(context={"hour": [1]}), "context.hour: got a list, expected text, a number or a boolean"),
    (event(context={"tags": [[1]]}), "context.tags[0]: got a list, expected text, a number or a boolean"),
    (event(context={"tags": {"a": "b"}}), "context.tags.a: got text, expected a number"),
    (event(user={"age": math.inf}), "user.age: got inf, expected a finite number"),
    (event(user={"age": "\ud800"}), "user.age: got half of a surrogate pair, expected Unicode text"),
    (event(version="new"), "version: got text, expected a number"),
    (event(version=1.5), "version: got 1.5, expected a whole number of 64 bits"),
    (event(items=[{"id": "a", "ctr": "high"}]), "items[0].ctr: got text, expected a number"),
    (
        event(items=[{"id": "a", "position": 1.5}]),
        "items[0].position: got 1.5, expected a whole number of 64 bits",
    ),
    (event(variant=[]), "variant: got a list, expected text or a whole number"),
]


@pytest.mark.parametrize(("bad", "reason"), REASONS)
def test_a_bad_event_says_why(bad: Any, reason: str) -> None:
    good = event(request_id="good")
    events = parsed(good, bad, good)
    assert events.bad == {1: reason} and events.kind.tolist() == [IMPRESSION, BAD, IMPRESSION]
    assert events.first.tolist() == [0, 1, 1, 2]


def test_a_time_too_far_ahead_of_the_present_is_bad_where_nothing_else_says_when_the_event_came() -> None:
    data, starts = block_of(lines_of([told(ts="2500-01-01T00:00:00Z"), told()]))
    says = "ts: got 2500-01-01T00:00:00+00:00, expected no later than five minutes after the present"
    assert parse(data, starts, WANTED).bad == {0: says}
    assert parse(data, starts, WANTED, np.array([TS, TS]) * 1_000_000).bad == {}


def test_a_line_that_is_too_long_is_bad_and_not_read() -> None:
    events = parsed(told(), told(note="x" * (16 << 20)), told())
    assert events.kind.tolist() == [FEEDBACK, BAD, FEEDBACK]
    assert "bytes, expected at most 16,777,216" in events.bad[1]


def test_an_impression_may_show_nothing_and_no_lines_are_no_events() -> None:
    events = parsed(event(items=[]))
    assert (events.kind.tolist(), events.first.tolist()) == ([IMPRESSION], [0, 0])
    events = parse(b"", np.zeros(1, np.int64), WANTED)
    assert (len(events), events.items.size, set(events.columns)) == (0, 0, set(WANTED.names))


def test_ids_are_equal_as_text_or_as_whole_numbers() -> None:
    events = parsed(event(request_id=7, items=[{"id": 42}]), told(request_id="7", item="42"))
    assert events.request[0] == events.request[1] and events.items[0] == events.item[1]


def test_feedback_is_a_click_unless_it_says_otherwise() -> None:
    events = parsed(told(), told(event="click"), told(event="conversion", event_id={}))
    assert events.what.tolist() == [CLICK, CLICK, CONVERSION]


def test_what_was_seen_is_of_an_item_or_up_to_a_position_and_activated_is_of_the_list() -> None:
    events = parsed(
        told(event="seen"), of_list("seen", position=3), of_list("seen", position="3"), of_list("activated")
    )
    assert events.bad == {} and events.what.tolist() == [SEEN, SEEN_TO, SEEN_TO, ACTIVATED]
    assert events.item.tolist() == [parsed(told()).item[0], 3, 3, 0]


def test_only_an_impression_may_be_deferred_and_a_position_is_read_of_seen_events_alone() -> None:
    events = parsed(event(event="deferred"), event(event="impression", position={}), told(position="top"))
    assert (events.bad, events.what.tolist()) == ({}, [DEFERRED, 0, CLICK])


ISO = ["2023-11-14T22:13:20Z", "2023-11-14 23:13:20+01:00"]


@pytest.mark.parametrize("ts", [TS, float(TS), str(TS), TS * 1000, TS * 10**6, TS * 10**9, *ISO])
def test_times_are_told_by_their_size_or_are_iso(ts: Any) -> None:
    assert parsed(told(ts=ts)).time_us.tolist() == [TS * 1_000_000]


def test_the_first_place_with_a_value_wins_row_by_row() -> None:
    items = [{"id": "a", "features": {"hour": 1}}, {"id": "b", "hour": 2}, {"id": "c"}]
    events = parsed(
        event(items=items, context={"hour": 3}, user={"hour": 4}, hour=5),
        event(items=[{"id": "d", "features": {"hour": None}}], user={"hour": 4}, hour=5),
        event(hour=5),
    )
    assert events.columns["hour"].to_pylist() == [b"1", b"2", b"3", b"4", b"5"]


def test_dotted_paths_are_looked_for_as_written() -> None:
    far = {"deep": {"x": "far"}}
    events = parsed(event(context=far), event(context={"context.deep.x": "near"} | far))
    assert events.columns["context.deep.x"].to_pylist() == [b"far", b"near"]
    assert parsed(event(context={"deep.x": "own"})).columns["context.deep.x"].to_pylist() == [b"own"]


def test_the_items_column_is_its_id_unless_it_was_served_with_another_value() -> None:
    items = [{"id": "a"}, {"id": "b", "features": {"item_id": "z"}}]
    events = parsed(event(items=items, context={"item_id": "y"}, item_id="x"))
    assert events.columns["item_id"].to_pylist() == [b"a", b"z"]


def test_reserved_columns_have_what_the_server_logged() -> None:
    item = {"id": "a", "position": 2, "ctr": 0.25, "propensity": 1, "unknown": 1}
    more = {"model": "m", "version": 7, "variant": "base", "items": [item, {"id": "b"}]}
    events = parsed(event(**more))
    of_cookies = [parsed(event(**more, cookie=f"u{n}", request_id=f"r{n % 7}")) for n in range(500)]
    buckets = [each.columns["@bucket"].to_pylist() for each in of_cookies]
    assert all(one == other for one, other in buckets) and len({one for one, _ in buckets}) == BUCKETS
    assert parsed(event(**more, cookie="u3", request_id="z")).columns["@bucket"].to_pylist() == buckets[3]
    # Without a cookie it is the request's.
    buckets_of_request = parsed(event(**more, cookie="")).columns["@bucket"].to_pylist()
    got = {name: events.columns[name].to_pylist() for name in RESERVED}
    assert got == {
        "@version": [7, 7],
        "@variant": [b"base", b"base"],
        "@model": [b"m", b"m"],
        "@ctr": [0.25, None],
        "@propensity": [1.0, None],
        "@position": [2, None],
        "@unknown": [1, None],
        "@bucket": buckets_of_request,
    }


def test_columns_of_apprentice_mode_are_there_where_some_impression_has_them() -> None:
    of_server = {"first": 1, "overlap": 2, "clicks": 0.25, "ids": ["b"]}
    items = [{"id": "a"}, {"id": "b"}]
    assert not set(parsed(event()).columns) - set(WANTED.names)
    assert not set(parsed(event(apprentice=7), event(apprentice={"ids": []})).columns) - set(WANTED.names)
    events = parsed(event(items=items), event(request_id="s", items=items, apprentice=of_server))
    found = {name: events.columns[name].to_pylist() for name in ("@first", "@overlap", "@own_clicks")}
    assert found == {
        "@first": [None, None, 1, 1],
        "@overlap": [None, None, 2, 2],
        "@own_clicks": [None, None, 0.25, 0.25],
    }
    assert dict(parsed(event(apprentice={"first": "yes"})).bad) == {
        0: "apprentice.first: got text, expected a number"
    }


def test_impressions_and_clicks_of_a_log_are_all_read_and_meet(event_folder: Path) -> None:
    lines, clicks = (
        lines_in(next(event_folder.glob(f"{kind}.jsonl*"))) for kind in ("impressions", "clicks")
    )
    shown, told_of = parsed(*lines), parsed(*clicks)
    assert (len(shown), len(told_of), shown.bad, told_of.bad) == (len(lines), len(clicks), {}, {})
    assert set(told_of.request.tolist()) == set(shown.request.tolist())
    assert len(set(shown.request.tolist())) == len(lines) == len(clicks)
    some = lines[::20]
    assert_same(parsed(*some), line_by_line(some))
