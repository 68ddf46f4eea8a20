"""Files of events as sources: growing ones, or those of a log that is read once, from its beginning to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob

import numpy as np

from model_store.errors import counted
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
from trainer.formats.batch import mark_of, split_mark
from trainer.formats.streams import ByteStream, Feed
from trainer.sources.file_tracker import FileChain
from trainer.sources.open_files import Opened, Record, path_of


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
