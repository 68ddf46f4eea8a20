"""A cache of a log: its rows in a file that is read several times as fast as the log itself.

`CachedLog` is a LogReader. The first time it reads the log and writes what it reads; later, as long as
the log's files are the same, it reads that instead. Rows, lines, rejects and positions are the same, so a
run learns the same bits and says the same of it. The cache knows columns, not features: specs may differ.

The file is MAGIC; a sequence of pieces (`trainer.formats.stored_rows`), one for some batches of a file; the index, as
JSON; the length and CRC-32 of the index, and MAGIC again. It takes its name when it is complete. Every part is verified
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
from trainer.formats.reader import LogReader, path_of
from trainer.formats.rejects import Reject
from trainer.formats.stored_rows import joined, of_bytes, read_piece, record_of, to_bytes

MAGIC = b"FTRIELOG"
PIECE_ROWS = 8_192
"""The rows of a piece: enough that the work for each of its columns is small beside that for its rows."""
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

    piece_rows: batches are written together until they have that many rows; 1 keeps each by itself. what: what the
    rows depend on beside the files, as JSON; on_note: receives which of the two it is. A cache that cannot
    be written is given up with a note; the rows go on.
    """

    def __init__(
        self, inputs: Sequence[str], path: Path, piece_rows: int, what: Mapping[str, Any], **options: Any
    ) -> None:
        """options: of LogReader. Raises InputError for standard input, whose rows cannot be recognised later."""
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
        identity = {
            "version": _VERSION,
            "files": [_file_identity(name) for name in self.files],
            "header": list(self.columns_without_header or ()),
            "rows of a piece": self._piece_rows,
            **self._what,
        }
        written: dict[str, Any] = json.loads(json.dumps(identity))
        return written

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
        self._waiting: list[tuple[RowBatch, pa.RecordBatch | None]] = []
        self._rows = 0  # that wait
        self._whole = whole_file(path.absolute())
        self._file: BinaryIO | None = None
        try:
            self._file = self._whole.__enter__()
        except OSError as error:
            self._note(error)
        self._write(MAGIC)

    def add(self, batch: RowBatch) -> None:
        """Write a batch, with those before it once they have enough rows together."""
        if self._file is None:
            return
        record = record_of(batch.columns) if batch.rows else None
        if self._waiting and not self._follows(batch, record):
            self._write_waiting()
        self._waiting.append((batch, record))
        self._rows += batch.rows
        if self._rows >= self._piece_rows:
            self._write_waiting()

    def finish(self, index: Mapping[str, Any]) -> None:
        """Write what is left, and the index; the file takes its name."""
        self._write_waiting()
        data = json.dumps({**index, "batches": self._index}).encode()
        self._write(data + _END.pack(len(data), zlib.crc32(data), MAGIC))
        if self._file is not None:
            self._file = None
            try:
                self._whole.__exit__(None, None, None)
            except OSError as error:
                self._note(error)

    def _follows(self, batch: RowBatch, record: pa.RecordBatch | None) -> bool:
        """Whether the rows that wait and this batch's are of the same types, on lines of one file without a gap.

        A row's line is then that of the first one and its number, whether they come as one batch or as several.
        """
        first, before = self._waiting[0]
        if record is None or before is None or batch.file != first.file:
            return False
        return bool(batch.lines[0] == first.lines[0] + self._rows and record.schema.equals(before.schema))

    def _write_waiting(self) -> None:
        """Write the piece of the batches that wait, and add its entry to the index."""
        waiting, rows = self._waiting, self._rows
        self._waiting, self._rows = [], 0
        if not waiting or self._file is None:
            return
        batches = [batch for batch, _ in waiting]
        assert batches[0].start is not None
        records = [record for _, record in waiting if record is not None]
        data = to_bytes(joined(records, records[0].schema)) if records else b""
        lines = np.concatenate([each.lines for each in batches])
        steps = np.diff(lines)
        entry = _Batch(
            at=self._file.tell(),
            size=len(data),
            crc=zlib.crc32(data),
            rows=rows,
            file=batches[0].file,
            lines=lines[:1].tolist() + (steps.tolist() if (steps != 1).any() else []),
            rejects=[[reject.line, reject.reason] for each in batches for reject in each.rejects],
            start=asdict(batches[0].start),
            stop=asdict(batches[-1].stop),
        )
        self._index.append(asdict(entry))
        self._write(data)

    def _write(self, data: bytes) -> None:
        """Write, unless the cache was given up; give it up if that fails."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            self.__exit__()
            self._note(error)

    def _note(self, error: OSError) -> None:
        self._on_note(f"the rows are not kept: {self._path} cannot be written: {error.strerror}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete what was written if it is not finished."""
        if self._file is not None:
            self._file = None
            self._whole.__exit__(EOFError, EOFError(), None)


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
    columns: Mapping[str, Any] = dict.fromkeys(wanted, pa.nulls(0))
    lines = np.ones(entry.rows, np.int64)
    if entry.rows:
        where = f"{path}: the piece of {entry.size:,} bytes from {entry.at:,} on"
        damage = "; delete the file, and the log is read again"
        stored = of_bytes(read_piece(file, entry.at, entry.size, entry.crc, where, damage), where)
        columns = {name: stored.stored[name] for name in wanted}
        lines[0], lines[1:] = entry.lines[0], entry.lines[1:] or 1
    return RowBatch(
        columns=LazyColumns(columns),
        lines=np.cumsum(lines),
        file=entry.file,
        rejects=tuple(Reject(entry.file, line, reason) for line, reason in entry.rejects),
        rows=entry.rows,
        stop=Position(**entry.stop),
        start=Position(**entry.start),
    )
