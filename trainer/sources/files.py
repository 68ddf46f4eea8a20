"""Files of events as sources: growing ones, or those of a log that is read once, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trainer.events.events import (
    NEVER_US,
    READ_BYTES,
    Chunk,
    Int64s,
    Lag,
    SourcePosition,
    is_blank,
    whole_lines,
)
from trainer.formats.batch import mark_of, split_mark
from trainer.formats.streams import BOM, ByteStream, Feed
from trainer.sources.file_tracker import FileChain, Taken
from trainer.sources.open_files import Opened, Record, path_of
from trainer.sources.source_kind import Opener, Opening, SourceKind


class FileSource(FileChain[Chunk]):
    """Reads lines from a position on; see Source for the methods.

    Marks: the number of the file in the position, the next offset and line, the event's own line. Events of files have
    no time of arrival: their own times count. A file is read up to its last line end; with `once`, and of compressed
    files, bytes after that are a line too.
    """

    def read(self) -> Chunk | None:
        """The next lines of one file, about READ_BYTES. Raises InputError for a line that never ends."""
        return self._next()

    def watermark_us(self) -> int:
        """0, since files have no clock; NEVER_US once all is read with `once`."""
        return NEVER_US if self.ended else 0

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        """The position after `count` lines of the chunk."""
        if count == 0:
            return chunk.before
        number, offset, line, _ = chunk.marks[count - 1].tolist()
        return self._after(chunk.before, number, offset, line)

    def where(self, chunk: Chunk, number: int) -> str:
        """`PATH:LINE`, with the file's name when it was read."""
        file, _, _, line = chunk.marks[number].tolist()
        return f"{path_of(chunk.before['files'][file])}:{line}"

    def _taken(self, record: Record, opened: Opened, window: bytes, is_all: bool) -> Taken[Chunk] | None:
        open_end = is_all and not window.endswith(b"\n") and bool(window)
        data, starts = whole_lines(window + b"\n" if open_end else window)
        if not data:
            return None
        count = starts.size - 1
        # An added line end is not in the file.
        size = len(data) - open_end
        ends = np.minimum(starts[1:], size) + record.offset
        marks = np.empty((count, 4), np.int64)
        marks[:, 0] = self._records.index(record)
        marks[:, 1] = ends
        marks[:, 3] = record.line + np.arange(count)
        marks[:, 2] = marks[:, 3] + 1
        marks[-1, 2] -= open_end
        chunk = chunk_of(data, starts, marks, self._here(), is_first=record.offset == 0)
        return Taken(chunk, size, count - open_end)


def chunk_of(
    data: bytes, starts: Int64s, marks: Int64s, before: SourcePosition, *, is_first: bool = False
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
        self._stream: ByteStream | None = None
        self._peeked: list[Chunk] = []
        self._chunks = self._read()
        self._ended = False

    def peek(self) -> bytes:
        """The first lines; they are read again."""
        if not self._peeked and (chunk := next(self._chunks, None)) is not None:
            self._peeked.append(chunk)
        return self._peeked[0].data if self._peeked else b""

    def read(self) -> Chunk | None:
        """The next lines of one file, about READ_BYTES. Raises InputError where a file is damaged."""
        chunk = self._peeked.pop() if self._peeked else next(self._chunks, None)
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
        file, line = split_mark(int(chunk.marks[number, 0]))
        return f"{self._files[file - self._first_number]}:{line}"

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

    def _read(self) -> Iterator[Chunk]:
        done = 0
        for number, name in enumerate(self._files, self._first_number):
            self._stream = stream = ByteStream(name)
            feed, before = Feed(stream, READ_BYTES), done
            for block in feed.blocks():
                data = block.tobytes()
                lacks_feed = not data.endswith(b"\n")
                data, starts = whole_lines(data + b"\n" if lacks_feed else data)
                marks = np.empty((starts.size - 1, 2), np.int64)
                marks[:, 0] = mark_of(number, feed.line + np.arange(len(marks)))
                marks[:, 1] = done + stream.consumed
                chunk = chunk_of(data, starts, marks, {"bytes": before})
                before = done + stream.consumed
                feed.drop(block.size, len(marks))
                if chunk is not None:
                    yield chunk
            stream.close()
            done += stream.consumed
        self._ended = True


def _openers(name: str, opening: Opening) -> list[Opener]:
    return [
        Opener(name, lambda position: FileSource(name, position, opening.on_note, once=opening.once)),
    ]


FILES = SourceKind("a file, a folder, a glob", lambda name: "://" not in name, _openers)
