"""Reads all sources ahead and merges their events into one order: a function of what they hold, not of when it is read.

A `Reader` reads and parses one source in a thread: a bounded queue of parsed chunks, in the source's order, and the
source's watermark. The `Merger` orders the events of all of them.

Events are ordered by (time of arrival, number of the source, order in the source). An event is released once no other
source can bring one that belongs before it: each source's watermark says that all its events before that time have been
read. A source without a clock (files) uses its events' own times, and holds up nobody once it has brought nothing for
`idle_s` seconds; later events are merged from there on. A source with a clock whose store is unavailable holds up the
others until it answers: nothing is lost and the order stays the same.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Condition, Thread

import numpy as np
import pyarrow as pa

from model_store.clock import SYSTEM, Clock
from model_store.errors import SourceUnavailable, StoreUnavailable, UnreadableValue
from trainer.events.columns import MARK, Wanted, together
from trainer.events.events import (
    BACKFILL_US,
    BAD,
    FEEDBACK,
    IMPRESSION,
    NEVER_US,
    OTHER,
    READ_BYTES,
    BadEvent,
    Chunk,
    Events,
    Int64s,
    Lag,
    Merged,
    Source,
    SourcePosition,
    lines_of,
)
from trainer.events.parse import OF_EVENTS, Parser, PartitionShare, gathered
from trainer.events.waiting_rows import WaitingRows

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Waits between attempts to read an unavailable source: doubled each time, each randomly up to half shorter."""

BEFORE_ALL_US = int(np.iinfo(np.int64).min)
_PAUSE_S = 0.05
_LAG_EVERY_S = 2.0


@dataclass
class Parsed:
    """A chunk and its events. order_us: int64[n], non-decreasing arrival times, by which sources are merged.

    For a source without a clock, the greatest time of its events so far, without bad ones. cost: bytes in memory.
    Chunk and order change only where the source's clock steps back.
    """

    chunk: Chunk
    events: Events
    order_us: Int64s
    cost: int

    def __len__(self) -> int:
        return len(self.events)


