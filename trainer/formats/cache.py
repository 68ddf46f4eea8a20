"""A cache of a log: its rows in a file that is read several times as fast as the log itself.

`CachedLog` is a LogReader. The first time it reads the log and writes what it reads; later, as long as
the log's files are the same, it reads that instead. Rows, lines, rejects and positions are the same, so a
run learns the same bits and says the same of it. The cache knows columns, not features: specs may differ.

The file is MAGIC; a sequence of pieces (`trainer.formats.pieces`), one for some batches of a file; the index, as JSON;
the length and CRC-32 of the index, and MAGIC again. It takes its name when it is complete. Every part is verified
before it is used. A file that does not begin with MAGIC is never replaced.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa

from model_store.errors import InputError
from model_store.files import whole_file
from trainer.formats.batch import HEAD_BYTES, STDIN, LazyColumns, Position, RowBatch, sha256_of
from trainer.formats.pieces import joined, of_bytes, to_bytes
from trainer.formats.reader import LogReader, path_of
from trainer.formats.rejects import Reject

MAGIC = b"FTRIELOG"
PIECE_ROWS = 8_192
"""The rows of a piece: so many that the work for each column of a piece is small beside that for its rows."""
_VERSION = 1
_END = struct.Struct("<QI8s")


@dataclass(frozen=True)
class _Batch:
    """A batch in the index: all of it but its columns.

    at, size, crc: of its piece in the file, size 0 if it has no rows; lines: of the first row and, if rows are not on
    lines that follow one another, the differences; start, stop: fields of the positions.
    """

    at: int
    size: int
    crc: int
    rows: int
    file: str
    lines: list[int]
    rejects: list[list[Any]]
    start: dict[str, Any]
    stop: dict[str, Any]


class CachedLog(LogReader):
    """A LogReader whose rows come from the cache at `path` if that has them, and are written there if not.

    piece_rows: batches are written together until they have so many rows; 1 keeps each by itself. what: what the rows
    depend on beside the files, as JSON; on_note: told which of the two it is. A cache that cannot
    be written is given up with a note; the rows go on.
    """

    def __init__(
        self, inputs: Sequence[str], path: Path, piece_rows: int, what: Mapping[str, Any], **options: Any
    ) -> None:
        """options: of LogReader. Raises InputError for standard input, by which no rows can be known again."""
        super().__init__(inputs, **options)
        if STDIN in self.files:
            raise InputError("--cache: rows of standard input cannot be known again; give a file")
        self._path, self._piece_rows, self._what = path, piece_rows, dict(what)
        self._share: float | None = None

    def bytes_read(self) -> int:
        """See LogReader."""
        return super().bytes_read() if self._share is None else int(self._share * (self.total_bytes or 0))

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """See LogReader. Raises InputError where a piece is damaged, after the rows before it."""
        identity = self._identity()
        try:
            index = _index_of(self._path, identity, wanted)
        except _Unfit as error:
            self._on_note(f"the rows are read from the log and kept in {self._path}: {error}")
            yield from self._kept(identity, wanted)
            return
        self._on_note(f"the rows are read from {self._path}: the log is the one that it was made of")
        yield from self._from_cache(index, wanted)

    def _identity(self) -> dict[str, Any]:
        """What the rows depend on, as JSON."""
        files = [_file_identity(name) for name in self.files]
        header = list(self.columns_without_header or ())
        identity: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "version": _VERSION,
                    "files": files,
                    "header": header,
                    "rows of a piece": self._piece_rows,
                    **self._what,
                }
            )
        )
        return identity

    def _kept(self, identity: Mapping[str, Any], wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The log's rows, each batch written before it passes."""
        with _Writer(self._path, self._piece_rows, self._on_note) as writer:
            for batch in super().batches(wanted):
                writer.add(batch)
                yield batch
            if identity != self._identity():
                self._on_note(f"the rows are not kept in {self._path}: the log has changed while it was read")
                return
            ends = [[asdict(read.position), read.disk_bytes] for read in self.bookmarks.until(None)]
            writer.finish({**identity, "columns": list(wanted), "ends": ends})

    def _from_cache(self, index: Mapping[str, Any], wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The batches of the cache; the bookmarks are as if the files had been read."""
        ends, begun = index["ends"], 0
        entries = [_Batch(**entry) for entry in index["batches"]]
        with self._path.open("rb") as file:
            for number, entry in enumerate(entries, 1):
                begun = self._begin(begun, entry.stop["number"] + 1, ends)
                batch = _batch(file, self._path, entry, wanted)
                self._share = number / len(entries)
                yield batch
        self._begin(begun, len(ends), ends)
        position, size = ends[-1]
        self.bookmarks.end(Position(**position), size)
        self._next = len(self.files)

    def _begin(self, begun: int, files: int, ends: Sequence[Any]) -> int:
        """Begin the files up to this number, and end those before the last of them."""
        for number in range(begun, files):
            if number:
                position, size = ends[number - 1]
                self.bookmarks.end(Position(**position), size)
            self.bookmarks.begin(number, b"")
        return max(begun, files)


class _Writer:
    """Writes a cache, which takes its name with `finish`; gives it up, with a note, where it cannot be written."""

    def __init__(self, path: Path, piece_rows: int, on_note: Callable[[str], None]) -> None:
        self._path, self._piece_rows, self._on_note = path, piece_rows, on_note
        self._index: list[dict[str, Any]] = []
        self._waiting: list[RowBatch] = []
        self._whole = whole_file(path.absolute())
        self._file: BinaryIO | None = None
        try:
            self._file = self._whole.__enter__()
        except OSError as error:
            self._note(error)
        self._try(lambda file: file.write(MAGIC))

    def add(self, batch: RowBatch) -> None:
        """Write a batch, with those before it once they have enough rows together."""
        if self._waiting and not self._goes_on(batch):
            self._try(self._write_waiting)
        self._waiting.append(batch)
        if sum(each.rows for each in self._waiting) >= self._piece_rows:
            self._try(self._write_waiting)

    def _goes_on(self, batch: RowBatch) -> bool:
        """Whether the rows that wait and this batch's first one are on lines of one file that follow one another.

        A row's line is then that of the first one and its number, whether they come as one batch or as several.
        """
        first, rows = self._waiting[0], sum(each.rows for each in self._waiting)
        return bool(
            batch.file == first.file and rows and batch.rows and batch.lines[0] == first.lines[0] + rows
        )

    def finish(self, index: Mapping[str, Any]) -> None:
        """Write what is left, and the index; the file takes its name."""
        self._try(self._write_waiting)
        self._try(lambda file: _finish(file, {**index, "batches": self._index}))
        if self._file is not None:
            self._file = None
            try:
                self._whole.__exit__(None, None, None)
            except OSError as error:
                self._note(error)

    def _write_waiting(self, file: BinaryIO) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        columns = joined([each.columns for each in waiting if each.rows])
        if columns is not None:
            _write(file, self._index, waiting, columns)
        else:
            for each in waiting:
                _write(file, self._index, [each], each.columns)

    def _try(self, write: Callable[[BinaryIO], object]) -> None:
        """Write, unless the cache was given up; give it up if that fails."""
        if self._file is None:
            return
        try:
            write(self._file)
        except OSError as error:
            self._give_up(error)
            self._note(error)

    def _give_up(self, error: BaseException) -> None:
        """Delete what was written."""
        self._file = None
        self._whole.__exit__(type(error), error, None)

    def _note(self, error: OSError) -> None:
        self._on_note(f"the rows are not kept: {self._path} cannot be written: {error.strerror}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._give_up(_Unfinished())


class _Unfinished(Exception):
    """The rows were not read to their end."""


class _Unfit(Exception):
    """The message says why a cache does not have the rows."""


def _file_identity(name: str) -> list[Any]:
    """A file's path, size, time of change in ns, and the SHA-256 of its beginning. Raises InputError."""
    try:
        with open(name, "rb") as file:
            status = os.fstat(file.fileno())
            return [path_of(name), status.st_size, status.st_mtime_ns, sha256_of(file.read(HEAD_BYTES))]
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error


def _write(
    file: BinaryIO, index: list[dict[str, Any]], batches: Sequence[RowBatch], columns: Mapping[str, Any]
) -> None:
    """Write the piece of batches that follow one another, and add its entry to the index."""
    rows = sum(each.rows for each in batches)
    data = to_bytes(columns, 0, rows) if rows else b""
    at = file.tell()
    file.write(data)
    lines = np.concatenate([each.lines for each in batches])
    steps = np.diff(lines)
    places = lines[:1].tolist() + (steps.tolist() if (steps != 1).any() else [])
    first, last = batches[0], batches[-1]
    assert first.start is not None
    rejects = [[reject.line, reject.reason] for each in batches for reject in each.rejects]
    positions = asdict(first.start), asdict(last.stop)
    entry = _Batch(at, len(data), zlib.crc32(data), rows, first.file, places, rejects, *positions)
    index.append(asdict(entry))


def _finish(file: BinaryIO, index: Mapping[str, Any]) -> None:
    data = json.dumps(index).encode()
    file.write(data + _END.pack(len(data), zlib.crc32(data), MAGIC))


def _index_of(path: Path, identity: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """The index of a cache of this log that has these columns. Raises _Unfit; InputError for another kind of file."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
            if begin and begin != MAGIC:
                raise InputError(f"--cache: {path} is no cache of rows; delete the file, or name another one")
            file.seek(-_END.size, os.SEEK_END)
            size, crc, magic = _END.unpack(file.read(_END.size))
            file.seek(-_END.size - size, os.SEEK_END)
            data = file.read(size)
    except FileNotFoundError:
        raise _Unfit("there is no such file yet") from None
    except (OSError, ValueError, struct.error, OverflowError):
        raise _Unfit("it is no cache, or damaged") from None
    if magic != MAGIC or zlib.crc32(data) != crc:
        raise _Unfit("it is no cache of this version, or damaged")
    index: dict[str, Any] = json.loads(data)
    for key, value in identity.items():
        if index.get(key) != value:
            raise _Unfit(f"it was made of other {_NAMES.get(key, key)}")
    if missing := [name for name in wanted if name not in index["columns"]]:
        raise _Unfit(f"it lacks {', '.join(missing)}")
    return index


_NAMES = {"files": "files, or they have changed since", "version": "versions of ftrie"}


def _batch(file: BinaryIO, path: Path, entry: _Batch, wanted: Sequence[str]) -> RowBatch:
    where = f"{path}: the piece of {entry.size:,} bytes from {entry.at:,} on"
    try:
        file.seek(entry.at)
        data = file.read(entry.size)
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}") from error
    if len(data) != entry.size or zlib.crc32(data) != entry.crc:
        raise InputError(f"{where} is damaged; delete the file, and the log is read again")
    columns = (
        of_bytes(memoryview(data), where) if entry.rows else LazyColumns(dict.fromkeys(wanted, pa.nulls(0)))
    )
    lines = np.ones(entry.rows, np.int64)
    if entry.rows:
        lines[0], lines[1:] = entry.lines[0], entry.lines[1:] or 1
    return RowBatch(
        columns=LazyColumns({name: columns.as_it_is(name) for name in wanted}),
        lines=np.cumsum(lines),
        file=entry.file,
        rejects=tuple(Reject(entry.file, line, reason) for line, reason in entry.rejects),
        rows=entry.rows,
        stop=Position(**entry.stop),
        start=Position(**entry.start),
    )
