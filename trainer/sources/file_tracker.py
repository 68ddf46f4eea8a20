"""Growing and rotated files as one sequence of bytes: which record each file belongs to, and how far each was read.

In: the name of a file with its rotated predecessors, of a folder, or a glob. Files are matched to the records of all
files ever read through renames, copies, compression and truncation; each is read to its end before the next.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from typing import Generic, TypeVar

from model_store.errors import InputError, counted
from trainer.events.events import READ_BYTES, Lag, SourcePosition
from trainer.formats.batch import HEAD_BYTES, begin_alike, sha256_of
from trainer.formats.streams import MAX_ROW_BYTES
from trainer.sources.open_files import (
    KEPT_OPEN,
    Entry,
    Listing,
    Opened,
    PlainFile,
    Record,
    first_lines,
    moved_on,
    open_file,
    whole_part,
)

GONE_S = 30.0
"""How long a file that is gone may take to reappear under another name before its unread rest is given up."""
_KEPT = 1000  # records kept of files that are gone, in case they come back
_TRIES = 10
RESTS = 20.0
"""The pause between two looks at the files, as a multiple of the time that one takes."""


T = TypeVar("T")


@dataclass(frozen=True)
class Taken(Generic[T]):
    """What was taken from a window: `size` bytes with `lines` line ends; value: what is in them, None for nothing."""

    value: T | None
    size: int
    lines: int


class _Moved(Exception):
    """A file has moved or changed: look again."""


class FileChain(ABC, Generic[T]):
    """Reads files in order, each to its end, then checks all of them for more. For one thread.

    A position is {"source", "files": a list of Record.as_json(), "lost"}. least_lines: the whole lines by which a file
    is recognized; 2 where the first is a header. once: the files are read to their ends as they are now, then `ended`.
    A subclass says what is taken from a window of bytes (`_taken`), and reads on by `_next`.
    """

    def __init__(
        self,
        name: str,
        position: SourcePosition,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
        least_lines: int = 1,
    ) -> None:
        self.name = name
        self.ended = False
        self.lost = int(position.get("lost", 0))
        """Events lost before they were read, in all runs, estimated."""
        self._on_note = on_note
        self._once = once
        self._least_lines = least_lines
        self._records = [Record.from_json(each) for each in position.get("files", ())]
        self._listing = Listing(name, [each.path for each in self._records])
        self._current: Record | None = None
        self._has_waited = False
        self._waiting: dict[int, Entry] = {}
        self._by_first: defaultdict[str, list[Record]] = defaultdict(list)
        self._order: list[Record] = []
        self._cut: list[tuple[Record, Entry]] = []
        self._held: list[Record] = []  # the last few open
        self._faults: dict[int, Entry] = {}
        self._rest_until_s = 0.0
        self.start = self._here()

    def _here(self) -> SourcePosition:
        """The position where reading continues."""
        return {
            "source": self.name,
            "files": [each.as_json() for each in self._records],
            "lost": self.lost,
        }

    def _after(self, before: SourcePosition, number: int, offset: int, line: int) -> SourcePosition:
        """The position once the file of this number is read up to an offset, where a line starts."""
        files = list(before["files"])
        files[number] = moved_on(files[number], offset, line)
        return {**before, "files": files}

    def _first(self) -> tuple[Record, Opened] | None:
        """The first file, opened; None while there is none with content."""
        self._look()
        for record in self._in_order():
            opened = self._open(record)
            if opened is not None:
                return record, opened
        return None

    @abstractmethod
    def _taken(self, record: Record, opened: Opened, window: bytes, is_all: bool) -> Taken[T] | None:
        """What the window begins with; None if nothing in it is complete.

        The window starts at the record's offset; is_all: nothing will follow it. The record advances afterwards.
        """

    def _next(self) -> T | None:
        """The next value; None if no file has anything complete now. Raises InputError for a line that never ends."""
        while not self.ended and (found := self._next_taken()) is not None:
            if found.value is not None:
                return found.value
        return None

    def _next_taken(self) -> Taken[T] | None:
        with suppress(_Moved):
            if self._current is not None and (found := self._from(self._current)):
                return found
        for attempt in range(_TRIES):
            with suppress(_Moved):
                was_seen = self._look(at_once=attempt > 0)
                found = self._first_found()
                if found is None and was_seen and self._once:
                    for each in self._records:
                        if each.entry is None:
                            self._give_up(each)
                    self.ended = True
                return found
        return None

    def _first_found(self) -> Taken[T] | None:
        records = self._in_order()
        if not records and not self._has_waited and not self._once:
            self._on_note(f"{self.name}: there is no such file yet, or it is empty; waiting for it")
        self._has_waited = not records
        for record in records:
            if record.has_unread and (found := self._from(record)):
                return found
        return None

    def lag(self) -> Lag:
        """Unread bytes on disk, whose age is unknown; a compressed file counts whole until it is read to its end."""
        unread = 0
        self._look()
        for each in self._in_order():
            if each.is_packed:
                unread += each.size if each.has_unread else 0
            else:
                unread += max(0, each.size - each.offset)
        return Lag(bytes=unread) if unread else Lag(events=0, bytes=0, seconds=0.0)

    def _from(self, record: Record) -> Taken[T] | None:
        try:
            opened = self._open(record)
            if opened is None and record.entry is not None and not self._is_faulty(record.entry):
                raise _Moved  # it must be read before the later files
            return None if opened is None else self._from_opened(record, opened)
        except InputError as error:
            if record.entry is None or not record.is_packed:
                raise
            self._report(record.entry, error)
            record.close()
            record.done = record.size
            return None

    def _from_opened(self, record: Record, opened: Opened) -> Taken[T] | None:
        count = READ_BYTES
        while True:
            window = opened.read(record.offset, count)
            if not record.begins_as_before(opened):
                record.checked = None
                raise _Moved
            at_end = len(window) < count
            is_all = at_end and (opened.is_packed or self._once) and opened.failure is None
            found = self._taken(record, opened, window, is_all)
            if found is not None:
                record.offset += found.size
                record.line += found.lines
                self._current = record
                return found
            if opened.failure is not None:
                raise opened.failure
            if at_end:
                if record.is_packed:
                    record.done = record.size
                else:
                    record.stuck = record.offset + len(window)
                return None
            if count >= MAX_ROW_BYTES:
                raise InputError(
                    f"{record.path}:{record.line}: a line longer than {MAX_ROW_BYTES >> 20} MiB begins here; "
                    "is this a log with one event a line?"
                )
            count *= 2

    def _look(self, at_once: bool = False) -> bool:
        """Match the current files; False if they change too fast, or it is too soon to look again (but `at_once`)."""
        began_s = time.monotonic()
        if began_s < self._rest_until_s and not (self._once or at_once):
            return False
        # A file new in a listing may have come while an older one was renamed or copied past it; the older one is in
        # the next listing, and must be read first.
        for _ in range(_TRIES):
            entries = self._listing.entries()
            if entries is not None and not self._match(entries):
                break
        else:
            return False
        # First the files whose name is gone but that are still open.
        gone = [each for each in self._order if each.entry is None and each.opened is not None]
        by_inode = self._by_inode()
        self._order = gone + [by_inode[each.inode] for each in entries if each.inode in by_inode]
        for record, entry in self._cut:
            if record.entry is None:  # else a copy of what was read is there
                self._on_note(
                    f"{entry.path} was cut back to {entry.size:,} bytes, or overwritten, after {record.offset:,} had "
                    "been read: what is in it now is read from its start"
                )
        self._cut.clear()
        now_s = time.monotonic()
        self._expire(now_s)
        self._rest_until_s = now_s + RESTS * (now_s - began_s)
        return True

    def _in_order(self) -> list[Record]:
        """The files that can be read, as of the last successful look."""
        for each in self._order:
            if each.entry is None and isinstance(each.opened, PlainFile):
                each.size = each.opened.size
        return self._order

    def _open(self, record: Record) -> Opened | None:
        """The record's file, opened if needed; None if it is gone or has other content."""
        if record.opened is None and record.entry is not None:
            opened = self._held_open(record, record.entry)
            if opened is not None and not self._is_found(record, opened, record.entry):
                record.close()
                record.checked = None
        return record.opened

    def holds(self) -> str:
        """What the file, folder or glob holds now, in words; see Source."""
        name = self.name
        paths = [name] if os.path.exists(name) else glob(name, recursive=True)
        files = [
            os.path.join(path, each) for path in paths if os.path.isdir(path) for each in os.listdir(path)
        ]
        files = [path for path in (*paths, *files) if os.path.isfile(path)]
        if not files:
            return f"there is no file {name}"
        size = sum(os.path.getsize(path) for path in files)
        what = f"the file {name} has" if files == [name] else f"{counted(len(files), 'file')} of {name} have"
        return f"{what} {counted(size, 'byte')}, all whole lines of them read"

    def close(self) -> None:
        """Close all files. May be called twice."""
        for each in self._records:
            each.close()

    def _match(self, entries: list[Entry]) -> bool:
        """Assign each file its record; True if one is new, replaced, or changed meanwhile."""
        by_inode = self._by_inode()
        was_there = {each for each in self._records if each.entry is not None}
        for each in self._records:
            each.entry = None
        unknown = []
        for entry in entries:
            record = by_inode.get(entry.inode)
            if record is not None and self._is_still(record, entry):
                self._update(record, entry)
            else:
                unknown.append(entry)
        if any(each.entry is None for each in was_there):
            self._waiting.clear()
        self._by_first.clear()
        for record in self._records if unknown else ():
            self._by_first[record.first].append(record)
        return sum(self._meet(entry) for entry in unknown) > 0  # all of them, not up to the first

    def _by_inode(self) -> dict[int, Record]:
        return {each.inode: each for each in self._records}

    def _update(self, record: Record, entry: Entry) -> None:
        record.entry = record.checked = entry
        record.path, record.inode, record.size = entry.path, entry.inode, entry.size
        record.gone_since_s, record.is_given_up = None, False
        self.lost -= record.lost
        record.lost = 0

    def _is_still(self, record: Record, entry: Entry) -> bool:
        """True if the file with the record's inode still has the record's content; else the record is detached."""
        if record.checked == entry or record.done == entry.size:
            return True
        is_shorter = entry.size < record.offset
        opened = None if is_shorter and record.is_packed is False else self._held_open(record, entry)
        if (
            opened is not None
            and (opened.is_packed or not is_shorter)
            and self._is_found(record, opened, entry)
        ):
            return True
        if record.path == entry.path and record.offset:
            self._cut.append((record, entry))
        record.close()
        record.inode = 0
        return False

    def _is_found(self, record: Record, opened: Opened, entry: Entry) -> bool:
        """True if an opened file has the record's content; more of its start is remembered then."""
        # Read once: what is there a moment later may be of another file.
        head = self._head(opened, entry)
        if not begin_alike([record], head):
            return False
        whole = head if opened.is_packed else whole_part(head, self._least_lines)
        record.look_at(head, whole, first_lines(head, self._least_lines))
        return True

    def _meet(self, entry: Entry) -> bool:
        """Assign a file with an unknown inode its record; False if it is empty so far, or a copy."""
        if not entry.size or self._waiting.get(entry.inode) == entry:
            return False
        opened = self._open_entry(entry)
        if opened is None:
            return not self._is_faulty(entry)
        head = self._head(opened, entry)
        whole = whole_part(head, self._least_lines)
        if not whole and head and (opened.is_packed or self._once or len(head) >= HEAD_BYTES):
            whole = head
        record = self._record_of(entry, head, whole) if whole else None
        if record is None:
            self._waiting[entry.inode] = entry
            opened.close()
            return False
        record.close()
        record.done = record.stuck = -1
        self._hold(record, opened)
        record.look_at(head, whole, first_lines(head, self._least_lines))
        self._update(record, entry)
        return True

    def _record_of(self, entry: Entry, head: bytes, whole: bytes) -> Record | None:
        first = first_lines(head, self._least_lines)
        perhaps = [*self._by_first[first], *(self._by_first[""] if first else self._records)]
        alike = begin_alike(perhaps, head)
        if any(each.entry is not None for each in alike):
            return None
        if alike:
            return alike[-1]
        if any(self._may_become(each, head) for each in self._by_first[first] if first):
            return None
        record = Record(entry.path, entry.inode, len(whole), sha256_of(whole), first, size=entry.size)
        self._records.append(record)
        self._by_first[record.first].append(record)
        return record

    def _may_become(self, record: Record, head: bytes) -> bool:
        """True if a file that starts with `head` may be an unfinished copy of the record's file."""
        if len(head) >= record.head_bytes:
            return False
        opened = self._open(record)
        if opened is None:
            return time.monotonic() - (record.gone_since_s or time.monotonic()) < GONE_S
        return opened.head().startswith(head)

    def _expire(self, now_s: float) -> None:
        """Give up files that have been gone for too long, and forget the oldest records."""
        gone = [each for each in self._records if each.entry is None]
        for each in gone:
            each.gone_since_s = each.gone_since_s or now_s
            is_read = each.opened is None or not each.has_unread
            if is_read and not each.is_given_up and now_s - each.gone_since_s >= GONE_S:
                self._give_up(each)
                self._waiting.clear()
        for each in gone[:-_KEPT]:
            self._records.remove(each)

    def _give_up(self, record: Record) -> None:
        """Close a file that is gone; note and count what was not read of it."""
        record.close()
        record.is_given_up = True
        rest = 0 if record.is_packed else record.size - record.offset
        if rest <= 0:
            return
        record.size = record.offset  # counted once
        mean = record.offset / (record.line - 1) if record.line > 1 else rest
        record.lost = max(1, round(rest / mean))
        self.lost += record.lost
        self._on_note(
            f"{record.path} is gone or was cut back, and {rest:,} bytes of it, about {record.lost:,} events, were not "
            "read; keep more rotated files, or give the trainer more of the machine"
        )

    def _open_entry(self, entry: Entry) -> Opened | None:
        """The file if it still exists; None, reported once, if it cannot be opened."""
        try:
            return open_file(entry.path, entry.inode)
        except InputError as error:
            self._report(entry, error)
            return None

    def _held_open(self, record: Record, entry: Entry) -> Opened | None:
        opened = record.opened or self._open_entry(entry)
        if opened is not None:
            self._hold(record, opened)
        return opened

    def _hold(self, record: Record, opened: Opened) -> None:
        """Keep a record's file open until enough others have been opened."""
        record.opened, record.is_packed = opened, opened.is_packed
        self._held = [each for each in self._held if each is not record] + [record]
        for each in self._held[:-KEPT_OPEN]:
            each.close()
        del self._held[:-KEPT_OPEN]

    def _head(self, opened: Opened, entry: Entry) -> bytes:
        """The first bytes; empty, reported once, for an unsupported kind of file."""
        try:
            return opened.head()
        except InputError as error:
            self._report(entry, error)
            return b""

    def _is_faulty(self, entry: Entry) -> bool:
        """True if the file in its current state was reported."""
        return self._faults.get(entry.inode) == entry

    def _report(self, entry: Entry, error: InputError) -> None:
        """Report a file, once until it changes."""
        if not self._is_faulty(entry):
            self._faults[entry.inode] = entry
            self._on_note(f"{error}; skipped until it changes")
