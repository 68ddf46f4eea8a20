"""One stream of a store as a source, and the checks that it is still the stream that was read before.

An entry's id is its time of arrival by the store's clock. The clock is read before each read of entries and gives the
watermark, so several streams of one store can be merged into one order. An id that is ahead of the clock says nothing:
such an entry arrives when it is read. docs/events.md describes positions, adr/0017 the clocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from model_store.errors import InputError, StoreError, StoreUnavailable, UnreadableValue, counted
from model_store.keys import ModelKeys
from model_store.redis.servers import EMBEDDED, SCHEMES
from model_store.store import Store
from model_store.streams.event_streams import EntryId, EventStream, Read
from trainer.events.events import (
    NEVER_US,
    READ_BYTES,
    READ_EVENTS,
    Chunk,
    Int64s,
    Lag,
    Opener,
    Opening,
    Source,
    SourceKind,
    SourcePosition,
    lines_of,
)

_LEAST_EVENTS = 16
_STEP_US = 1_000_000
"""Clocks of two servers of one store may differ by less, and an entry may be added so long after TIME was read."""
_FASTEST = 1.125
"""How fast the store's clock may run by this machine's. A step ahead is believed at this rate: were it believed at
once, all windows would close, and the clicks that are still to come would be late."""


def boot() -> str:
    """Which run of this machine this is; empty if that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def since_boot_s() -> float:
    """This machine's clock, which no one sets; if it can be, one that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


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
        machine_s: Callable[[], float] = since_boot_s,
    ) -> None:
        self.name = name
        self._machine_s = machine_s
        self._stream = stream
        self._on_note = on_note
        self._once = once
        self._after: EntryId = (int(position.get("ms", 0)), int(position.get("seq", 0)))
        self._floor_us = int(position.get("floor_us", 0))
        self._continuity = Continuity(name, position, on_note)
        self._watermark_us = 0
        # The store's time as far as it is believed, when by this machine's clock, and how far TIME was ahead of it.
        self._clock_us, self._clock_s, self._ahead_us = self._floor_us, -math.inf, 0
        self._boot = boot()
        saved_s = float(position.get("clock_s", math.inf))
        if self._boot and position.get("boot") == self._boot and saved_s <= machine_s():
            self._clock_us, self._clock_s = int(position["clock_us"]), saved_s  # a restart believes no more
        self._ids_ahead_us = 0
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
        began_s = self._machine_s()
        read = self._stream.read(self._after, self._count)
        unread = self._continuity.unread_of_renumbered(read, self._after)
        if unread is None:
            after = self._continuity.continue_after(read, self._after)
        else:
            after = self._stream.before_last(unread, read.last_id)
        if after != self._after:
            began_s = self._machine_s()
            self._after, read = after, self._stream.read(after, self._count)
        self._update_clock(read, began_s)
        if not len(read):
            self._continuity.at_end(read)
            self._advance(has_more=False)
            return None
        before = self._position()
        arrived_us = self._arrivals(read.ids)
        chunk = Chunk(*lines_of(read.payloads), arrived_us, read.ids, before)
        self._floor_us = int(arrived_us[-1])
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
        lag = Lag(ids_ahead=self._ids_ahead_us / 1e6, clock_ahead=self._ahead_us / 1e6)
        try:
            info = self._stream.info()
        except (StoreUnavailable, UnreadableValue):
            return lag
        if info.last_id <= self._after:
            return replace(lag, events=0, seconds=0.0)
        passed = self._continuity.passed
        events = None if info.added is None or passed is None else max(0, info.added - passed)
        if not math.isfinite(self._clock_s) or info.first_id is None:
            return replace(lag, events=events)
        now_us = self._clock_us + (self._machine_s() - self._clock_s) * 1e6
        oldest_us = max(min(info.first_id[0] * 1000, now_us), self._floor_us)
        return replace(lag, events=events, seconds=max(0.0, now_us - oldest_us) / 1e6)

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
        clock = {"boot": self._boot, "clock_us": self._clock_us, "clock_s": self._clock_s}
        return {
            "source": self.name,
            "ms": ms,
            "seq": seq,
            "floor_us": self._floor_us,
            **(clock if self._boot and math.isfinite(self._clock_s) else {}),
            "passed": self._continuity.passed,
            "first": self._continuity.first and list(self._continuity.first),
            "lost": self.lost,
        }

    def _arrivals(self, ids: Int64s) -> Int64s:
        # Non-decreasing, also where ids restart under an earlier clock.
        stamped_us = ids[:, 0] * 1000
        stamped_us[stamped_us > self._clock_us + _STEP_US] = self._clock_us
        arrived: Int64s = np.maximum.accumulate(np.maximum(stamped_us, self._floor_us))
        return arrived

    def _go_on(self, read: Read, size: int) -> None:
        has_more = len(read) == self._count
        self._after = (int(read.ids[-1, 0]), int(read.ids[-1, 1]))
        if self._continuity.passed is not None:
            self._continuity.passed += len(read)
        self._count = min(READ_EVENTS, max(_LEAST_EVENTS, READ_BYTES * len(read) // size))
        self._advance(has_more)

    def _advance(self, has_more: bool) -> None:
        """Later entries may have the last one's millisecond; the clock counts only once all entries are read."""
        reached = self._floor_us if has_more else max(self._floor_us, self._clock_us)
        self._watermark_us = max(self._watermark_us, reached)
        if self._once and not has_more:
            self._watermark_us = NEVER_US

    def _update_clock(self, read: Read, began_s: float) -> None:
        """Follow the store's clock: back at once, ahead only as fast as this machine's clock allows.

        began_s: before the read. TIME was between it and now, so a slow read is not a step.
        """
        ended_s = self._machine_s()
        allowed_us = self._clock_us + (ended_s - self._clock_s) * 1e6 * _FASTEST
        ahead_us = 0
        if read.now_us < self._clock_us - _STEP_US:
            self._on_note(
                f"{self.name}: the store's clock stepped back by {(self._clock_us - read.now_us) / 1e6:.1f} s; events "
                "count from when they come by the earlier clock"
            )
            self._clock_us = self._watermark_us = read.now_us
            self._floor_us = min(self._floor_us, read.now_us)
        elif read.now_us > allowed_us + _STEP_US:
            self._clock_us, began_s = int(allowed_us), ended_s
            ahead_us = read.now_us - self._clock_us
            if not self._ahead_us:
                self._on_note(
                    f"{self.name}: the store's clock stepped ahead by {ahead_us / 1e6:.1f} s; that is believed only "
                    "little by little, so that no window closes early"
                )
        else:
            self._clock_us = max(self._clock_us, read.now_us)
        self._clock_s, self._ahead_us = began_s, ahead_us
        self._update_ids(read)

    def _update_ids(self, read: Read) -> None:
        """Whether ids are ahead of the clock: each later entry's is too, until the clock has come that far."""
        ahead_us = read.last_id[0] * 1000 - read.now_us
        if ahead_us > _STEP_US and not self._ids_ahead_us:
            self._on_note(
                f"{self.name}: its last id is {ahead_us / 1e6:.1f} s ahead of the store's clock: the clock was ahead, "
                "or an entry was added with such an id; entries count from when they are read; "
                "`ftrie store check --repair` gives them ids of the present"
            )
        self._ids_ahead_us = ahead_us if ahead_us > _STEP_US else 0


