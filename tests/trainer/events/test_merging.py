"""All sources in one order, however they are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrie.terminal import json_output, set_json_output
from model_store.errors import InputError, StoreUnavailable
from model_store.spec.spec import parse_spec
from tests.matrix import examples
from tests.trainer.events.sources import Listed, Tables, lines_of
from trainer.events import read_ahead as reading
from trainer.events.columns import Wanted
from trainer.events.events import BAD, Lag, Merged, SourcePosition
from trainer.events.merge import Merger

SPEC = parse_spec(
    '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\nprice = {kind = "number"}'
)
WANTED = Wanted.of(SPEC)
START_S = 1_700_000_000
LONG_S = 30.0


def impression(number: int, second: int, items: int = 2) -> dict[str, Any]:
    shown = [{"id": f"i{k}", "features": {"brand": f"b{number}", "price": k}} for k in range(items)]
    return {"request_id": f"r{number}", "ts": START_S + second, "items": shown}


def click(number: int, second: int) -> dict[str, Any]:
    return {"request_id": f"r{number}", "ts": START_S + second, "item": "i0"}


def at(second: int) -> int:
    """Microseconds since 1970 of a second of the test's."""
    return (START_S + second) * 1_000_000


def flat(merged: Merged, tables: Tables) -> list[tuple[Any, ...]]:
    """Each event with all that is known of it, rows looked up."""
    events, seen = [], 0
    for i in range(len(merged)):
        rows = []
        for row in range(merged.row[i], merged.row[i] + merged.rows[i]):
            table = tables.tables[merged.segment[i]]
            rows.append((int(merged.items[seen]), *(table[name][row].as_py() for name in WANTED.names)))
            seen += 1
        numbers = (merged.kind, merged.time_us, merged.now_us, merged.request, merged.item, merged.what)
        events.append((*(int(array[i]) for array in numbers), tuple(rows)))
    assert seen == merged.items.size
    return events


def drained(merger: Merger, polls: int | None = None) -> list[Merged]:
    """What the merger hands out until its end, or in so many times."""
    out = list[Merged]()
    while not merger.ended and (polls is None or len(out) < polls):
        merged = merger.poll(LONG_S)
        if merged is not None:
            out.append(merged)
    return out


def merged_by(sources: Sequence[Listed], **options: Any) -> tuple[list[tuple[Any, ...]], list[Any]]:
    tables = Tables()
    merger = Merger(sources, WANTED, tables, once=True, **options)
    try:
        out = drained(merger)
    finally:
        merger.close()
    return [event for merged in out for event in flat(merged, tables)], [bad for m in out for bad in m.bad]


def requests(events: Sequence[tuple[Any, ...]]) -> list[int]:
    return [event[1] // 1_000_000 - START_S for event in events]


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[list[bytes], list[int] | None]]:
    """Up to three sources: impressions, feedback, and lines that are neither; times that jump, and times that tie."""
    found = []
    for source in range(draw(st.integers(1, 3))):
        seconds = draw(st.lists(st.integers(0, 12), max_size=12))
        lines = [
            lines_of([draw(st.sampled_from((impression(source * 100 + n, s), click(n, s), b"no event")))])[0]
            for n, s in enumerate(seconds)
        ]
        gaps = draw(st.lists(st.integers(0, 2), min_size=len(lines), max_size=len(lines)))
        came = [at(sum(gaps[: n + 1])) for n in range(len(lines))]
        found.append((lines, came if draw(st.booleans()) else None))
    return found


@examples(60)
@given(held=streams(), data=st.data())
def test_any_split_into_reads_gives_the_same_order(held: Any, data: st.DataObject) -> None:
    whole = merged_by([Listed(f"s{n}", lines, came) for n, (lines, came) in enumerate(held)])
    split = [
        Listed(f"s{n}", lines, came, steps=data.draw(st.lists(st.integers(1, 3), max_size=12)))
        for n, (lines, came) in enumerate(held)
    ]
    assert merged_by(split, read_ahead=data.draw(st.sampled_from((1, 2_000, 1 << 20)))) == whole


