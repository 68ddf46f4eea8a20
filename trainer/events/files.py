"""Files of JSON lines as a source: one file with those rotated out of it, a folder, or a glob."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from typing import Any, Protocol, TypeVar

import numpy as np

from model_store.errors import InputError, counted
from trainer.events.events import (
    BOM,
    NEVER_US,
    READ_BYTES,
    Int64s,
    Lag,
    Place,
    Stretch,
    is_blank,
    whole_lines,
)
from trainer.logs.file_listing import Listing
from trainer.logs.file_tracker import Census
from trainer.logs.open_files import Opened, Record, moved_on, path_of
from trainer.logs.streams import MAX_ROW_BYTES


@dataclass(frozen=True)
class _Lines:
    """Some lines of one file; stretch is None where all of them are blank."""

    stretch: Stretch | None
    size: int
    lines: int


class FileSource:
    """Reads lines on from a place; see Source for the methods.

    Marks: which of the place's files, the offset and the line that come next, the event's own line. Events of files
    have no time of arrival: their own times count. A file of events is taken up to its last line end; with `once`, and
    of compressed files, what stands behind that is a line too.
    """

    def __init__(
        self, name: str, place: Place, on_note: Callable[[str], None], *, once: bool = False
    ) -> None:
        self.name = name
        self._chain = FileChain(name, place, on_note, once=once)
        self.start = self._chain.start

    @property
    def lost(self) -> int:
        """Events that were gone before they were read, about: only the bytes of what is gone are known."""
        return self._chain.lost

    def read(self) -> Stretch | None:
        """The next lines of one file, about READ_BYTES. Raises InputError for a line that never ends."""
        while True:
            found = self._chain.next(self._take)
            if found is None or found.stretch is not None:
                return None if found is None else found.stretch

    def frontier_us(self) -> int:
        """0, since files have no clock; NEVER_US once all was read and nothing is waited for."""
        return NEVER_US if self._chain.ended else 0

    def place(self, stretch: Stretch, count: int) -> Place:
        """The place behind `count` lines of the stretch."""
        if count == 0:
            return stretch.before
        number, offset, line, _ = stretch.marks[count - 1].tolist()
        return self._chain.place_behind(stretch.before, number, offset, line)

    def where(self, stretch: Stretch, number: int) -> str:
        """`PATH:LINE`, by the name that the file had when it was read."""
        file, _, _, line = stretch.marks[number].tolist()
        return f"{path_of(stretch.before['files'][file])}:{line}"

    def lag(self) -> Lag:
        """Unread bytes; how old they are is not known."""
        return self._chain.lag()

    def holds(self) -> str:
        """Whether there is such a file; see Source."""
        return held_in(self.name)

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._chain.close()

    def _take(self, record: Record, opened: Opened, window: bytes, is_all: bool) -> _Lines | None:
        open_end = is_all and not window.endswith(b"\n") and bool(window)
        data, starts = whole_lines(window + b"\n" if open_end else window)
        if not data:
            return None
        count = starts.size - 1
        # The line end that stands for the end of the file is not in it.
        size = len(data) - open_end
        ends = np.minimum(starts[1:], size) + record.offset
        marks = np.empty((count, 4), np.int64)
        marks[:, 0] = self._chain.number(record)
        marks[:, 1] = ends
        marks[:, 3] = record.line + np.arange(count)
        marks[:, 2] = marks[:, 3] + 1
        marks[-1, 2] -= open_end
        stretch = self._stretch(data, starts, marks, is_first=record.offset == 0)
        return _Lines(stretch, size, count - open_end)

    def _stretch(self, data: bytes, starts: Int64s, marks: Int64s, is_first: bool) -> Stretch | None:
        if is_first and data.startswith(BOM):
            data, starts = data[len(BOM) :], np.maximum(starts - len(BOM), 0)
        blank = is_blank(data, starts)
        if blank.any():
            kept = np.flatnonzero(~blank)
            data = b"".join([data[starts[line] : starts[line + 1]] for line in kept.tolist()])
            lengths = np.diff(starts)[kept]
            starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            marks = marks[kept]
        return Stretch(data, starts, None, marks, self._chain.place()) if len(data) else None


# --- The files of one name as one sequence of bytes with places in it. What is taken from the bytes is known
# elsewhere ---


class Taken(Protocol):
    """What was taken from a window: `size` bytes of it, in which `lines` lines ended."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def lines(self) -> int:
        """Line ends."""


_TRIES = 10

T = TypeVar("T", bound=Taken)


def held_in(name: str) -> str:
    """What lies under the name of a file, folder or glob now, in words."""
    paths = [name] if os.path.exists(name) else glob(name, recursive=True)
    files = [os.path.join(path, each) for path in paths if os.path.isdir(path) for each in os.listdir(path)]
    files = [path for path in (*paths, *files) if os.path.isfile(path)]
    if not files:
        return f"there is no file {name}"
    size = sum(os.path.getsize(path) for path in files)
    what = f"the file {name} has" if files == [name] else f"{counted(len(files), 'file')} of {name} have"
    return f"{what} {counted(size, 'byte')}, all whole lines of them read"