BEGINNING: EntryId = (0, 0)


class Continuity:
    """Detects, at each read, that a stream was replaced or truncated, and counts entries deleted before they were read.

    A store can lose a stream (FLUSHALL, DEL, no persistence) or its end (failover to a replica that lagged). Both show
    in the stream's last id, its first entry, and the number of entries ever added. passed: entries before the position;
    None until known. first: the first entry as last seen, and how many were removed by then. Before Redis 7 a stream
    does not report the entries ever added: then nothing is counted.
    """

    def __init__(self, name: str, position: dict[str, Any], on_note: Callable[[str], None]) -> None:
        self.lost = int(position.get("lost", 0))
        self.passed: int | None = position.get("passed")
        self._name = name
        self._on_note = on_note
        self._is_new = "passed" not in position
        self._lost_as_said = self.lost
        self.first: tuple[int, int, int] | None = tuple(position["first"]) if position.get("first") else None

    def unread_of_renumbered(self, read: Read, after: EntryId) -> int | None:
        """How many entries are unread, if `ftrie store check --repair` gave some of them other ids; else None.

        Then there are as many as ever, in the same order, though the last id is lower.
        """
        was_ahead = after > read.last_id and after[0] * 1000 > read.now_us
        if not was_ahead or read.added is None or self.passed is None or read.added < self.passed:
            return None
        unread, self.first = read.added - self.passed, None
        self._on_note(
            f"{self._name} got ids of the present in place of ids ahead of the store's clock: reading continues with "
            f"its last {unread:,} entries, which are not read yet"
        )
        return unread

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
        self.first = None if read.first_id is None or read.removed is None else (*read.first_id, read.removed)
        return after

    def at_end(self, read: Read) -> None:
        """The position is the stream's end: all entries ever added are before it, read or removed from between."""
        if read.added is not None:
            self.passed = max(read.added, self.passed or 0)

    def _is_recreated(self, read: Read) -> bool:
        """True if the first entry cannot belong to the stream that was read.

        In the same stream, or an older copy of it, the first entry changes exactly when entries are removed.
        """
        if self.first is None or read.first_id is None or read.removed is None:
            return False
        *first, removed = self.first
        if read.removed == removed:
            return read.first_id != tuple(first)
        return read.removed < removed and read.first_id > tuple(first)

    def _count_losses(self, read: Read) -> None:
        if read.removed is None:
            return
        if self._is_new:  # entries removed before the very first read are not a loss
            self._is_new, self.passed = False, read.removed
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