@examples(40)
@given(
    held=streams(),
    stops=st.lists(st.integers(0, 3), max_size=3),
    sizes=st.lists(st.integers(1, 4), max_size=6),
)
def test_stopping_anywhere_and_going_on_from_the_places_gives_the_same_order(
    held: Any, stops: list[int], sizes: list[int]
) -> None:
    whole = merged_by([Listed(f"s{n}", lines, came) for n, (lines, came) in enumerate(held)])
    events, bad, positions = [], [], list[SourcePosition]()
    for polls in (*stops, None):
        tables = Tables()
        sources = [
            Listed(f"s{n}", lines, came, steps=sizes, position=positions[n] if positions else None)
            for n, (lines, came) in enumerate(held)
        ]
        merger = Merger(sources, WANTED, tables, positions=positions, once=True, read_ahead=1)
        out = drained(merger, polls)
        positions = merger.positions()
        merger.close()
        events += [event for merged in out for event in flat(merged, tables)]
        bad += [each for merged in out for each in merged.bad]
    assert (events, bad) == whole


def test_order_is_by_arrival_then_source_then_place() -> None:
    came = [at(second) for second in (1, 3, 3)]
    events, _ = merged_by(
        [
            Listed("a", lines_of([impression(1, 50), impression(2, 51), impression(3, 52)]), came),
            Listed("b", lines_of([click(1, 60), click(2, 61), click(3, 62)]), [at(2), at(3), at(4)]),
        ]
    )
    assert requests(events) == [50, 60, 51, 52, 61, 62]


def test_without_a_clock_an_event_that_is_out_of_order_stays_behind_those_before_it() -> None:
    events, _ = merged_by(
        [
            Listed("a", lines_of([impression(1, 5), impression(2, 2), impression(3, 9)])),
            Listed("b", lines_of([click(1, 4), click(2, 6)])),
        ]
    )
    assert requests(events) == [4, 5, 2, 6, 9]


def test_bad_events_come_in_order_with_their_source_their_place_there_and_line() -> None:
    events, bad = merged_by([Listed("a", [b"?", *lines_of([click(1, 1)]), b'{"ts": 1}'])])
    assert [event[0] for event in events].count(BAD) == 2
    assert [(each.source, each.where, each.line) for each in bad] == [
        ("a", "0", b"?"),
        ("a", "2", b'{"ts": 1}'),
    ]


def test_one_poll_adds_one_table() -> None:
    tables = Tables()
    first, second = threading.Event(), threading.Event()
    sources = [
        Listed("a", lines_of([impression(1, 1), impression(2, 2)]), steps=[1], on_read=first.set),
        Listed("b", lines_of([impression(3, 1)]), on_read=second.set),
    ]
    merger = Merger(sources, WANTED, tables, once=True)
    polls = len(drained(merger))
    merger.close()
    assert len(tables.tables) <= polls
    assert sum(len(table["brand"]) for table in tables.tables) == 6


def with_merger(sources: Sequence[Listed], check: Callable[[Merger, Tables], None], **options: Any) -> None:
    tables = Tables()
    merger = Merger(sources, WANTED, tables, **options)
    try:
        check(merger, tables)
    finally:
        merger.close()
    assert all(source.closed for source in sources)


def test_a_file_that_stands_still_holds_nobody_up_for_longer_than_idle() -> None:
    sources = [Listed("still", []), Listed("busy", lines_of([click(1, 1), click(2, 2)]))]

    def check(merger: Merger, tables: Tables) -> None:
        merged = merger.poll(LONG_S)
        assert merged is not None
        assert len(merged) == 2
        assert not merger.ended

    with_merger(sources, check, idle_s=0.01)