class _Moved(Exception):
    """A file is not where or what it was: look again."""


class FileChain:
    """Reads files in order, each as far as it goes, and looks after all of them for more. One thread only.

    A place is {"source", "files": a list of Record.as_json(), "lost"}.
    """

    def __init__(
        self, name: str, place: Place, on_note: Callable[[str], None], *, once: bool, least_lines: int = 1
    ) -> None:
        self.name = name
        self.ended = False
        self._on_note = on_note
        self._once = once
        self._lost = int(place.get("lost", 0))
        records = [Record.from_json(each) for each in place.get("files", ())]
        listing = Listing(name, [each.path for each in records])
        self._census = Census(listing, records, on_note, once=once, least_lines=least_lines)
        self._current: Record | None = None
        self._waits = False
        self.start = self.place()

    @property
    def lost(self) -> int:
        """Events that were gone before they were read, about."""
        return self._lost + self._census.lost

    def place(self) -> Place:
        """Where reading goes on."""
        return {
            "source": self.name,
            "files": [each.as_json() for each in self._census.records],
            "lost": self.lost,
        }

    def place_behind(self, before: Place, number: int, offset: int, line: int) -> Place:
        """The place once the file of this number is read up to an offset, where a line begins."""
        files = list(before["files"])
        files[number] = moved_on(files[number], offset, line)
        return {**before, "files": files}

    def first(self) -> tuple[Record, Opened] | None:
        """The first file there is, opened; None while there is none with anything in it."""
        self._census.look()
        for record in self._census.in_order():
            opened = self._census.open(record)
            if opened is not None:
                return record, opened
        return None

    def number(self, record: Record) -> int:
        """Which of the place's files a record is."""
        return self._census.records.index(record)

    def next(self, take: Callable[[Record, Opened, bytes, bool], T | None]) -> T | None:
        """What `take(record, opened, window, is_all)` finds first; None if there is nothing whole anywhere now.

        The window begins at the record's offset; is_all says that nothing will follow it. `take` is to see the place
        as it is before; the record moves on once it has returned.
        """
        if self.ended:
            return None
        with suppress(_Moved):
            if self._current is not None and (found := self._from(self._current, take)):
                return found
        for attempt in range(_TRIES):
            with suppress(_Moved):
                was_seen = self._census.look(at_once=attempt > 0)
                found = self._first_found(take)
                if found is None and was_seen:
                    self._end()
                return found
        return None

    def _first_found(self, take: Callable[[Record, Opened, bytes, bool], T | None]) -> T | None:
        records = self._census.in_order()
        self._say_if_waiting(records)
        for record in records:
            if record.has_unread and (found := self._from(record, take)):
                return found
        return None

    def lag(self) -> Lag:
        """Bytes on disk that are not read; of compressed files, the whole file until it is read to its end."""
        unread = 0
        self._census.look()
        for each in self._census.in_order():
            if each.is_packed:
                unread += each.size if each.has_unread else 0
            else:
                unread += max(0, each.size - each.offset)
        return Lag(bytes=unread) if unread else Lag(events=0, bytes=0, seconds=0.0)

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._census.close()

    def _from(self, record: Record, take: Callable[[Record, Opened, bytes, bool], T | None]) -> T | None:
        try:
            opened = self._census.open(record)
            if opened is None and record.entry is not None and not self._census.files.is_faulty(record.entry):
                raise _Moved  # it is to be read before those behind it
            return None if opened is None else self._take(record, opened, take)
        except InputError as error:
            if record.entry is None or not record.is_packed:
                raise
            self._census.files.report(record.entry, error)
            record.close()
            record.done = record.size
            return None

    def _take(
        self, record: Record, opened: Opened, take: Callable[[Record, Opened, bytes, bool], T | None]
    ) -> T | None:
        count = READ_BYTES
        while True:
            window = opened.read(record.offset, count)
            if not record.begins_as_before(opened):
                record.checked = None
                raise _Moved
            at_end = len(window) < count
            is_all = at_end and (opened.is_packed or self._once) and opened.failure is None
            found = take(record, opened, window, is_all)
            if found is not None:
                record.offset += found.size
                record.line += found.lines
                self._current = record
                return found
            if opened.failure is not None:
                raise opened.failure
            if at_end:
                self._note_end(record, len(window))
                return None
            if count >= MAX_ROW_BYTES:
                raise InputError(
                    f"{record.path}:{record.line}: a line longer than {MAX_ROW_BYTES >> 20} MiB begins here; "
                    "is this a log with one event a line?"
                )
            count *= 2

    def _note_end(self, record: Record, rest: int) -> None:
        if record.is_packed:
            record.done = record.size
        else:
            record.stuck = record.offset + rest

    def _say_if_waiting(self, records: list[Any]) -> None:
        if not records and not self._waits and not self._once:
            self._on_note(f"{self.name}: there is no such file yet, or it is empty; waiting for it")
        self._waits = not records

    def _end(self) -> None:
        if not self._once:
            return
        for each in self._census.records:
            if each.entry is None:
                self._census.give_up(each)
        self.ended = True
