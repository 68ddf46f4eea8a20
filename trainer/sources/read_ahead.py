"""Reads and parses one source ahead in a thread: a bounded queue of parsed chunks, and the source's watermark.

Chunks stay in the source's order; `merge` orders several sources.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Condition, Thread

import numpy as np

from model_store.errors import SourceUnavailable, StoreUnavailable, UnreadableValue
from trainer.events.columns import Wanted
from trainer.events.events import (
    BACKFILL_US,
    BAD,
    FEEDBACK,
    IMPRESSION,
    NEVER_US,
    OTHER,
    READ_BYTES,
    Chunk,
    Events,
    Int64s,
    Lag,
    Source,
    lines_of,
)
from trainer.events.parse import Parser

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
        self._idle = _Idle(idle_s)
        self._skew = _Skew()
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
                if self._changed.wait_for(lambda: self._stopping or self._has_room(), _LAG_EVERY_S):
                    return not self._stopping
            self._update_lag()  # it grows while waiting

    def _has_room(self) -> bool:
        return not self.queue or sum(parsed.cost for parsed in self.queue) < self._limit

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
        if time.monotonic() - self._lag_at < _LAG_EVERY_S:
            return
        self._lag_at = time.monotonic()
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

    def __init__(self) -> None:
        # By minute: the least and the greatest delay of an impression, the least of any event; in microseconds.
        self._minutes: dict[int, tuple[int, int, int]] = {}

    def add(self, events: Events, arrived_us: Int64s) -> None:
        """Take note of the events of a chunk."""
        minute = int(time.monotonic() // 60)
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
        since = int(time.monotonic() // 60) - 1
        recent = [of for each, of in self._minutes.items() if each >= since]
        if not recent:
            return 0.0, 0.0
        least, most, of_any = zip(*recent, strict=True)
        return (max(most) / 1e6 if min(least) < BACKFILL_US else 0.0), -min(of_any) / 1e6


class _Idle:
    """Detects an idle source: no events for `idle_s` while its watermark did not move."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._since: tuple[int, float] | None = None

    def check(self, watermark_us: int, dry: bool) -> bool:
        """True if the source is idle. dry: the last read returned nothing."""
        now = time.monotonic()
        if not dry:
            self.reset()
            return False
        if self._since is None or self._since[0] != watermark_us:
            self._since = (watermark_us, now)
        return now - self._since[1] >= self._idle_s

    def reset(self) -> None:
        """Start over: an unavailable source is not idle."""
        self._since = None
