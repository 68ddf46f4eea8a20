"""A stream of a real store as a source."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from model_store.store import Store
from model_store.streams.event_streams import EntryId, EventStream, Read
from trainer.events.events import NEVER_US, Chunk, SourcePosition
from trainer.events.redis import StreamSource

KEY = "ftrie:{ads}:clicks"


@pytest.fixture
def stream(store: Store) -> EventStream:
    return store.event_stream(KEY)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def opened(stream: EventStream, notes: list[str]) -> Callable[..., StreamSource]:
    def open_at(position: SourcePosition | None = None, *, once: bool = False) -> StreamSource:
        return StreamSource(KEY, stream, json.loads(json.dumps(position or {})), notes.append, once=once)

    return open_at


def put(store: Store, entry: str, number: int) -> None:
    store.client.xadd(KEY, {"json": json.dumps({"n": number})}, id=entry)


def numbers(source: StreamSource) -> list[int]:
    found = []
    while (chunk := source.read()) is not None:
        found += numbers_of(chunk)
    return found


def numbers_of(chunk: Chunk) -> list[int]:
    assert chunk.starts[-1] == len(chunk.data)
    return [json.loads(line)["n"] for line in chunk.data.splitlines()]


def test_a_stream_that_is_not_there_is_empty_and_read_up_to_the_store_s_clock(
    opened: Callable[..., StreamSource],
) -> None:
    source = opened()
    assert source.read() is None
    first = source.watermark_us()
    assert 0 < first < NEVER_US and first % 1000 == 0
    assert source.read() is None
    assert source.watermark_us() >= first
    assert source.lag().events == 0


def test_entries_come_in_order_with_the_time_of_their_ids(
    store: Store, opened: Callable[..., StreamSource]
) -> None:
    for number, entry in enumerate(("5-0", "5-1", "7-0")):
        put(store, entry, number)
    chunk = opened().read()
    assert chunk is not None and chunk.arrived_us is not None
    assert numbers_of(chunk) == [0, 1, 2]
    assert chunk.arrived_us.tolist() == [5000, 5000, 7000]
    assert chunk.marks.tolist() == [[5, 0], [5, 1], [7, 0]]
    assert opened().where(chunk, 1) == "5-1"


def test_reading_can_go_on_from_every_place(stream: EventStream, opened: Callable[..., StreamSource]) -> None:
    stream.append([json.dumps({"n": n}).encode() for n in range(2500)])
    source = opened()
    count, positions = 0, []
    while (chunk := source.read()) is not None:
        assert len(chunk) <= 1000
        positions += [(count + taken, source.position(chunk, taken)) for taken in (0, 1, len(chunk) // 2)]
        count += len(chunk)
        positions.append((count, source.position(chunk, len(chunk))))
    assert count == 2500
    for taken, position in positions:
        assert numbers(opened(position)) == list(range(taken, 2500))


def test_while_there_is_more_only_what_was_read_is_sure(
    stream: EventStream, opened: Callable[..., StreamSource]
) -> None:
    stream.append([b'{"n":1}'] * 1500)
    source = opened()
    chunk = source.read()
    assert chunk is not None and chunk.arrived_us is not None
    assert source.watermark_us() == chunk.arrived_us[-1]
    rest = source.read()
    assert rest is not None and rest.arrived_us is not None
    assert rest.arrived_us[0] >= chunk.arrived_us[-1]
    assert source.watermark_us() >= rest.arrived_us[-1]


def test_no_entry_comes_before_what_was_said_to_be_read(
    stream: EventStream, opened: Callable[..., StreamSource]
) -> None:
    source = opened()
    for number in range(200):
        watermark_us = source.watermark_us()
        stream.append([json.dumps({"n": number}).encode()])
        chunk = source.read()
        assert chunk is not None and chunk.arrived_us is not None
        assert chunk.arrived_us[0] >= watermark_us


def test_large_entries_are_read_a_few_at_a_time(
    stream: EventStream, opened: Callable[..., StreamSource]
) -> None:
    stream.append([json.dumps({"n": n, "pad": "x" * 40_000}).encode() for n in range(1200)])
    source = opened()
    sizes = []
    while (chunk := source.read()) is not None:
        sizes.append(len(chunk))
    assert sum(sizes) == 1200 and max(sizes[1:]) < 50


def test_with_once_the_source_ends_where_the_stream_does(
    stream: EventStream, opened: Callable[..., StreamSource]
) -> None:
    stream.append([b'{"n":1}'])
    source = opened(once=True)
    assert numbers(source) == [1]
    assert source.watermark_us() == NEVER_US
    stream.append([b'{"n":2}'])
    assert source.read() is None


def test_entries_trimmed_before_they_were_read_are_counted_and_said(
    store: Store, stream: EventStream, opened: Callable[..., StreamSource], notes: list[str]
) -> None:
    stream.append([json.dumps({"n": n}).encode() for n in range(10)])
    source = opened()
    chunk = source.read()
    assert chunk is not None
    position = source.position(chunk, 4)
    store.client.xtrim(KEY, maxlen=3, approximate=False)
    again = opened(position)
    assert numbers(again) == [7, 8, 9]
    assert again.lost == 3 and "3 entries in all were deleted before they were read" in notes[0]
    stream.append([b'{"n":10}'])
    after = again.read()
    assert after is not None
    assert again.position(after, 1)["lost"] == 3
    assert opened(again.position(after, 1)).lost == 3


def test_entries_trimmed_after_they_were_read_or_before_the_first_run_are_no_loss(
    store: Store, stream: EventStream, opened: Callable[..., StreamSource], notes: list[str]
) -> None:
    stream.append([b'{"n":1}'] * 5)
    store.client.xtrim(KEY, maxlen=2, approximate=False)
    source = opened()
    assert len(numbers(source)) == 2
    store.client.xtrim(KEY, maxlen=0, approximate=False)
    stream.append([b'{"n":2}'])
    assert numbers(source) == [2]
    assert source.lost == 0 and not notes


def test_a_stream_that_lost_its_end_is_read_on_behind_what_it_has(
    store: Store, stream: EventStream, opened: Callable[..., StreamSource], notes: list[str]
) -> None:
    for number in (1, 2, 3):
        put(store, f"{number}-0", number)
    copy = store.client.dump(KEY)  # as a replica has it that is behind
    for number in (4, 5):
        put(store, f"{number}-0", number)
    source = opened()
    assert numbers(source) == [1, 2, 3, 4, 5]
    store.client.restore(KEY, 0, copy, replace=True)
    assert numbers(source) == []
    assert len(notes) == 1 and "ends at 3-0 though it was read up to 5-0: a failover" in notes[0]
    put(store, "4-1", 6)
    assert numbers(source) == [6]
    store.client.restore(KEY, 0, copy, replace=True)
    put(store, "9-0", 7)
    assert numbers(source) == [7]
    assert len(notes) == 2 and "fewer entries" in notes[1]
    assert source.lost == 0


def test_a_stream_that_is_gone_is_said_and_what_comes_then_is_read(
    store: Store, stream: EventStream, opened: Callable[..., StreamSource], notes: list[str]
) -> None:
    stream.append([b'{"n":1}', b'{"n":2}'])
    source = opened()
    chunk = source.read()
    assert chunk is not None and chunk.arrived_us is not None
    position = source.position(chunk, 2)
    store.client.flushall()
    source = opened(position)
    assert numbers(source) == []
    assert "it was deleted" in notes[0]
    put(store, "3-0", 3)
    fresh = source.read()
    assert fresh is not None and fresh.arrived_us is not None
    assert numbers_of(fresh) == [3]
    # Arrivals never fall, though the id is of long ago.
    assert fresh.arrived_us[0] >= chunk.arrived_us[-1]
    assert np.all(np.diff(fresh.arrived_us) >= 0)


@pytest.mark.parametrize("began", ["9-0", "3-0", "5-1"])
def test_a_stream_deleted_and_begun_anew_is_read_from_its_start_and_that_is_said(
    began: str, store: Store, opened: Callable[..., StreamSource], notes: list[str]
) -> None:
    put(store, "5-0", 1)
    put(store, "6-0", 2)
    source = opened()
    numbers(source)
    store.client.delete(KEY)
    put(store, began, 3)
    assert numbers(source) == [3]
    assert "created again" in notes[0]
    store.client.xtrim(KEY, maxlen=0, approximate=False)
    put(store, "10-0", 4)
    assert numbers(source) == [4]
    assert source.lost == 0 and len(notes) == 1


class Stepped(EventStream):
    """A real stream of a store whose clock is behind."""

    behind_us = 0

    def read(self, after: EntryId, count: int) -> Read:
        read = super().read(after, count)
        return replace(read, now_us=read.now_us - self.behind_us)


def test_when_the_store_s_clock_steps_back_nothing_is_taken_back_and_it_is_said(
    store: Store, stream: EventStream, notes: list[str]
) -> None:
    stepped = Stepped(stream._store, KEY)
    source = StreamSource(KEY, stepped, {}, notes.append)
    source.read()
    before = source.watermark_us()
    stepped.behind_us = 60_000_000
    put(store, f"{before // 1000 - 60_000}-0", 1)  # as that clock numbers it
    chunk = source.read()
    assert chunk is not None and numbers_of(chunk) == [1]
    assert source.watermark_us() == before
    assert len(notes) == 1 and "stepped back by 60." in notes[0]


def test_lag_counts_what_is_not_read_and_how_old_it_is(
    store: Store, stream: EventStream, opened: Callable[..., StreamSource]
) -> None:
    stream.append([b'{"n":1}'] * 1200)
    source = opened()
    source.read()
    lag = source.lag()
    assert lag.events == 200 and lag.seconds is not None and 0 <= lag.seconds < 3600
    numbers(source)
    assert source.lag().events == 0 and source.lag().seconds == 0.0


def test_entries_written_field_by_field_are_events_too(
    store: Store, opened: Callable[..., StreamSource]
) -> None:
    store.client.xadd(KEY, {"request_id": "r1", "item": "a"}, id="1700000000123-0")
    chunk = opened().read()
    assert chunk is not None
    assert json.loads(chunk.data) == {"request_id": "r1", "item": "a", "ts": 1700000000.123}
