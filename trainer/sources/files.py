"""Growing files as a source: one file with its rotated predecessors, a folder, or a glob.

FileSource reads events from JSON lines. FileChain, which `rows` uses too, treats the files of one name as one sequence
of bytes with positions.
"""

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
    Chunk,
    Int64s,
    Lag,
    SourcePosition,
    is_blank,
    whole_lines,
)
from trainer.formats.streams import MAX_ROW_BYTES
from trainer.sources.file_tracker import FileTracker
from trainer.sources.open_files import Listing, Opened, Record, moved_on, path_of


@dataclass(frozen=True)
class _Lines:
    """Some lines of one file; chunk is None if all are blank."""

    chunk: Chunk | None
    size: int
    lines: int


class FileSource:
    """Reads lines from a position on; see Source for the methods.

    Marks: the number of the file in the position, the next offset and line, the event's own line. Events of files have
    no time of arrival: their own times count. A file is read up to its last line end; with `once`, and of compressed
    files, bytes after that are a line too.
    """

    def __init__(
        self, name: str, position: SourcePosition, on_note: Callable[[str], None], *, once: bool = False
    ) -> None:
        self.name = name
        self._chain = FileChain(name, position, on_note, once=once)
        self.start = self._chain.start

    @property
    def lost(self) -> int:
        """Events lost before they were read, estimated from bytes."""
        return self._chain.lost

    def read(self) -> Chunk | None:
        """The next lines of one file, about READ_BYTES. Raises InputError for a line that never ends."""
        while True:
            found = self._chain.next(self._take)
            if found is None or found.chunk is not None:
                return None if found is None else found.chunk

    def watermark_us(self) -> int:
        """0, since files have no clock; NEVER_US once all is read with `once`."""
        return NEVER_US if self._chain.ended else 0

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        """The position after `count` lines of the chunk."""
        if count == 0:
            return chunk.before
        number, offset, line, _ = chunk.marks[count - 1].tolist()
        return self._chain.position_after(chunk.before, number, offset, line)

    def where(self, chunk: Chunk, number: int) -> str:
        """`PATH:LINE`, with the file's name when it was read."""
        file, _, _, line = chunk.marks[number].tolist()
        return f"{path_of(chunk.before['files'][file])}:{line}"

    def lag(self) -> Lag:
        """Unread bytes; their age is unknown."""
        return self._chain.lag()

    def holds(self) -> str:
        """Whether the file exists; see Source."""
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
        # An added line end is not in the file.
        size = len(data) - open_end
        ends = np.minimum(starts[1:], size) + record.offset
        marks = np.empty((count, 4), np.int64)
        marks[:, 0] = self._chain.number(record)
        marks[:, 1] = ends
        marks[:, 3] = record.line + np.arange(count)
        marks[:, 2] = marks[:, 3] + 1
        marks[-1, 2] -= open_end
        chunk = chunk_of(data, starts, marks, self._chain.position(), is_first=record.offset == 0)
        return _Lines(chunk, size, count - open_end)


def chunk_of(
    data: bytes, starts: Int64s, marks: Int64s, before: SourcePosition, *, is_first: bool
) -> Chunk | None:
    """The lines of a file without blank ones, and without the byte order mark of its first; None if all are blank."""
    if is_first and data.startswith(BOM):
        data, starts = data[len(BOM) :], np.maximum(starts - len(BOM), 0)
    blank = is_blank(data, starts)
    if blank.any():
        kept = np.flatnonzero(~blank)
        data = b"".join([data[starts[line] : starts[line + 1]] for line in kept.tolist()])
        lengths = np.diff(starts)[kept]
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        marks = marks[kept]
    return Chunk(data, starts, None, marks, before) if len(data) else None


