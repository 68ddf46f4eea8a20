"""A stream of a real store as a source."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.streams.event_streams import EntryId, EventStream, Read
from tests.trainer.events.sources import all_of, numbers_of, read
from trainer.events.events import NEVER_US, SourcePosition
from trainer.sources.open_sources import open_sources
from trainer.sources.redis import StreamSource, boot, since_boot_s

KEY = "ftrie:{ads}:clicks"


class Streamed:
    """A stream of the store, what is put into it, and sources that read it."""

    def __init__(self, store: Store) -> None:
        self.client, self.stream = store.client, store.event_stream(KEY)
        self.notes: list[str] = []

    def open(self, position: SourcePosition | None = None, *, once: bool = False) -> StreamSource:
        position = json.loads(json.dumps(position or {}))
        return StreamSource(KEY, self.stream, position, self.notes.append, once=once)

    def append(self, *numbers: int, pad: str = "") -> None:
        self.stream.append([json.dumps({"n": n, "pad": pad}).encode() for n in numbers])

    def put(self, entry: str, number: int) -> None:
        self.client.xadd(KEY, {"json": json.dumps({"n": number})}, id=entry)

    def trim(self, left: int) -> None:
        self.client.xtrim(KEY, maxlen=left, approximate=False)


@pytest.fixture
def log(store: Store) -> Streamed:
    return Streamed(store)


def test_a_stream_that_is_not_there_is_empty_and_read_up_to_the_store_s_clock(log: Streamed) -> None:
    source = log.open()
    assert source.read() is None
    first = source.watermark_us()
    assert 0 < first < NEVER_US and first % 1000 == 0 and source.read() is None
    assert source.watermark_us() >= first and source.lag().events == 0


def test_entries_come_in_order_with_the_time_of_their_ids(log: Streamed) -> None:
    for number, entry in enumerate(("5-0", "5-1", "7-0")):
        log.put(entry, number)
    chunk = read(log.open())
    assert numbers_of(chunk) == [0, 1, 2] and chunk.arrived_us.tolist() == [5000, 5000, 7000]
    assert chunk.marks.tolist() == [[5, 0], [5, 1], [7, 0]] and log.open().where(chunk, 1) == "5-1"


def test_reading_can_go_on_from_every_place(log: Streamed) -> None:
    log.append(*range(2500))
    source = log.open()
    count, positions = 0, []
    while (chunk := source.read()) is not None:
        assert len(chunk) <= 1000
        places = (0, 1, len(chunk) // 2, len(chunk))
        positions += [(count + taken, source.position(chunk, taken)) for taken in places]
        count += len(chunk)
    assert count == 2500
    for taken, position in positions:
        assert all_of(log.open(position)) == list(range(taken, 2500))


def test_while_there_is_more_only_what_was_read_is_sure_and_the_lag_counts_the_rest(log: Streamed) -> None:
    log.append(*range(1200))
    source = log.open()
    arrived_us = read(source).arrived_us
    assert source.watermark_us() == arrived_us[-1]
    lag = source.lag()
    assert lag.events == 200 and lag.seconds is not None and 0 <= lag.seconds < 3600
    later_us = read(source).arrived_us
    assert later_us[0] >= arrived_us[-1] and source.watermark_us() >= later_us[-1]
    assert all_of(source) == [] and (source.lag().events, source.lag().seconds) == (0, 0.0)


def test_no_entry_comes_before_what_was_said_to_be_read(log: Streamed) -> None:
    source = log.open()
    for number in range(100):
        watermark_us = source.watermark_us()
        log.append(number)
        assert read(source).arrived_us[0] >= watermark_us


def test_entries_that_are_removed_from_between_leave_lag_and_losses_exact(log: Streamed) -> None:
    """Given a person who is forgotten, the unread entries that are gone are no loss, and later ones count as ever."""
    log.append(*range(10))
    source = log.open()
    assert all_of(source) == list(range(10))
    log.append(*range(10, 20))
    entries = [entry for entry, _ in log.client.xrange(KEY)]
    log.client.xdel(KEY, entries[4], entries[12], entries[15])
    assert all_of(source) == [10, 11, 13, 14, 16, 17, 18, 19]
    assert (source.lost, source.lag().events, log.notes) == (0, 0, [])
    log.append(*range(20, 25))
    assert source.lag().events == 5
    log.trim(2)
    assert all_of(source) == [23, 24] and source.lost == 3


def test_large_entries_are_read_a_few_at_a_time(log: Streamed) -> None:
    log.append(*range(1100), pad="x" * 40_000)
    source = log.open()
    sizes = []
    while (chunk := source.read()) is not None:
        sizes.append(len(chunk))
    assert sum(sizes) == 1100 and max(sizes[1:]) < 50


def test_with_once_the_source_ends_where_the_stream_does(log: Streamed) -> None:
    log.append(1)
    source = log.open(once=True)
    assert all_of(source) == [1] and source.watermark_us() == NEVER_US
    log.append(2)
    assert source.read() is None


def test_entries_trimmed_before_they_were_read_are_counted_and_said(log: Streamed) -> None:
    log.append(*range(10))
    source = log.open()
    chunk = read(source)
    log.trim(3)
    again = log.open(source.position(chunk, 4))
    assert all_of(again) == [7, 8, 9]
    assert again.lost == 3 and "3 entries in all were deleted before they were read" in log.notes[0]
    log.append(10)
    after = read(again)
    assert again.position(after, 1)["lost"] == 3 and log.open(again.position(after, 1)).lost == 3


def test_entries_trimmed_after_they_were_read_or_before_the_first_run_are_no_loss(log: Streamed) -> None:
    log.append(*range(5))
    log.trim(2)
    source = log.open()
    assert all_of(source) == [3, 4]
    log.trim(0)
    log.append(5)
    assert all_of(source) == [5] and source.lost == 0 and not log.notes


def test_a_stream_that_lost_its_end_is_read_on_behind_what_it_has(log: Streamed) -> None:
    for number in (1, 2, 3):
        log.put(f"{number}-0", number)
    copy = log.client.dump(KEY)  # as a replica has it that is behind
    for number in (4, 5):
        log.put(f"{number}-0", number)
    source = log.open()
    assert all_of(source) == [1, 2, 3, 4, 5]
    log.client.restore(KEY, 0, copy, replace=True)
    assert all_of(source) == []
    assert len(log.notes) == 1 and "ends at 3-0 though it was read up to 5-0: a failover" in log.notes[0]
    log.put("4-1", 6)
    assert all_of(source) == [6]
    log.client.restore(KEY, 0, copy, replace=True)
    log.put("9-0", 7)
    assert all_of(source) == [7] and len(log.notes) == 2 and "fewer entries" in log.notes[1]
    assert source.lost == 0


def test_a_stream_that_is_gone_is_said_and_what_comes_then_is_read(log: Streamed) -> None:
    log.append(1, 2)
    source = log.open()
    chunk = read(source)
    log.client.flushall()
    source = log.open(source.position(chunk, 2))
    assert all_of(source) == [] and "it was deleted" in log.notes[0]
    log.put("3-0", 3)
    fresh = read(source)
    assert numbers_of(fresh) == [3]
    # Arrivals never fall, though the id is of long ago.
    assert fresh.arrived_us[0] >= chunk.arrived_us[-1] and np.all(np.diff(fresh.arrived_us) >= 0)


@pytest.mark.parametrize("began", ["9-0", "3-0", "5-1"])
def test_a_stream_deleted_and_begun_anew_is_read_from_its_start_and_that_is_said(began, log):
    log.put("5-0", 1)
    log.put("6-0", 2)
    source = log.open()
    all_of(source)
    log.client.delete(KEY)
    log.put(began, 3)
    assert all_of(source) == [3] and "created again" in log.notes[0]
    log.trim(0)
    log.put("10-0", 4)
    assert all_of(source) == [4] and source.lost == 0 and len(log.notes) == 1


class Stepped(EventStream):
    """A real stream of a store whose clock is behind."""

    behind_us = 0

    def read(self, after: EntryId, count: int) -> Read:
        read = super().read(after, count)
        return replace(read, now_us=read.now_us - self.behind_us)


def test_when_the_store_s_clock_steps_back_what_comes_then_is_read_at_the_time_that_it_is(
    log: Streamed,
) -> None:
    stepped = Stepped(log.stream._store, KEY)
    source = StreamSource(KEY, stepped, {}, log.notes.append)
    source.read()
    before = source.watermark_us()
    stepped.behind_us = 60_000_000
    log.put(f"{before // 1000 - 60_000}-0", 1)  # as that clock numbers it
    assert numbers_of(read(source)) == [1] and source.watermark_us() < before - 50_000_000
    assert len(log.notes) == 1 and "stepped back by 60." in log.notes[0]


def test_a_stream_of_which_nothing_was_read_counts_by_the_clock_of_the_one_that_was(
    log: Streamed, store: Store
) -> None:
    """The store's clock was set ahead while the trainer was down: both streams believe it as slowly."""
    spec = parse_spec('[model]\nname = "ads"\n[input]\nlabel = "click"\n')
    believed_us = time.time_ns() // 1000 - 3_600_000_000
    clock = {"boot": boot(), "clock_s": since_boot_s(), "clock_us": believed_us}
    seen = {"source": KEY.replace("clicks", "impressions"), "ms": 0, "seq": 0, "passed": 0, **clock}
    log.append(1)
    impressions, clicks = open_sources(["store"], spec, store, [seen, {}], log.notes.append)
    assert impressions.read() is None
    chunk = read(clicks)
    assert chunk.arrived_us is not None
    assert abs(int(chunk.arrived_us[0]) - believed_us) < 60_000_000
    assert abs(clicks.watermark_us() - impressions.watermark_us()) < 60_000_000


