"""Files of JSON lines as a source: one file with those rotated out of it, a folder, or a glob."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainer.events.events import NEVER_US, Int64s, Lag, Place, Stretch
from trainer.events.sources.chain import FileChain, held_in
from trainer.events.sources.lines import BOM, is_blank, whole_lines
from trainer.events.sources.opened import Opened
from trainer.events.sources.records import Record, path_of


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
