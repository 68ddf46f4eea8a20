"""Files as sources: events in growing ones, or in those of a log that is read once; labelled rows in growing ones.

Rows are CSV, TSV or JSON lines, parsed as `ftrie train` parses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from model_store.errors import InputError
from trainer.events.events import (
    NEVER_US,
    READ_BYTES,
    Chunk,
    Int64s,
    Lag,
    Opener,
    Opening,
    SourceKind,
    SourcePosition,
    is_blank,
    whole_lines,
)
from trainer.formats.batch import RowBatch, mark_of, split_mark
from trainer.formats.csv import DelimitedFile
from trainer.formats.jsonl import JsonLinesFile, Keys, keys_of
from trainer.formats.reader import FORMATS, columns_in_path, format_by_name, format_of, misnamed, no_column
from trainer.formats.row_file import Header
from trainer.formats.streams import BOM, ByteStream, Feed, Window
from trainer.sources.file_tracker import FileChain, Taken
from trainer.sources.open_files import Opened, Record, path_of, without_rotation


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


_NO_KNOWLEDGE = Header()


@dataclass(frozen=True)
class RowsRead:
    """A batch and the positions before and after it."""

    batch: RowBatch
    before: SourcePosition
    after: SourcePosition


class RowSource(FileChain[RowsRead]):
    """Reads rows from a position on, which is like that of a FileSource. For one thread.

    A file is read up to its last whole row; with `once`, and of compressed files, bytes after that are a row too.
    objects: columns that may hold an object of numbers, a weighted set, in JSON lines. optional: columns that a file
    may lack; its rows are null there. header: what is known of the files' first lines, as in a LogReader.
    """

    def __init__(
        self,
        name: str,
        position: SourcePosition,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
        objects: frozenset[str] = frozenset(),
        optional: frozenset[str] = frozenset(),
        header: Header = _NO_KNOWLEDGE,
    ) -> None:
        super().__init__(name, position, on_note, once=once, least_lines=2)
        self._header = header
        self._noted: set[str] = set()
        self._optional = optional
        self._objects = objects
        self._files: dict[Record, _Followed] = {}
        self._wanted: Sequence[str] = ()

    @property
    def columns_without_header(self) -> tuple[str, ...] | None:
        """The columns of the files without a header; None while no such file was met."""
        return self._header.columns

    def columns(self) -> tuple[str, ...] | None:
        """The first file's columns, for JSON lines those in its first 64 KiB; None while there is no file."""
        found = self._first()
        if found is None:
            return None
        own = self._followed(*found).columns
        return (*own, *columns_in_path(found[0].path, own))

    def read(self, wanted: Sequence[str]) -> RowsRead | None:
        """The next rows of one file, about READ_BYTES, with the `wanted` columns; None if there are none now.

        Raises SpecError for a file whose header lacks a column, InputError for a format that cannot be followed.
        """

        self._wanted = wanted
        return self._next()

    def _taken(self, record: Record, opened: Opened, window: bytes, is_all: bool) -> Taken[RowsRead] | None:
        if not window:
            return None
        file = self._followed(record, opened)
        path = columns_in_path(record.path, file.columns)
        there = self._there(record, file, path)
        feed = Window(record.path, window, is_all, record.offset, record.line)
        if file.lines is None:
            batch = next(JsonLinesFile(feed, Keys(file.columns, self._objects, ())).batches(there), None)
        else:
            if record.offset == 0:
                feed.drop(file.offset - feed.offset, file.line - 1)
            batch = next(file.lines.continued(feed).batches(there), None)
        if batch is None:
            return None
        if others := set(self._wanted) - batch.columns.keys():
            of_path = {
                name: pa.repeat(pa.scalar(path[name], pa.binary()), batch.rows)
                for name in others & path.keys()
            }
            rest = dict.fromkeys(others, pa.nulls(batch.rows)) | of_path
            batch = replace(batch, columns={**batch.columns, **rest})
        stop = batch.stop
        rows = None
        if batch.rows or batch.rejects:
            before = self._here()
            after = self._after(before, self._records.index(record), stop.offset, stop.line)
            rows = RowsRead(batch, before, after)
        return Taken(rows, stop.offset - record.offset, stop.line - record.line)

    def _followed(self, record: Record, opened: Opened) -> _Followed:
        """The file's beginning. Raises InputError for a format that cannot be followed."""
        if record not in self._files:
            path, head = record.path, opened.head()
            name = format_of_growing(path, head)
            if name == "jsonl":
                self._files = {record: _Followed(keys_of(head).columns, None)}
            elif FORMATS[name].separator:
                feed = Window(path, head, is_all=False)
                file = DelimitedFile(feed, name, self._header)
                if not file.has_header:
                    self._header = replace(self._header, columns=file.columns)
                for kind, text in {"format": misnamed(without_rotation(path), name), **file.notes}.items():
                    if text and kind not in self._noted:
                        self._noted.add(kind)
                        self._on_note(text)
                self._files = {record: _Followed(file.columns, file, feed.offset, feed.line)}
            else:
                raise InputError(
                    f"{path} is {name}: a trainer reads rows on from CSV, TSV and JSON lines; `ftrie train` reads the "
                    "others"
                )
        return self._files[record]

    def _there(self, record: Record, file: _Followed, path: Iterable[str]) -> Sequence[str]:
        """The wanted columns that the file has, and its path has not. Raises SpecError."""
        wanted = [name for name in self._wanted if name not in path]
        if file.lines is None:
            return wanted
        there = [name for name in wanted if name in file.columns]
        missing = [name for name in wanted if name not in there and name not in self._optional]
        if missing:
            raise no_column(record.path, missing, (*file.columns, *path))
        return there


@dataclass(frozen=True)
class _Followed:
    """What the beginning of a file tells, by which its rows are read from any offset.

    columns: for JSON lines those of the beginning. lines: the file's own reader, if all its rows have these columns.
    offset, line: of the first row.
    """

    columns: tuple[str, ...]
    lines: DelimitedFile | None
    offset: int = 0
    line: int = 1


def format_of_growing(path: str, head: bytes) -> str:
    """The format of a file that starts with `head`. Raises InputError if neither name nor content tells it."""
    name = without_rotation(path)
    return format_of(path if format_by_name(name) is None else name, head)