class Reader:
    """What a thread has read ahead of one source. `changed` guards all public members and is notified of each change.

    queue: chunks not yet released, in order. watermark_us: unread events came no earlier; NEVER_US also while the
    source is idle. has_read: true after the first read. error: what ended the thread.
    """

    def __init__(
        self,
        source: Source,
        parser: Parser,
        changed: Condition,
        on_note: Callable[[str], None],
        *,
        order_us: int = BEFORE_ALL_US,
        idle_s: float,
        once: bool,
        limit: int,
        sort_bytes: int = 0,
        lateness_us: int = 0,
        clock: Clock = SYSTEM,
    ) -> None:
        """sort_bytes, lateness_us: see `Merger`."""
        self.source = source
        self.queue: deque[Parsed] = deque()
        self.watermark_us = order_us
        self.ended = self.has_read = False
        self.error: Exception | None = None
        self.lag = Lag()
        self._changed, self._on_note = changed, on_note
        self._parser, self._idle_s, self._once, self._limit = parser, idle_s, once, limit
        self._sort_bytes, self._lateness_us = sort_bytes, lateness_us
        self._unsorted = deque[Chunk]()
        self._last_us, self._has_clock = order_us, True
        self._now = clock.monotonic
        self._idle = _Idle(idle_s, clock)
        self._skew = _Skew(clock)
        self._back_to_us: int | None = None
        self._lag_at = -np.inf
        self._stopping = False
        in_context = copy_context().run  # keeps the output format of the command
        self._thread = Thread(target=in_context, args=(self._run,), name=f"read {source.name}", daemon=True)
        self._thread.start()

    def step_back(self) -> int | None:
        """Where the source's clock has stepped back to since the last call; None if it has not. Under `changed`.

        What waits came no later than that: else it would wait until the clock has caught up.
        """
        clock_us, self._back_to_us = self._back_to_us, None
        if clock_us is not None:
            for parsed in self.queue:
                assert parsed.chunk.arrived_us is not None
                parsed.order_us = np.minimum(parsed.order_us, clock_us)
                arrived_us = np.minimum(parsed.chunk.arrived_us, clock_us)
                parsed.chunk = replace(parsed.chunk, arrived_us=arrived_us)
        return clock_us

    def next_us(self, taken: tuple[Parsed, int] | None) -> int | None:
        """The least time of events that are not released, by what was read; None while the source is idle.

        taken: the chunk of which events were released last, and how many of it. NEVER_US: it has ended.
        """
        if self.queue:
            parsed = self.queue[0]
            return int(parsed.order_us[taken[1] if taken is not None and taken[0] is parsed else 0])
        return self.watermark_us if self.ended or self.watermark_us != NEVER_US else None

    def stop(self) -> None:
        """Ask the thread to end; `join` waits until it has closed the source."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait at most this long for the thread to end; a read that hangs is abandoned."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            if self._sort_bytes:
                self._sort()
            while self._wait_for_room() and not self.ended:
                chunk = self._unsorted.popleft() if self._unsorted else self._read()
                if not self._stopping:
                    self._take(chunk)
                    self._update_lag()  # a stream knows its lag only after a read
            if self.ended:  # the final lag
                self._lag_at = -np.inf
                self._update_lag()
        except Exception as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()
        finally:
            self.source.close()

    def _sort(self) -> None:
        """Read ahead what fits `sort_bytes`; if that is all, and out of order, its lines are sorted by time."""
        size = 0
        while not self._stopping and (chunk := self._read()) is not None:
            self._unsorted.append(chunk)
            size += len(chunk.data)
            if chunk.arrived_us is not None or size > self._sort_bytes:  # arrivals are in order
                return
        sorted_, late_us = by_time(self._unsorted, self._lateness_us)
        if late_us:
            self._unsorted = deque(sorted_)
            self._on_note(
                f"{self.source.name}: events are out of order, by {late_us / 1e6:,.0f} s at most: sorted by their ts"
            )

    def _wait_for_room(self) -> bool:
        while True:
            with self._changed:
                if self._changed.wait_for(
                    lambda: self._stopping or sum(parsed.cost for parsed in self.queue) < max(self._limit, 1),
                    _LAG_EVERY_S,
                ):
                    return not self._stopping
            self._update_lag()  # it grows while waiting

    def _read(self) -> Chunk | None:
        """One read, retried until the source answers. Unread events stay in the source, so nothing is lost."""
        said, since, wait_s = set[str](), time.monotonic(), FIRST_WAIT_S
        while not self._stopping:
            try:
                chunk = self.source.read()
            except (StoreUnavailable, SourceUnavailable, UnreadableValue) as error:
                if self._once and isinstance(error, UnreadableValue):
                    raise
                self._idle.reset()
                if str(error) not in said:
                    said.add(str(error))
                    self._on_note(f"{self.source.name}: {error}; trying again, nothing is lost meanwhile")
                self._pause(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            if said:
                seconds = time.monotonic() - since
                self._on_note(f"{self.source.name}: answers again, after {seconds:.1f} s")
            return chunk
        return None

    def _take(self, chunk: Chunk | None) -> None:
        clock_us = self.source.watermark_us()
        stepped_back = 0 < clock_us < self._last_us
        if stepped_back:
            self._last_us = clock_us
        parsed = self._parsed(chunk) if chunk is not None and len(chunk) else None
        watermark_us = self._watermark(dry=chunk is None)
        with self._changed:
            if stepped_back:
                self._back_to_us = clock_us
            if parsed is not None:
                self.queue.append(parsed)
            self.ended = watermark_us == NEVER_US and (self._once or self.source.watermark_us() == NEVER_US)
            self.watermark_us, self.has_read = watermark_us, True
            self._changed.notify_all()
        if chunk is None and not self.ended:
            self._pause(min(_PAUSE_S, self._idle_s))

    def _parsed(self, chunk: Chunk) -> Parsed:
        events = self._parser.parse(chunk.data, chunk.starts, chunk.arrived_us)
        came_us = chunk.arrived_us
        self._has_clock = came_us is not None
        if came_us is None:
            timeless = (events.kind == BAD) | (events.kind == OTHER)
            came_us = np.where(timeless, self._last_us, events.time_us)
        else:
            self._skew.add(events, came_us)
        order_us = np.maximum(np.maximum.accumulate(came_us), self._last_us)
        self._last_us = int(order_us[-1])
        cost = len(chunk.data) + sum(column.nbytes for column in events.columns.values())
        return Parsed(chunk, events, order_us, cost)

    def _watermark(self, dry: bool) -> int:
        """The watermark after a read; NEVER_US if the source has ended or is idle."""
        watermark_us = 0 if self._unsorted else self.source.watermark_us()
        if watermark_us == NEVER_US or (dry and self._once):
            return NEVER_US
        watermark_us = max(watermark_us, self._last_us) if self._has_clock else self._last_us
        return NEVER_US if self._idle.check(watermark_us, dry) else watermark_us

    def _update_lag(self) -> None:
        if self._now() - self._lag_at < _LAG_EVERY_S:
            return
        self._lag_at = self._now()
        try:
            lag = self.source.lag()
        except (StoreUnavailable, SourceUnavailable, UnreadableValue):
            return
        with self._changed:
            self.lag = lag

    def lag_and_queue(self) -> Lag:
        """The source's lag, including the queue."""
        with self._changed:
            events = sum(len(parsed) for parsed in self.queue)
            size = sum(len(parsed.chunk.data) for parsed in self.queue)
            lag, behind, ahead = self.lag, *self._skew.seconds()
            if self.queue and self._has_clock and lag.seconds is not None and self.watermark_us != NEVER_US:
                waits_us = self.watermark_us - int(self.queue[0].order_us[0])
                lag = replace(lag, seconds=max(lag.seconds, waits_us / 1e6))
        return replace(
            lag,
            behind=behind,
            ahead=ahead,
            events=None if lag.events is None else lag.events + events,
            bytes=None if lag.bytes is None else lag.bytes + size,
        )

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)


