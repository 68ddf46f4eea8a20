"""Event files as a log that is read once, from its beginning to its end: which files hold events, and their lines.

`trainer.sources.files` follows files that grow and rotate; here a name stands for exactly the files that are there now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from model_store.errors import InputError
from trainer.events.columns import ITEMS
from trainer.events.events import BOM, NEVER_US, READ_BYTES, Chunk, Lag, SourcePosition, whole_lines
from trainer.formats.jsonl import BadRow, load
from trainer.formats.reader import EVENTS, check_format, expand, format_by_name
from trainer.formats.streams import MAX_ROW_BYTES, ByteStream, is_pipe
from trainer.sources.files import chunk_of

LINE_BITS = 40
LINES = (1 << LINE_BITS) - 1
"""A mark is a file's number, and below it in so many bits the line."""
_IMPRESSIONS, _FEEDBACK, _OTHER = "impressions", "feedback", "other"


def holds_events(inputs: Sequence[str], format: str | None = None, label: str | None = None) -> bool:
    """True if the inputs are event files: by `format`, else by their first lines. Pipes are events only by `format`.

    Impressions are JSON lines with a list of objects `items` and no member `label`; beside them feedback with `item`
    and `request_id` may stand. Raises InputError for impressions beside files of something else.
    """
    if check_format(format) not in (None, "jsonl"):
        return format == EVENTS
    given = expand(inputs)
    files = [name for name in given if not is_pipe(name)]  # the first lines of a pipe would be lost
    if not files or format_by_name(files[0]) not in (None, "jsonl"):
        return False
    kinds = {name: _kind_of(name, label) for name in files}
    if _IMPRESSIONS not in kinds.values():
        return False
    if _OTHER in kinds.values() or len(files) < len(given):
        pipe = next(filter(is_pipe, given), None)
        other = next((name for name, kind in kinds.items() if kind == _OTHER), pipe)
        shown = next(name for name, kind in kinds.items() if kind == _IMPRESSIONS)
        raise InputError(
            f"{shown} holds impressions, so {other} must hold impressions or feedback too, JSON lines with `items` or "
            "`item`; a log is events or labelled rows, not both; what a pipe holds is not looked at: give --format "
            "events"
        )
    return True


def _kind_of(name: str, label: str | None) -> str | None:
    """What a file holds, by its first lines; None if it is empty."""
    if format_by_name(name) not in (None, "jsonl"):
        return _OTHER
    stream = ByteStream(name)
    try:
        data = stream.head
        if b"\n" not in data:  # one event may be longer
            data = _first_line(stream)
    finally:
        stream.close()
    return _kind_of_lines(data.removeprefix(BOM), label)


def _first_line(stream: ByteStream) -> bytes:
    data, room = b"", np.empty(READ_BYTES, np.uint8)
    while b"\n" not in data and len(data) < MAX_ROW_BYTES and (count := stream.read_into(room)):
        data += room[:count].tobytes()
    return data


def _kind_of_lines(data: bytes, label: str | None) -> str | None:
    found = None
    for line in data.splitlines()[: max(data.count(b"\n"), 1)]:
        try:
            event = load(line)
        except BadRow:
            found = found or (_OTHER if line.strip() else None)
            continue
        items = event.get(ITEMS)
        if label is not None and label in event:
            return _OTHER
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            return _IMPRESSIONS
        if "item" not in event or "request_id" not in event:
            return _OTHER
        found = _FEEDBACK
    return found


class EventFiles:
    """Files, one after another, as a source of events; see Source. For one thread, except `bytes_read`.

    Marks: the number of the file and the line, as one number; bytes of the files on disk read with the chunk. A name on
    the command line is one source; its files, if it is a glob, are read in the order of their names.
    """

    lost = 0

    def __init__(
        self,
        name: str,
        files: Sequence[str],
        first_number: int,
        on_chunk: Callable[[str, Chunk], None] | None = None,
    ) -> None:
        """first_number: of the first file; the others follow. on_chunk: receives the name and each chunk read."""
        self.name, self._files, self._first_number = name, tuple(files), first_number
        self._on_chunk = on_chunk
        self._next = 0
        self._stream: ByteStream | None = None
        self._rest, self._line, self._done_bytes = b"", 1, 0
        self._peeked: list[Chunk] = []
        self._ended = False

    def peek(self) -> bytes:
        """The first lines; they are read again."""
        if not self._peeked and (chunk := self._read()) is not None:
            self._peeked.append(chunk)
        return self._peeked[0].data if self._peeked else b""

    def read(self) -> Chunk | None:
        """The next lines of one file, about READ_BYTES. Raises InputError where a file is damaged."""
        chunk = self._peeked.pop() if self._peeked else self._read()
        if chunk is not None and self._on_chunk is not None:
            self._on_chunk(self.name, chunk)
        return chunk

    def watermark_us(self) -> int:
        """0, since files have no clock; NEVER_US once all is read."""
        return NEVER_US if self._ended and not self._peeked else 0

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        """The bytes on disk read once these events are taken, as `bytes`."""
        return {"bytes": int(chunk.marks[count - 1, 1])} if count else chunk.before

    def where(self, chunk: Chunk, number: int) -> str:
        """`FILE:LINE`."""
        mark = int(chunk.marks[number, 0])
        return f"{self._files[(mark >> LINE_BITS) - self._first_number]}:{mark & LINES}"

    def lag(self) -> Lag:
        """Not known: the log is read once."""
        return Lag()

    def holds(self) -> str:
        """The names of the files."""
        return f"the log {self.name}"

    def close(self) -> None:
        """Close the open file. May be called twice."""
        if self._stream is not None:
            self._stream.close()

    def _read(self) -> Chunk | None:
        while self._stream is not None or self._next < len(self._files):
            if self._stream is None:
                self._stream = ByteStream(self._files[self._next])
                self._rest, self._line = b"", 1
            chunk = self._lines(self._stream)
            if chunk is not None:
                return chunk
        self._ended = True
        return None

    def _lines(self, stream: ByteStream) -> Chunk | None:
        """The next whole lines of the open file; None if they are blank, or if it has ended and is closed."""
        room = np.empty(READ_BYTES, np.uint8)
        count = stream.read_into(room)
        before = {"bytes": self._done_bytes}
        window = self._rest + room[:count].tobytes()
        is_last = count < room.size
        if is_last and stream.failure is None and window and not window.endswith(b"\n"):
            window += b"\n"
        data, starts = whole_lines(window)
        self._rest = window[len(data) :]
        if len(self._rest) > MAX_ROW_BYTES:
            raise InputError(
                f"{stream.name}:{self._line}: a line longer than {MAX_ROW_BYTES >> 20} MiB begins here; "
                "is this a log with one event a line?"
            )
        first, lines = self._line, starts.size - 1
        self._line += lines
        marks = np.empty((lines, 2), np.int64)
        marks[:, 0] = (self._first_number + self._next) << LINE_BITS | (first + np.arange(lines))
        marks[:, 1] = self._done_bytes + stream.consumed
        if is_last and not lines:
            self._end(stream)
        return chunk_of(data, starts, marks, before, is_first=first == 1) if lines else None

    def _end(self, stream: ByteStream) -> None:
        stream.close()
        if stream.failure is not None:
            raise stream.failure
        self._done_bytes += stream.consumed
        self._next += 1
        self._stream = None
