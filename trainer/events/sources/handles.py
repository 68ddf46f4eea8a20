"""Files that are held open, the last few; and what is wrong with those that cannot be read, said once."""

from __future__ import annotations

from collections.abc import Callable

from model_store.errors import InputError
from trainer.events.sources.listing import Entry
from trainer.events.sources.opened import Opened, open_file
from trainer.events.sources.records import Record

KEPT_OPEN = 16
"""Files that stay open, so that what is read, or next, can be read on when it is deleted."""


class Handles:
    """Opens files for records. One thread only."""

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._held: list[Record] = []
        self._faults: dict[int, Entry] = {}

    def open(self, entry: Entry) -> Opened | None:
        """The file, if it is still there; None, and said once, if it cannot be opened."""
        try:
            return open_file(entry.path, entry.inode)
        except InputError as error:
            self.report(entry, error)
            return None

    def hold(self, record: Record, opened: Opened) -> None:
        """Keep a record's file open until enough others have been opened."""
        record.opened, record.is_packed = opened, opened.is_packed
        self._held = [each for each in self._held if each is not record] + [record]
        for each in self._held[:-KEPT_OPEN]:
            each.close()
        del self._held[:-KEPT_OPEN]

    def head(self, opened: Opened, entry: Entry) -> bytes:
        """The first bytes; none, and said once, of a file of a kind that is not read."""
        try:
            return opened.head()
        except InputError as error:
            self.report(entry, error)
            return b""

    def is_faulty(self, entry: Entry) -> bool:
        """True if it was said that the file, as it is now, cannot be read."""
        return self._faults.get(entry.inode) == entry

    def report(self, entry: Entry, error: InputError) -> None:
        """Say what is wrong with a file; once as long as it stays as it is."""
        if not self.is_faulty(entry):
            self._faults[entry.inode] = entry
            self._on_note(f"{error}; passed over until it changes")