def test_an_id_from_the_future_and_those_that_inherit_it_arrive_when_they_are_read(log: Streamed) -> None:
    now_ms = int(log.client.time()[0] * 1000)
    log.put(f"{now_ms + 3_600_000}-0", 1)
    source = log.open()
    first = read(source)
    log.append(2)  # the store gives it an id of the same hour
    chunk = read(source)
    for arrived in (first, chunk):
        assert abs(int(arrived.arrived_us[0]) // 1000 - now_ms) < 600_000
    assert chunk.arrived_us[0] >= first.arrived_us[0] and source.watermark_us() >= chunk.arrived_us[-1]
    assert source.lag().ids_ahead > 3_000 and source.lag().seconds == 0.0
    assert len(log.notes) == 1 and "ahead of the store's clock" in log.notes[0]
    again = log.open(source.position(chunk, 1))
    log.append(3)
    assert all_of(again) == [3] and again.watermark_us() // 1000 - now_ms < 600_000


@pytest.mark.parametrize("sane", [3, 0])
def test_a_repair_of_ids_from_the_future_loses_no_entry_and_a_reader_goes_on_where_it_was(
    sane: int, log: Streamed, store: Store
) -> None:
    log.append(*range(sane))
    log.put(f"{int(log.client.time()[0]) * 1000 + 3_600_000}-0", 10)
    log.append(11, 12)
    source = log.open()
    chunk = read(source)
    log.append(13, 14)
    (found,) = store.check(["ads"])
    assert found.key == KEY and "ahead of the store's clock" in found.found
    (found,) = store.check(["ads"], repair=True)
    assert found.repaired and not store.check(["ads"])
    again = log.open(source.position(chunk, sane + 2))
    notes = len(log.notes)
    log.append(15)
    assert all_of(source) == [13, 14, 15] and all_of(again) == [12, 13, 14, 15]
    assert all("got ids of the present" in note for note in log.notes[notes:]) and len(log.notes) == notes + 2
    assert all_of(log.open()) == [*range(sane), *range(10, 16)]
    assert (source.lost, again.lost, source.lag().events, source.lag().ids_ahead) == (0, 0, 0, 0.0)


def test_entries_written_field_by_field_are_events_too(log: Streamed) -> None:
    log.client.xadd(KEY, {"request_id": "r1", "item": "a"}, id="1700000000123-0")
    chunk = read(log.open())
    assert json.loads(chunk.data) == {"request_id": "r1", "item": "a", "ts": 1700000000.123}