def test_a_clock_that_stands_holds_back_what_came_after_it() -> None:
    reads, asked = threading.Condition(), [0]

    def read() -> None:
        with reads:
            asked[0] += 1
            reads.notify_all()

    sources = [
        Listed(
            "a",
            lines_of([click(1, 1), click(2, 2)]),
            [at(3600), at(10800)],
            steps=[1] + 10_000 * [0],
            on_read=read,
        ),
        Listed("b", lines_of([click(3, 3), click(4, 4)]), [at(7200), at(14400)]),
    ]

    def check(merger: Merger, tables: Tables) -> None:
        events = list[tuple[Any, ...]]()
        while len(events) < 2:
            merged = merger.poll(LONG_S)
            assert merged is not None
            events += flat(merged, tables)
        assert requests(events) == [1, 3]
        with reads:  # what b has, was read long ago; a is asked again and again
            assert reads.wait_for(lambda: asked[0] > 5, LONG_S)
        assert merger.poll() is None

    with_merger(sources, check, idle_s=1000.0)


def test_a_store_that_is_away_is_asked_again_and_said_once() -> None:
    said = list[str]()
    away = [StoreUnavailable("connection refused")] * 3
    events, _ = merged_by(
        [Listed("a", lines_of([click(1, 1), click(2, 2)]), steps=[1, *away])], on_note=said.append
    )
    assert requests(events) == [1, 2]
    assert [text.split(":")[0] for text in said] == ["a", "a"]
    assert "connection refused" in said[0]
    assert "answers again" in said[1]


def test_what_is_said_of_a_source_is_json_where_the_command_was_asked_for_json() -> None:
    asked: list[bool] = []
    try:
        set_json_output(True)
        merged_by(
            [Listed("a", lines_of([click(1, 1)]), steps=[StoreUnavailable("connection refused")])],
            on_note=lambda text: asked.append(json_output()),
        )
    finally:
        set_json_output(False)
    assert asked
    assert all(asked)


def test_a_source_that_is_away_does_not_hold_up_what_came_before_its_watermark() -> None:
    away = [StoreUnavailable("gone")] * 1000
    sources = [
        Listed("a", lines_of([click(1, 1), click(2, 2)]), [at(3600), at(10800)], steps=[1, *away]),
        Listed("b", lines_of([click(3, 3), click(4, 4)]), [at(7200), at(14400)]),
    ]

    def check(merger: Merger, tables: Tables) -> None:
        seen = list[int]()
        while len(seen) < 2:
            merged = merger.poll(LONG_S)
            assert merged is not None
            seen += requests(flat(merged, tables))
        assert seen == [1, 3]

    with_merger(sources, check, idle_s=0.01)


def test_what_a_source_cannot_get_over_is_raised() -> None:
    def check(merger: Merger, tables: Tables) -> None:
        with pytest.raises(InputError, match="damaged"):
            drained(merger)

    with_merger([Listed("a", lines_of([click(1, 1)]), steps=[InputError("damaged")])], check, once=True)


class Behind(Listed):
    """Says that five more events are unread, whenever it is asked."""

    def lag(self) -> Lag:
        return Lag(events=5)


def test_lags_count_what_waits_to_be_handed_out() -> None:
    done = threading.Event()
    reads = iter(range(1000))

    def read() -> None:
        if next(reads) > 2:
            done.set()

    source = Behind("a", lines_of([click(1, 1), click(2, 2)]), steps=[1, 1, 0, 0, 0], on_read=read)

    def check(merger: Merger, tables: Tables) -> None:
        assert done.wait(LONG_S)
        assert merger.lags() == [Lag(events=7)]

    with_merger([source], check)


def test_lags_are_looked_at_while_there_is_no_room_to_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that is behind is the one whose lag is asked for."""
    monkeypatch.setattr(reading, "_LAG_EVERY_S", 0.01)
    again = threading.Event()

    class Growing(Listed):
        unread = 0

        def lag(self) -> Lag:
            self.unread += 1
            if self.unread > 3:
                again.set()
            return Lag(events=self.unread)

    source = Growing("a", lines_of([click(1, 1), click(2, 2)]), steps=[1, 1])

    def check(merger: Merger, tables: Tables) -> None:
        assert again.wait(LONG_S)

    with_merger([source], check, read_ahead=1)
