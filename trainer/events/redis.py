"""One stream of a store as a source. What the entries say is read elsewhere; so is where streams are written.

An entry's id is when it came, by the store's clock. That clock, asked before each read, says up to when all there is
has been read; so several streams of one store can be put into one order. Places: docs/sources.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from model_store.errors import StoreError, StoreUnavailable, UnreadableValue, counted
from model_store.streams.event_streams import EntryId, EventStream, Read
from trainer.events.events import NEVER_US, READ_BYTES, READ_EVENTS, Int64s, Lag, Place, Stretch, lines_of

_LEAST_EVENTS = 16
_STEP_BACK_US = 1_000_000  # by less the clocks of two servers of one store may be apart


class StreamSource:
    """Reads one stream on from a place; see Source for the methods. Marks are the entries' ids."""

    def __init__(
        self,
        name: str,
        stream: EventStream,
        place: Place,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self._stream = stream
        self._on_note = on_note
        self._once = once
        self._after: EntryId = (int(place.get("ms", 0)), int(place.get("seq", 0)))
        self._floor_us = int(place.get("floor_us", 0))
        self._continuity = Continuity(name, place, on_note)
        self._frontier_us = 0
        self._clock: tuple[int, float] | None = None
        self._count = READ_EVENTS
        self.start = self._place()

    @property
    def lost(self) -> int:
        """Entries that were deleted unread."""
        return self._continuity.lost

    def read(self) -> Stretch | None:
        """The next entries, at most READ_EVENTS and about READ_BYTES. One round trip. Raises StoreUnavailable."""
        if self._frontier_us == NEVER_US:
            return None
        read = self._stream.read(self._after, self._count)
        after = self._continuity.behind(read, self._after)
        if after != self._after:
            self._after, read = after, self._stream.read(after, self._count)
        self._look_at_clock(read)
        if not len(read):
            self._continuity.at_end(read)
            self._advance(read.now_us, has_more=False)
            return None
        before = self._place()
        stretch = Stretch(*lines_of(read.payloads), self._arrivals(read.ids), read.ids, before)
        self._go_on(read, len(stretch.data))
        return stretch

    def frontier_us(self) -> int:
        """Up to when all entries have been read, by the store's clock; NEVER_US once it has ended."""
        return self._frontier_us

    def place(self, stretch: Stretch, count: int) -> Place:
        """The place behind `count` entries of the stretch."""
        if count == 0:
            return stretch.before
        assert stretch.arrived_us is not None
        passed = stretch.before["passed"]
        return {
            **stretch.before,
            "ms": int(stretch.marks[count - 1, 0]),
            "seq": int(stretch.marks[count - 1, 1]),
            "floor_us": int(stretch.arrived_us[count - 1]),
            "passed": None if passed is None else passed + count,
        }

    def where(self, stretch: Stretch, number: int) -> str:
        """The entry's id, as XRANGE takes it."""
        ms, seq = stretch.marks[number].tolist()
        return f"{ms}-{seq}"

    def lag(self) -> Lag:
        """Entries added and not yet read, and how old the first of them is at most. Unknown while the store is away."""
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
        """Whether the stream is there, and how much of it; see Source."""
        try:
            info = self._stream.info()
        except StoreError as error:
            return f"the stream {self.name} cannot be looked at ({error})"
        if not info.length:
            return f"the stream {self.name} is {'empty' if info.last_id > (0, 0) else 'not there'}"
        read = "all read" if info.last_id <= self._after else "not all of them read"
        return f"the stream {self.name} has {counted(info.length, 'entry', 'entries')}, {read}"

    def close(self) -> None:
        """Nothing is open: the store's connections are not this source's own."""

    def _place(self) -> Place:
        ms, seq = self._after
        return {
            "source": self.name,
            "ms": ms,
            "seq": seq,
            "floor_us": self._floor_us,
            **self._continuity.as_place(),
        }

    def _arrivals(self, ids: Int64s) -> Int64s:
        # Never falling, also where the ids begin anew under an earlier clock.
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
        """Entries to come may have the last one's millisecond; those before the clock are known only at the end."""
        reached = self._floor_us if has_more else max(self._floor_us, now_us)
        self._frontier_us = max(self._frontier_us, reached)
        if self._once and not has_more:
            self._frontier_us = NEVER_US

    def _look_at_clock(self, read: Read) -> None:
        if self._clock is not None and read.now_us < self._clock[0] - _STEP_BACK_US:
            seconds = (self._clock[0] - read.now_us) / 1e6
            self._on_note(
                f"{self.name}: the store's clock stepped back by {seconds:.1f} s; events that come until it is where "
                "it was are learned as they come, so a replay may order them otherwise"
            )
        self._clock = (read.now_us, time.monotonic())


# --- Whether a stream is still the one that was read before, and what of it was deleted unread. Reads nothing
# itself ---
#
# A store can lose a stream (FLUSHALL, DEL, no persistence), or its end (a failover to a replica that was
# behind). Both are noticed by what a stream tells of itself: its last id, its first entry, and how many
# entries it has had.


BEGINNING: EntryId = (0, 0)


class Continuity:
    """Judges each read of one stream. passed: how many entries lie before the place; None until that is known.

    Before Redis 7 a stream does not tell how many entries it has had: then nothing is counted.
    """

    def __init__(self, name: str, place: dict[str, Any], on_note: Callable[[str], None]) -> None:
        self.lost = int(place.get("lost", 0))
        self.passed: int | None = place.get("passed")
        self._name = name
        self._on_note = on_note
        self._is_new = not place
        self._lost_as_said = self.lost
        # The first entry as last seen, and how many had been removed by then.
        self._first: tuple[int, int, int] | None = tuple(place["first"]) if place.get("first") else None

    def as_place(self) -> dict[str, Any]:
        """What a place keeps of it."""
        return {"passed": self.passed, "first": self._first and list(self._first), "lost": self.lost}

    def behind(self, read: Read, after: EntryId) -> EntryId:
        """Behind which entry to read on: `after`, unless the stream is not what it was. Says so, and counts losses."""
        if self._is_anew(read):
            self._on_note(
                f"{self._name} was deleted and begun anew: read from its start; what had not been read before is gone"
            )
            after, self.passed = BEGINNING, read.removed
        elif read.last_id < after:
            self._on_note(_what_became(self._name, read, after))
            after, self.passed = read.last_id, read.added
        elif read.added is not None and self.passed is not None and read.added < self.passed:
            self._on_note(
                f"{self._name} has had fewer entries than were read of it: a failover lost some; reading on behind "
                f"{_shown(after)}"
            )
            self.passed = None
        self._look_for_losses(read)
        self._first = (
            None if read.first_id is None or read.removed is None else (*read.first_id, read.removed)
        )
        return after

    def went_on(self, count: int) -> None:
        """So many entries were read."""
        if self.passed is not None:
            self.passed += count

    def at_end(self, read: Read) -> None:
        """Nothing lies behind the place: all entries the stream has had lie before it."""
        if self.passed is None:
            self.passed = read.added

    def _is_anew(self, read: Read) -> bool:
        """True if the first entry cannot be of the stream that was read.

        Of one and the same stream, or of an older copy, the first entry moves on exactly when one was removed.
        """
        if self._first is None or read.first_id is None or read.removed is None:
            return False
        *first, removed = self._first
        if read.removed == removed:
            return read.first_id != tuple(first)
        return read.removed < removed and read.first_id > tuple(first)

    def _look_for_losses(self, read: Read) -> None:
        if read.removed is None:
            return
        if self._is_new:
            self._is_new, self.passed = False, read.removed  # what went before the very first read is no loss
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


def _what_became(name: str, read: Read, after: EntryId) -> str:
    if read.first_id is None:
        return (
            f"{name} is empty though it was read up to {_shown(after)}: it was deleted, or the store lost its data; "
            "what had not been read is gone; reading what comes from here on"
        )
    return (
        f"{name} ends at {_shown(read.last_id)} though it was read up to {_shown(after)}: a failover lost entries; "
        "reading on behind its present end"
    )


def _shown(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"