class Taken(Protocol):
    """What was taken from a window: `size` bytes with `lines` line ends."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def lines(self) -> int:
        """Line ends."""


_TRIES = 10

T = TypeVar("T", bound=Taken)


def held_in(name: str) -> str:
    """What a file, folder or glob holds now, in words."""
    paths = [name] if os.path.exists(name) else glob(name, recursive=True)
    files = [os.path.join(path, each) for path in paths if os.path.isdir(path) for each in os.listdir(path)]
    files = [path for path in (*paths, *files) if os.path.isfile(path)]
    if not files:
        return f"there is no file {name}"
    size = sum(os.path.getsize(path) for path in files)
    what = f"the file {name} has" if files == [name] else f"{counted(len(files), 'file')} of {name} have"
    return f"{what} {counted(size, 'byte')}, all whole lines of them read"


class _Moved(Exception):
    """A file has moved or changed: look again."""


class FileChain:
    """Reads files in order, each to its end, then checks all of them for more. For one thread.

    A position is {"source", "files": a list of Record.as_json(), "lost"}.
    """

    def __init__(
        self,
        name: str,
        position: SourcePosition,
        on_note: Callable[[str], None],
        *,
        once: bool,
        least_lines: int = 1,
    ) -> None:
        self.name = name
        self.ended = False
        self._on_note = on_note
        self._once = once
        self._lost = int(position.get("lost", 0))
        records = [Record.from_json(each) for each in position.get("files", ())]
        listing = Listing(name, [each.path for each in records])
        self._tracker = FileTracker(listing, records, on_note, once=once, least_lines=least_lines)
        self._current: Record | None = None
        self._waits = False
        self.start = self.position()

    @property
    def lost(self) -> int:
        """Events lost before they were read, estimated."""
        return self._lost + self._tracker.lost

    def position(self) -> SourcePosition:
        """Where reading continues."""
        return {
            "source": self.name,
            "files": [each.as_json() for each in self._tracker.records],
            "lost": self.lost,
        }

    def position_after(self, before: SourcePosition, number: int, offset: int, line: int) -> SourcePosition:
        """The position once the file of this number is read up to an offset, where a line starts."""
        files = list(before["files"])
        files[number] = moved_on(files[number], offset, line)
        return {**before, "files": files}

    def first(self) -> tuple[Record, Opened] | None:
        """The first file, opened; None while there is none with content."""
        self._tracker.look()
        for record in self._tracker.in_order():
            opened = self._tracker.open(record)
            if opened is not None:
                return record, opened
        return None

    def number(self, record: Record) -> int:
        """The number of a record among the position's files."""
        return self._tracker.records.index(record)

    def next(self, take: Callable[[Record, Opened, bytes, bool], T | None]) -> T | None:
        """The first result of `take(record, opened, window, is_all)`; None if no file has anything complete now.

        The window starts at the record's offset; is_all: nothing will follow it. `take` sees the position before the
        window; the record advances once it has returned.
        """
        if self.ended:
            return None
        with suppress(_Moved):
            if self._current is not None and (found := self._from(self._current, take)):
                return found
        for attempt in range(_TRIES):
            with suppress(_Moved):
                was_seen = self._tracker.look(at_once=attempt > 0)
                found = self._first_found(take)
                if found is None and was_seen:
                    self._end()
                return found
        return None

    def _first_found(self, take: Callable[[Record, Opened, bytes, bool], T | None]) -> T | None:
        records = self._tracker.in_order()
        self._note_waiting(records)
        for record in records:
            if record.has_unread and (found := self._from(record, take)):
                return found
        return None

    def lag(self) -> Lag:
        """Unread bytes on disk; a compressed file counts whole until it is read to its end."""
        unread = 0
        self._tracker.look()
        for each in self._tracker.in_order():
            if each.is_packed:
                unread += each.size if each.has_unread else 0
            else:
                unread += max(0, each.size - each.offset)
        return Lag(bytes=unread) if unread else Lag(events=0, bytes=0, seconds=0.0)

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._tracker.close()

    def _from(self, record: Record, take: Callable[[Record, Opened, bytes, bool], T | None]) -> T | None:
        try:
            opened = self._tracker.open(record)
            if (
                opened is None
                and record.entry is not None
                and not self._tracker.files.is_faulty(record.entry)
            ):
                raise _Moved  # it must be read before the later files
            return None if opened is None else self._take(record, opened, take)
        except InputError as error:
            if record.entry is None or not record.is_packed:
                raise
            self._tracker.files.report(record.entry, error)
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

    def _note_waiting(self, records: list[Any]) -> None:
        if not records and not self._waits and not self._once:
            self._on_note(f"{self.name}: there is no such file yet, or it is empty; waiting for it")
        self._waits = not records

    def _end(self) -> None:
        if not self._once:
            return
        for each in self._tracker.records:
            if each.entry is None:
                self._tracker.give_up(each)
        self.ended = True