def by_time(chunks: Sequence[Chunk], lateness_us: int) -> tuple[list[Chunk], int]:
    """All events of a source in the order of their times, and by how many microseconds one was late at most.

    The chunks as given, and 0, if that is no more than `lateness_us`: so much the join evens out by itself.
    """
    parser, times = Parser(Wanted(())), list[Int64s]()
    for chunk in chunks:
        events = parser.parse(chunk.data, chunk.starts)
        times.append(np.where((events.kind == BAD) | (events.kind == OTHER), BEFORE_ALL_US, events.time_us))
    all_us = np.concatenate([np.empty(0, np.int64), *times])
    timed = all_us != BEFORE_ALL_US
    late_us = int((np.maximum.accumulate(all_us[timed]) - all_us[timed]).max(initial=0))
    if late_us <= lateness_us:
        return list(chunks), 0
    order = np.argsort(all_us, kind="stable")
    lines = [
        chunk.data[first:stop]
        for chunk in chunks
        for first, stop in itertools.pairwise(chunk.starts.tolist())
    ]
    marks, ends = (
        np.concatenate([chunk.marks for chunk in chunks])[order],
        np.cumsum([len(lines[i]) for i in order]),
    )
    found, last = list[Chunk](), chunks[-1]
    for part in np.split(np.arange(order.size), np.flatnonzero(np.diff(ends // READ_BYTES)) + 1):
        data, starts = lines_of([lines[i].rstrip(b"\r\n") for i in order[part]])
        found.append(Chunk(data, starts, None, marks[part], last.before))  # of all files, as the marks are
    return found, late_us


class _Skew:
    """By how much the events' own times and their arrivals differ at most, in the present minute and the one before."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._now = clock.monotonic
        # By minute: the least and the greatest delay of an impression, the least of any event; in microseconds.
        self._minutes: dict[int, tuple[int, int, int]] = {}

    def add(self, events: Events, arrived_us: Int64s) -> None:
        """Take note of the events of a chunk."""
        minute = int(self._now() // 60)
        least, most, of_any = self._minutes.get(minute, (NEVER_US, 0, 0))
        delay_us = arrived_us - events.time_us
        shown, timed = events.kind == IMPRESSION, (events.kind == IMPRESSION) | (events.kind == FEEDBACK)
        latest = (
            int(delay_us[shown].min(initial=least)),
            int(delay_us[shown].max(initial=most)),  # feedback may be reported long afterwards
            int(delay_us[timed].min(initial=of_any)),
        )
        self._minutes = {each: of for each, of in self._minutes.items() if each == minute - 1} | {
            minute: latest
        }

    def seconds(self) -> tuple[float, float]:
        """How far impressions are behind, and events ahead; a log that is written to a stream later is not behind."""
        since = int(self._now() // 60) - 1
        recent = [of for each, of in self._minutes.items() if each >= since]
        if not recent:
            return 0.0, 0.0
        least, most, of_any = zip(*recent, strict=True)
        return (max(most) / 1e6 if min(least) < BACKFILL_US else 0.0), -min(of_any) / 1e6


class _Idle:
    """Detects an idle source: no events for `idle_s` while its watermark did not move."""

    def __init__(self, idle_s: float, clock: Clock = SYSTEM) -> None:
        self._idle_s, self._now = idle_s, clock.monotonic
        self._since: tuple[int, float] | None = None

    def check(self, watermark_us: int, dry: bool) -> bool:
        """True if the source is idle. dry: the last read returned nothing."""
        now = self._now()
        if not dry:
            self.reset()
            return False
        if self._since is None or self._since[0] != watermark_us:
            self._since = (watermark_us, now)
        return now - self._since[1] >= self._idle_s

    def reset(self) -> None:
        """Start over: an unavailable source is not idle."""
        self._since = None


ORDER = "order_us"
"""The key that the merger adds to a source's position: the arrival time of the last event released."""

SORT_BYTES = 256 << 20
"""Of the events of files that are out of order, if they are to be sorted."""
_POLL_BYTES = 8 << 20
_GATHER_S = 0.05
_CLOSE_S = 10.0


class Merger:
    """Reads and parses ahead in one thread per source and releases events in one order. `poll` from one thread.

    positions: those of the checkpoint that the sources were opened with. read_ahead: bytes of events kept in memory.
    share: the partition whose events are released; None for all. on_note: called from any thread. marks: give every row
    a column MARK, the first of the marks of its impression in its chunk. lateness_us: with `once`, a source of files
    whose events are out of order by more is sorted by time if it fits SORT_BYTES; None: files are read as they are.

    `has_stepped_back`: a source's clock has; reset with the limit. `limit_us` holds back all events from that time on;
    a run of several partitions sets it to the end of a round.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        wanted: Wanted,
        segments: WaitingRows,
        *,
        positions: Sequence[SourcePosition] = (),
        idle_s: float = 2.0,
        once: bool = False,
        read_ahead: int = 64 << 20,
        share: PartitionShare | None = None,
        on_note: Callable[[str], None] = lambda _: None,
        marks: bool = False,
        lateness_us: int | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.limit_us = NEVER_US
        self._marks = marks
        self._sources, self._segments = tuple(sources), segments
        self._starts = [_position_of(source, number, positions) for number, source in enumerate(sources)]
        self._taken: list[tuple[Parsed, int] | None] = [None] * len(self._sources)
        self._changed = Condition()
        self._gathered_at = 0.0
        self._back_to_us: int | None = None
        self.has_stepped_back = False
        self._readers = [
            Reader(
                *(source, Parser(wanted, share, clock), self._changed, on_note),
                order_us=int(position.get(ORDER, BEFORE_ALL_US)),
                idle_s=idle_s,
                once=once,
                limit=read_ahead // len(self._sources),
                sort_bytes=0 if lateness_us is None else SORT_BYTES // len(self._sources),
                lateness_us=lateness_us or 0,
                clock=clock,
            )
            for source, position in zip(self._sources, self._starts, strict=True)
        ]

    def poll(self, wait_s: float = 0.0) -> Merged | None:
        """The next events that can be released; None if there are none within `wait_s`.

        Gathers events for up to 50 ms, so that a trickle does not arrive one by one. Raises what a source raised,
        except StoreUnavailable, which is retried and reported by on_note.
        """
        until = time.monotonic() + wait_s
        while True:
            with self._changed:
                if error := next(
                    (reader.error for reader in self._readers if reader.error is not None), None
                ):
                    raise error
                parts = self._next_parts()
            if parts:
                return self._release(parts)
            rest = until - time.monotonic()
            if rest <= 0 or self.ended or self.at_limit:
                return None
            with self._changed:
                self._changed.wait(min(rest, _GATHER_S))

    @property
    def next_us(self) -> int | None:
        """The least time of an event that is not released; NEVER_US once all have ended; None while all are idle."""
        with self._changed:
            pairs = zip(self._readers, self._taken, strict=True)
            times = [time_us for reader, taken in pairs if (time_us := reader.next_us(taken)) is not None]
        return min(times, default=None)

    @property
    def at_limit(self) -> bool:
        """True if no event before `limit_us` is left. Never without a limit, nor while all sources are idle."""
        if self.limit_us == NEVER_US:
            return False
        next_us = self.next_us
        return next_us is not None and next_us >= self.limit_us

    def positions(self) -> list[SourcePosition]:
        """Where reading continues in each source after the events released so far."""
        found = list(self._starts)
        for number, (source, taken) in enumerate(zip(self._sources, self._taken, strict=True)):
            if taken is not None:
                parsed, count = taken
                order_us = int(parsed.order_us[count - 1])
                found[number] = {**source.position(parsed.chunk, count), ORDER: order_us}
        return found

    @property
    def ended(self) -> bool:
        """With `once`: all that the sources hold has been released."""
        with self._changed:
            return all(reader.ended and not reader.queue for reader in self._readers)

    @property
    def has_read(self) -> bool:
        """True once every source was read; before that, `next_us` is what an earlier run knew."""
        with self._changed:
            return all(reader.has_read for reader in self._readers)

    @property
    def has_released(self) -> bool:
        """True if there was any event since it was opened, of whichever partition."""
        return any(taken is not None for taken in self._taken)

    def lags(self) -> list[Lag]:
        """Of each source, including events read ahead and not yet released."""
        return [reader.lag_and_queue() for reader in self._readers]

    def close(self) -> None:
        """Stop the threads and close the sources. May be called twice."""
        for reader in self._readers:
            reader.stop()
        for reader in self._readers:
            reader.join(_CLOSE_S)

    def _next_parts(self) -> list[Part]:
        """What can be released of each source; nothing while gathering."""
        if self._is_gathering():
            return []
        stepped = [each for reader in self._readers if (each := reader.step_back()) is not None]
        if stepped:  # said with the next events
            self._back_to_us = min(stepped)
            self.has_stepped_back = True
        considered, watermarks_us = [], []
        for reader, taken in zip(self._readers, self._taken, strict=True):
            front, watermark_us = _front(reader, taken)
            considered.append(front)
            watermarks_us.append(watermark_us)
        return releasable(considered, watermarks_us, self.limit_us)

    def _is_gathering(self) -> bool:
        if time.monotonic() - self._gathered_at >= _GATHER_S or all(reader.ended for reader in self._readers):
            return False
        queued = [parsed for reader in self._readers for parsed in reader.queue]
        has_reached = any(parsed.order_us[-1] >= self.limit_us for parsed in queued)
        return not has_reached and sum(parsed.cost for parsed in queued) < _POLL_BYTES

    def _release(self, parts: Sequence[Part]) -> Merged:
        merged = merge(parts, self._sources, self._segments.add, marks=self._marks)
        with self._changed:
            for part in parts:
                self._taken[part.source] = (part.parsed, part.stop)
                if part.stop == len(part.parsed):
                    self._readers[part.source].queue.popleft()
            self._changed.notify_all()
        self._gathered_at = time.monotonic()
        back_to_us, self._back_to_us = self._back_to_us, None
        return replace(merged, back_to_us=back_to_us)


def _front(reader: Reader, taken: tuple[Parsed, int] | None) -> tuple[list[tuple[Parsed, int]], int]:
    """The first chunks of a queue, with the events taken of each, and the watermark after them."""
    front, size = list[tuple[Parsed, int]](), 0
    for parsed in reader.queue:
        if size >= _POLL_BYTES:
            return front, int(parsed.order_us[0])
        front.append((parsed, taken[1] if taken is not None and taken[0] is parsed else 0))
        size += parsed.cost
    return front, reader.watermark_us


def _position_of(source: Source, number: int, positions: Sequence[SourcePosition]) -> SourcePosition:
    """The position with the source's name, or, if positions have no names, with its number."""
    if any("source" in position for position in positions):
        return next((position for position in positions if position.get("source") == source.name), {})
    return positions[number] if number < len(positions) else {}


NO_SEGMENT = -1


@dataclass(frozen=True)
class Part:
    """Events `first` to `stop` of a source's chunk."""

    source: int
    parsed: Parsed
    first: int
    stop: int


def releasable(
    fronts: Sequence[Sequence[tuple[Parsed, int]]], watermarks_us: Sequence[int], limit_us: int = NEVER_US
) -> list[Part]:
    """The events before `limit_us` that no unread event can precede.

    fronts: of each source, its next chunks and the events taken of each; watermarks_us: of each source, after those
    chunks. Invariant: events are ordered by (arrival, source), then as in the source; so an event that arrived at
    another source's watermark is released if its own source comes first.
    """
    parts = []
    for source, front in enumerate(fronts):
        for parsed, first in front:
            before_limit = int(np.searchsorted(parsed.order_us, limit_us, "left"))
            stop = min(
                (
                    int(np.searchsorted(parsed.order_us, watermark, "right" if source < other else "left"))
                    for other, watermark in enumerate(watermarks_us)
                    if other != source
                ),
                default=len(parsed),
            )
            stop = min(stop, before_limit)
            if stop > first:
                parts.append(Part(source, parsed, first, stop))
            if stop < len(parsed):
                break
    return parts


def merge(
    parts: Sequence[Part],
    sources: Sequence[Source],
    add: Callable[[Mapping[str, pa.Array]], int],
    *,
    marks: bool = False,
) -> Merged:
    """The events of all parts in one order; their rows are added as one table. parts: ordered by source."""
    order = np.argsort(np.concatenate([p.parsed.order_us[p.first : p.stop] for p in parts]), kind="stable")
    bad = _bad(parts, sources, order)
    whole = {
        name: np.concatenate([getattr(p.parsed.events, name)[p.first : p.stop] for p in parts])
        for name in OF_EVENTS
    }
    order = order[whole["kind"][order] != OTHER]
    lengths = np.concatenate([np.diff(p.parsed.events.first[p.first : p.stop + 1]) for p in parts])
    row = np.cumsum(lengths) - lengths
    items = np.concatenate([part.parsed.events.items[_rows_of(part)] for part in parts])
    return Merged(
        **{name: values[order] for name, values in whole.items()},
        now_us=np.concatenate([_now(part) for part in parts])[order],
        segment=np.full(order.size, _add(parts, add, marks), np.int32),
        row=row[order],
        rows=lengths[order].astype(np.int32),
        items=items[gathered(row[order], lengths[order])],
        bad=bad,
    )


def _now(part: Part) -> Int64s:
    """Each event's arrival by its source's clock, else its own time; for a BAD event, the previous one's."""
    window = slice(part.first, part.stop)
    if part.parsed.chunk.arrived_us is not None:
        return part.parsed.chunk.arrived_us[window]
    events = part.parsed.events
    return np.where(events.kind[window] == BAD, part.parsed.order_us[window], events.time_us[window])


def _rows_of(part: Part) -> slice:
    first = part.parsed.events.first
    return slice(int(first[part.first]), int(first[part.stop]))


def _add(parts: Sequence[Part], add: Callable[[Mapping[str, pa.Array]], int], marks: bool) -> int:
    tables = []
    for part in parts:
        rows = _rows_of(part)
        if rows.stop > rows.start:
            columns = part.parsed.events.columns
            table = {name: column[rows] for name, column in columns.items()}
            if marks:
                lengths = np.diff(part.parsed.events.first[part.first : part.stop + 1])
                mark = part.parsed.chunk.marks[part.first : part.stop, 0]
                table[MARK] = pa.array(np.repeat(mark, lengths))
            tables.append(table)
    return add(together(tables)) if tables else NO_SEGMENT


def _bad(parts: Sequence[Part], sources: Sequence[Source], order: Int64s) -> tuple[BadEvent, ...]:
    if not any(part.parsed.events.bad for part in parts):
        return ()
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    found, before = dict[int, BadEvent](), 0
    for part in parts:
        for number, reason in part.parsed.events.bad.items():
            if part.first <= number < part.stop:
                at = int(rank[before + number - part.first])
                source, chunk = sources[part.source], part.parsed.chunk
                line = chunk.data[chunk.starts[number] : chunk.starts[number + 1]].rstrip(b"\r\n")
                found[at] = BadEvent(source.name, source.where(chunk, number), line, reason)
        before += part.stop - part.first
    return tuple(found[at] for at in sorted(found))
