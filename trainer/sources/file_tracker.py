"""Tracks the files of one name through renames, copies, compression and truncation: which record each belongs to."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from trainer.formats.batch import HEAD_BYTES
from trainer.sources.open_files import (
    Entry,
    Handles,
    Listing,
    Opened,
    PlainFile,
    Record,
    begin_alike,
    first_lines,
    whole_part,
)

GONE_S = 30.0
"""How long a file that is gone may take to reappear under another name before its unread rest is given up."""
_KEPT = 1000  # records kept of files that are gone, in case they come back
_TRIES = 10
RESTS = 20.0
"""The pause between two looks at the files, as a multiple of the time that one takes."""


class FileTracker:
    """The files of one name, and the records of all files ever read. For one thread.

    least_lines: the whole lines by which a file is recognized; 2 where the first is a header.
    """

    def __init__(
        self,
        listing: Listing,
        records: Sequence[Record],
        on_note: Callable[[str], None],
        *,
        once: bool,
        least_lines: int,
    ) -> None:
        self.records = list(records)
        self.files = Handles(on_note)
        self.lost = 0
        self._listing = listing
        self._on_note = on_note
        self._once = once
        self._least_lines = least_lines
        self._waiting: dict[int, Entry] = {}
        self._by_first: defaultdict[str, list[Record]] = defaultdict(list)
        self._order: list[Record] = []
        self._cut: list[tuple[Record, Entry]] = []
        self._rest_until_s = 0.0

    def look(self, at_once: bool = False) -> bool:
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
        self._order = self._ordered(entries)
        self._note_truncated()
        now_s = time.monotonic()
        self._expire(now_s)
        took_s = now_s - began_s
        self._rest_until_s = now_s + RESTS * took_s
        return True

    def in_order(self) -> list[Record]:
        """The files that can be read, as of the last successful look."""
        for each in self._order:
            if each.entry is None and isinstance(each.opened, PlainFile):
                each.size = each.opened.size
        return self._order

    def open(self, record: Record) -> Opened | None:
        """The record's file, opened if needed; None if it is gone or has other content."""
        if record.opened is None and record.entry is not None:
            opened = self.files.open(record.entry)
            if opened is not None:
                self.files.hold(record, opened)
                if not self._is_found(record, opened, record.entry):
                    record.close()
                    record.checked = None
        return record.opened

    def close(self) -> None:
        """Close all files. May be called twice."""
        for each in self.records:
            each.close()

    def _match(self, entries: list[Entry]) -> bool:
        """Assign each file its record; True if one is new, replaced, or changed meanwhile."""
        by_inode = self._by_inode()
        was_there = {each for each in self.records if each.entry is not None}
        for each in self.records:
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
        for record in self.records if unknown else ():
            self._by_first[record.first].append(record)
        return sum(self._meet(entry) for entry in unknown) > 0  # all of them, not up to the first

    def _ordered(self, entries: Sequence[Entry]) -> list[Record]:
        """First the files whose name is gone but that are still open, then the existing ones."""
        gone = [each for each in self._order if each.entry is None and each.opened is not None]
        by_inode = self._by_inode()
        return gone + [by_inode[each.inode] for each in entries if each.inode in by_inode]

    def _by_inode(self) -> dict[int, Record]:
        return {each.inode: each for each in self.records}

    def _note_truncated(self) -> None:
        """Note files that were truncated, if no copy of the content read exists."""
        for record, entry in self._cut:
            if record.entry is None:
                self._on_note(
                    f"{entry.path} was cut back to {entry.size:,} bytes, or overwritten, after {record.offset:,} had "
                    "been read: what is in it now is read from its start"
                )
        self._cut.clear()

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
        was_cut = not record.is_packed and entry.size < record.offset and self._is_plain(record, entry)
        if not was_cut and self._has_head_of(record, entry):
            return True
        if record.path == entry.path and record.offset:
            self._cut.append((record, entry))
        record.close()
        record.inode = 0
        return False

    def _is_plain(self, record: Record, entry: Entry) -> bool:
        if record.is_packed is None:
            opened = record.opened or self.files.open(entry)
            if opened is None:
                return False
            self.files.hold(record, opened)
        return not record.is_packed

    def _has_head_of(self, record: Record, entry: Entry) -> bool:
        opened = record.opened or self.files.open(entry)
        if opened is None:
            return False
        self.files.hold(record, opened)
        return self._is_found(record, opened, entry)

    def _is_found(self, record: Record, opened: Opened, entry: Entry) -> bool:
        """True if an opened file has the record's content; more of its start is remembered then."""
        # Read once: what is there a moment later may be of another file.
        head = self.files.head(opened, entry)
        if not record.is_in(head):
            return False
        whole = head if opened.is_packed else whole_part(head, self._least_lines)
        record.look_at(head, whole, first_lines(head, self._least_lines))
        return True

    def _meet(self, entry: Entry) -> bool:
        """Assign a file with an unknown inode its record; False if it is empty so far, or a copy."""
        if not entry.size or self._waiting.get(entry.inode) == entry:
            return False
        opened = self.files.open(entry)
        if opened is None:
            return not self.files.is_faulty(entry)
        head = self.files.head(opened, entry)
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
        self.files.hold(record, opened)
        record.look_at(head, whole, first_lines(head, self._least_lines))
        self._update(record, entry)
        return True

    def _record_of(self, entry: Entry, head: bytes, whole: bytes) -> Record | None:
        first = first_lines(head, self._least_lines)
        perhaps = [*self._by_first[first], *(self._by_first[""] if first else self.records)]
        alike = begin_alike(perhaps, head)
        if any(each.entry is not None for each in alike):
            return None
        if alike:
            return alike[-1]
        if any(self._may_become(each, head) for each in self._by_first[first] if first):
            return None
        record = Record.new(entry, whole, first)
        self.records.append(record)
        self._by_first[record.first].append(record)
        return record

    def _may_become(self, record: Record, head: bytes) -> bool:
        """True if a file that starts with `head` may be an unfinished copy of the record's file."""
        if len(head) >= record.head_bytes:
            return False
        opened = self.open(record)
        if opened is None:
            return time.monotonic() - (record.gone_since_s or time.monotonic()) < GONE_S
        return opened.head().startswith(head)

    def _expire(self, now_s: float) -> None:
        """Give up files that have been gone for too long, and forget the oldest records."""
        gone = [each for each in self.records if each.entry is None]
        for each in gone:
            each.gone_since_s = each.gone_since_s or now_s
            is_read = each.opened is None or not each.has_unread
            if is_read and not each.is_given_up and now_s - each.gone_since_s >= GONE_S:
                self.give_up(each)
                self._waiting.clear()
        for each in gone[:-_KEPT]:
            self.records.remove(each)

    def give_up(self, record: Record) -> None:
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
