"""All sources in one order, however they are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrie.terminal import json_output, set_json_output
from model_store.errors import InputError, StoreUnavailable
from model_store.spec.spec import parse_spec
from tests.matrix import examples
from tests.trainer.events.sources import Listed, Tables, lines_of
from trainer.events.columns import Wanted
from trainer.events.events import BAD, Lag, Merged, SourcePosition
from trainer.sources import merge as reading
from trainer.sources.merge import Merger

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
    with merging(sources, tables, once=True, **options) as merger:
        out = drained(merger)
    assert len(tables.tables) <= len(out)  # a poll adds one at most
    return [event for merged in out for event in flat(merged, tables)], [bad for m in out for bad in m.bad]


@contextmanager
def merging(sources: Sequence[Listed], tables: Tables, **options: Any) -> Iterator[Merger]:
    merger = Merger(sources, WANTED, tables, **options)
    try:
        yield merger
    finally:
        merger.close()
    assert all(source.closed for source in sources)


def requests(events: Sequence[tuple[Any, ...]]) -> list[int]:
    return [event[1] // 1_000_000 - START_S for event in events]


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[list[bytes], list[int] | None]]:
    """Up to three sources: impressions, feedback, and lines that are neither; times that jump, and times that tie."""
    found = []
    for source in range(draw(st.integers(1, 3))):
        seconds = draw(st.lists(st.integers(0, 12), max_size=12))
        kinds = [(impression(100 * source + n, s), click(n, s), b"no event") for n, s in enumerate(seconds)]
        lines = lines_of(draw(st.sampled_from(each)) for each in kinds)
        gaps = draw(st.lists(st.integers(0, 2), min_size=len(lines), max_size=len(lines)))
        came = [at(sum(gaps[: n + 1])) for n in range(len(lines))]
        found.append((lines, came if draw(st.booleans()) else None))
    return found


@examples(60)
@given(
    held=streams(),
    stops=st.lists(st.integers(0, 3), max_size=3),
    sizes=st.lists(st.lists(st.integers(1, 4), max_size=8), min_size=3, max_size=3),
    read_ahead=st.sampled_from((1, 2_000, 1 << 20)),
)
def test_any_split_into_reads_and_stops_anywhere_gives_the_same_order(held, stops, sizes, read_ahead):
    whole = merged_by([Listed(f"s{n}", lines, came) for n, (lines, came) in enumerate(held)])
    events, bad, positions = [], [], list[SourcePosition]()
    for polls in (*stops, None):
        tables = Tables()
        sources = [
            Listed(f"s{n}", lines, came, steps=sizes[n], position=positions[n] if positions else None)
            for n, (lines, came) in enumerate(held)
        ]
        with merging(sources, tables, positions=positions, once=True, read_ahead=read_ahead) as merger:
            out = drained(merger, polls)
            positions = merger.positions()
        events += [event for merged in out for event in flat(merged, tables)]
        bad += [each for merged in out for each in merged.bad]
    assert (events, bad) == whole


def test_order_is_by_arrival_then_source_then_place_and_without_a_clock_by_time() -> None:
    shown = lines_of([impression(1, 50), impression(2, 51), impression(3, 52)])
    clicks = lines_of([click(1, 60), click(2, 61), click(3, 62)])
    came = [[at(second) for second in seconds] for seconds in ((1, 3, 3), (2, 3, 4))]
    events, _ = merged_by([Listed("a", shown, came[0]), Listed("b", clicks, came[1])])
    assert requests(events) == [50, 60, 51, 52, 61, 62]
    # One that is out of order stays behind those before it.
    shown = lines_of([impression(1, 5), impression(2, 2), impression(3, 9)])
    events, _ = merged_by([Listed("a", shown), Listed("b", lines_of([click(1, 4), click(2, 6)]))])
    assert requests(events) == [4, 5, 2, 6, 9]


def test_bad_events_come_in_order_with_their_source_their_place_there_and_line() -> None:
    events, bad = merged_by([Listed("a", [b"?", *lines_of([click(1, 1)]), b'{"ts": 1}'])])
    assert [event[0] for event in events].count(BAD) == 2
    told = [(each.source, each.where, each.line) for each in bad]
    assert told == [("a", "0", b"?"), ("a", "2", b'{"ts": 1}')]


def test_a_file_that_stands_still_holds_nobody_up_for_longer_than_idle() -> None:
    sources = [Listed("still", []), Listed("busy", lines_of([click(1, 1), click(2, 2)]))]
    with merging(sources, Tables(), idle_s=0.01) as merger:
        merged = merger.poll(LONG_S)
        assert merged is not None and len(merged) == 2 and not merger.ended


@pytest.mark.parametrize("away", [None, StoreUnavailable("gone")])
def test_a_clock_that_stands_or_is_away_holds_back_only_what_came_after_it(away: Exception | None) -> None:
    reads, asked, tables = threading.Condition(), [0], Tables()

    def read() -> None:
        with reads:
            asked[0] += 1
            reads.notify_all()

    lines, later = lines_of([click(1, 1), click(2, 2)]), lines_of([click(3, 3), click(4, 4)])
    sources = [
        Listed("a", lines, [at(3600), at(10800)], steps=[1, *(10_000 * [away or 0])], on_read=read),
        Listed("b", later, [at(7200), at(14400)]),
    ]
    with merging(sources, tables, idle_s=0.01 if away else 1000.0) as merger:
        events = list[tuple[Any, ...]]()
        while len(events) < 2:
            merged = merger.poll(LONG_S)
            assert merged is not None
            events += flat(merged, tables)
        assert requests(events) == [1, 3]
        with reads:  # what b has, was read long ago; a is asked again and again
            assert reads.wait_for(lambda: away or asked[0] > 5, LONG_S)
        assert away or merger.poll() is None


def test_a_store_that_is_away_is_asked_again_and_said_once_as_json_where_that_was_asked_for() -> None:
    said, as_json = list[str](), list[bool]()

    def note(text: str) -> None:
        said.append(text)
        as_json.append(json_output())

    away = [StoreUnavailable("connection refused")] * 3
    set_json_output(True)
    try:
        events, _ = merged_by(
            [Listed("a", lines_of([click(1, 1), click(2, 2)]), steps=[1, *away])], on_note=note
        )
    finally:
        set_json_output(False)
    assert requests(events) == [1, 2] and [text.split(":")[0] for text in said] == ["a", "a"]
    assert "connection refused" in said[0] and "answers again" in said[1]
    assert as_json == [True, True]


def test_what_a_source_cannot_get_over_is_raised() -> None:
    damaged = Listed("a", lines_of([click(1, 1)]), steps=[InputError("damaged")])
    with merging([damaged], Tables(), once=True) as merger, pytest.raises(InputError, match="damaged"):
        drained(merger)


class Growing(Listed):
    """Says that one more event is unread whenever it is asked, up to five."""

    unread = 0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.asked_often = threading.Event()

    def lag(self) -> Lag:
        self.unread += 1
        if self.unread > 5:
            self.asked_often.set()
        return Lag(events=min(self.unread, 5))


def test_lags_count_what_waits_to_be_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LAG_EVERY_S", 0.0)
    source = Growing("a", lines_of([click(1, 1), click(2, 2)]), steps=[1, 1, *(10_000 * [0])])
    with merging([source], Tables()) as merger:
        assert source.asked_often.wait(LONG_S) and merger.lags() == [Lag(events=7)]


def test_lags_are_looked_at_while_there_is_no_room_to_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that is behind is the one whose lag is asked for."""
    monkeypatch.setattr(reading, "_LAG_EVERY_S", 0.01)
    source = Growing("a", lines_of([click(1, 1), click(2, 2)]), steps=[1, 1])
    with merging([source], Tables(), read_ahead=1):
        assert source.asked_often.wait(LONG_S)