class _OwnStream(StreamSource):
    """A stream with a store of its own."""

    def __init__(self, url: str, key: str, position: SourcePosition, opening: Opening) -> None:
        self._store = Store.open(url)
        super().__init__(key, self._store.event_stream(key), position, opening.on_note, once=opening.once)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _openers(name: str, opening: Opening) -> Iterator[Opener]:
    url, _, part = name.partition("#")
    keys = ModelKeys(opening.spec.model.name)
    known = {"impressions": keys.impressions, "clicks": keys.clicks}

    # A stream of which nothing was read yet counts by the clock that the other one has counted by: by one that was set
    # ahead meanwhile, its events would wait for hours until the other's have come as far.
    others = [each for each in opening.positions if each.get("source") in known.values()]
    clock = {
        part: each[part] for each in others if "clock_s" in each for part in ("boot", "clock_us", "clock_s")
    }

    def opened(position: SourcePosition, key: str) -> Source:
        position = position or clock
        if url != STORE:
            return _OwnStream(url, key, position, opening)
        if opening.store is None:
            raise InputError(
                "the source `store` is the store that the model is published to, and there is none"
            )
        stream = opening.store.event_stream(key)
        return StreamSource(key, stream, position, opening.on_note, once=opening.once)

    for key in [known.get(part, part)] if part else known.values():
        yield Opener(key, partial(opened, key=key))


def _known_as(name: str) -> str:
    _, hash, part = name.partition("#")
    return f"{STORE}{hash}{part}"


STORE = "store"
"""The name of the streams in the store that the model is published to."""
STORES = (*(f"{scheme}://" for scheme in SCHEMES), EMBEDDED)
STREAMS = SourceKind(
    "redis://HOST:PORT, unix://SOCKET, cluster://HOST:PORT, sentinel://HOST:PORT/MASTER, embedded:DIR, each with "
    "#impressions, #clicks or #KEY or without, store",
    lambda name: name.partition("#")[0] == STORE or name.startswith(STORES),
    _openers,
    _known_as,
)
