"""One stream of a store as a source, and the checks that it is still the stream that was read before.

An entry's id is its time of arrival by the store's clock. The clock is read before each read of entries and gives the
watermark, so several streams of one store can be merged into one order. docs/sources.md describes positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from model_store.errors import StoreError, StoreUnavailable, UnreadableValue, counted
from model_store.streams.event_streams import EntryId, EventStream, Read
from trainer.events.events import (
    NEVER_US,
    READ_BYTES,
    READ_EVENTS,
    Chunk,
    Int64s,
    Lag,
    SourcePosition,
    lines_of,
)

_LEAST_EVENTS = 16
_STEP_BACK_US = 1_000_000  # clocks of two servers of one store may differ by less


class StreamSource:
    """Reads one stream from a position on; see Source for the methods. Marks are the entries' ids."""

    def __init__(
        self,
        name: str,
        stream: EventStream,
        position: SourcePosition,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self._stream = stream
        self._on_note = on_note
        self._once = once
        self._after: EntryId = (int(position.get("ms", 0)), int(position.get("seq", 0)))
        self._floor_us = int(position.get("floor_us", 0))
        self._continuity = Continuity(name, position, on_note)
        self._watermark_us = 0
        self._clock: tuple[int, float] | None = None
        self._count = READ_EVENTS
        self.start = self._position()

    @property
    def lost(self) -> int:
        """Entries deleted before they were read."""
        return self._continuity.lost

    def read(self) -> Chunk | None:
        """The next entries, at most READ_EVENTS and about READ_BYTES. One round trip. Raises StoreUnavailable."""
        if self._watermark_us == NEVER_US:
            return None
        read = self._stream.read(self._after, self._count)
        after = self._continuity.continue_after(read, self._after)
        if after != self._after:
            self._after, read = after, self._stream.read(after, self._count)
        self._update_clock(read)
        if not len(read):
            self._continuity.at_end(read)
            self._advance(read.now_us, has_more=False)
            return None
        before = self._position()
        chunk = Chunk(*lines_of(read.payloads), self._arrivals(read.ids), read.ids, before)
        self._go_on(read, len(chunk.data))
        return chunk

    def watermark_us(self) -> int:
        """All entries before this have been read, by the store's clock; NEVER_US once it has ended."""
        return self._watermark_us

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        """The position after `count` entries of the chunk."""
        if count == 0:
            return chunk.before
        assert chunk.arrived_us is not None
        passed = chunk.before["passed"]
        return {
            **chunk.before,
            "ms": int(chunk.marks[count - 1, 0]),
            "seq": int(chunk.marks[count - 1, 1]),
            "floor_us": int(chunk.arrived_us[count - 1]),
            "passed": None if passed is None else passed + count,
        }

    def where(self, chunk: Chunk, number: int) -> str:
        """The entry's id, as used by XRANGE."""
        ms, seq = chunk.marks[number].tolist()
        return f"{ms}-{seq}"

    def lag(self) -> Lag:
        """Unread entries and an upper bound of the first one's age. Unknown while the store is unavailable."""
        try:
            info = self._stream.info()
        except (StoreUnavailable, UnreadableValue):
            return Lag()
        if info.last_id <= self._after:
            return Lag(events=0, seconds=0.0)
        passed = self._continuity.passed
        events = None if info.added is None or passed is None else max(0, info.added - passed)
        if self._clock is None or info.first_id is None:
            return Lag(events=events)
        now_us = self._clock[0] + (time.monotonic() - self._clock[1]) * 1e6
        oldest_ms = max(info.first_id[0], self._after[0])
        return Lag(events=events, seconds=max(0.0, now_us / 1e6 - oldest_ms / 1e3))

    def holds(self) -> str:
        """Whether the stream exists, and its length; see Source."""
        try:
            info = self._stream.info()
        except StoreError as error:
            return f"the stream {self.name} cannot be looked at ({error})"
        if not info.length:
            return f"the stream {self.name} is {'empty' if info.last_id > (0, 0) else 'not there'}"
        read = "all read" if info.last_id <= self._after else "not all of them read"
        return f"the stream {self.name} has {counted(info.length, 'entry', 'entries')}, {read}"

    def close(self) -> None:
        """Nothing to release: the store owns its connections."""

    def _position(self) -> SourcePosition:
        ms, seq = self._after
        return {
            "source": self.name,
            "ms": ms,
            "seq": seq,
            "floor_us": self._floor_us,
            **self._continuity.as_position(),
        }

    def _arrivals(self, ids: Int64s) -> Int64s:
        # Non-decreasing, also where ids restart under an earlier clock.
        arrived: Int64s = np.maximum(ids[:, 0] * 1000, self._floor_us)
        return arrived

    def _go_on(self, read: Read, size: int) -> None:
        has_more = len(read) == self._count
        self._after = (int(read.ids[-1, 0]), int(read.ids[-1, 1]))
        self._continuity.went_on(len(read))
        self._floor_us = max(self._floor_us, self._after[0] * 1000)
        self._count = min(READ_EVENTS, max(_LEAST_EVENTS, READ_BYTES * len(read) // size))
        self._advance(read.now_us, has_more)

    def _advance(self, now_us: int, has_more: bool) -> None:
        """Later entries may have the last one's millisecond; the clock counts only once all entries are read."""
        reached = self._floor_us if has_more else max(self._floor_us, now_us)
        self._watermark_us = max(self._watermark_us, reached)
        if self._once and not has_more:
            self._watermark_us = NEVER_US

    def _update_clock(self, read: Read) -> None:
        if self._clock is not None and read.now_us < self._clock[0] - _STEP_BACK_US:
            seconds = (self._clock[0] - read.now_us) / 1e6
            self._on_note(
                f"{self.name}: the store's clock stepped back by {seconds:.1f} s; events that come until it is where "
                "it was are learned as they come, so a replay may order them otherwise"
            )
        self._clock = (read.now_us, time.monotonic())


BEGINNING: EntryId = (0, 0)


class Continuity:
    """Detects, at each read, that a stream was replaced or truncated, and counts entries deleted before they were read.

    A store can lose a stream (FLUSHALL, DEL, no persistence) or its end (failover to a replica that lagged). Both show
    in the stream's last id, its first entry, and the number of entries ever added. passed: entries before the position;
    None until known. Before Redis 7 a stream does not report the entries ever added: then nothing is counted.
    """

    def __init__(self, name: str, position: dict[str, Any], on_note: Callable[[str], None]) -> None:
        self.lost = int(position.get("lost", 0))
        self.passed: int | None = position.get("passed")
        self._name = name
        self._on_note = on_note
        self._is_new = not position
        self._lost_as_said = self.lost
        # The first entry as last seen, and how many were removed by then.
        self._first: tuple[int, int, int] | None = tuple(position["first"]) if position.get("first") else None

    def as_position(self) -> dict[str, Any]:
        """What a position keeps."""
        return {"passed": self.passed, "first": self._first and list(self._first), "lost": self.lost}

    def continue_after(self, read: Read, after: EntryId) -> EntryId:
        """The entry after which to continue: `after`, unless the stream has changed. Reports changes, counts losses."""
        if self._is_recreated(read):
            self._on_note(
                f"{self._name} was deleted and created again: reading from its start; entries not read before are lost"
            )
            after, self.passed = BEGINNING, read.removed
        elif read.last_id < after:
            self._on_note(_explain_loss(self._name, read, after))
            after, self.passed = read.last_id, read.added
        elif read.added is not None and self.passed is not None and read.added < self.passed:
            self._on_note(
                f"{self._name} has had fewer entries than were read: a failover lost some; reading continues after "
                f"{_shown(after)}"
            )
            self.passed = None
        self._count_losses(read)
        self._first = (
            None if read.first_id is None or read.removed is None else (*read.first_id, read.removed)
        )
        return after

    def went_on(self, count: int) -> None:
        """Count entries that were read."""
        if self.passed is not None:
            self.passed += count

    def at_end(self, read: Read) -> None:
        """The position is the stream's end: all entries ever added are before it."""
        if self.passed is None:
            self.passed = read.added

    def _is_recreated(self, read: Read) -> bool:
        """True if the first entry cannot belong to the stream that was read.

        In the same stream, or an older copy of it, the first entry changes exactly when entries are removed.
        """
        if self._first is None or read.first_id is None or read.removed is None:
            return False
        *first, removed = self._first
        if read.removed == removed:
            return read.first_id != tuple(first)
        return read.removed < removed and read.first_id > tuple(first)

    def _count_losses(self, read: Read) -> None:
        if read.removed is None:
            return
        if self._is_new:
            self._is_new, self.passed = (
                False,
                read.removed,
            )  # entries removed before the very first read are not a loss
        if self.passed is None or read.removed <= self.passed:
            return
        self.lost += read.removed - self.passed
        self.passed = read.removed
        if self.lost >= 2 * self._lost_as_said:
            self._lost_as_said = self.lost
            self._on_note(
                f"{self._name}: {self.lost:,} entries in all were deleted before they were read; let the stream be "
                "longer (--impressions-length, --impressions-age of ftrie serve), or give the trainer more of the "
                "machine"
            )


def _explain_loss(name: str, read: Read, after: EntryId) -> str:
    if read.first_id is None:
        return (
            f"{name} is empty though it was read up to {_shown(after)}: it was deleted, or the store lost its data; "
            "entries not read are lost; reading continues with new entries"
        )
    return (
        f"{name} ends at {_shown(read.last_id)} though it was read up to {_shown(after)}: a failover lost entries; "
        "reading continues after its present end"
    )


def _shown(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"
