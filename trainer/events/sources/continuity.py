"""Whether a stream is still the one that was read before, and what of it was deleted unread. Reads nothing itself.

A store can lose a stream (FLUSHALL, DEL, no persistence), or its end (a failover to a replica that was behind). Both
are noticed by what a stream tells of itself: its last id, its first entry, and how many entries it has had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model_store.event_streams import EntryId, Read

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
