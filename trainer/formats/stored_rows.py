"""Stored rows: rows as bytes that are small, verified before use, and quick to read and hash again.

A piece is the columns of consecutive rows of one batch as an Arrow IPC stream of one record batch, compressed as a
whole. A column whose texts repeat is an array of codes and a dictionary, in the order of first appearance: a
reader hashes each distinct text once. Values and their types are those of the batch.

The rows of later passes (`Blocks`) and a cache are files of pieces. The rows that wait for clicks
(`trainer.events.waiting_rows`) are Arrow batches without compression, which are read through a mapping; `runs` gathers
rows of several batches, and `joined` puts batches together.

`CachedLog` is a LogReader. The first time it reads the log and writes what it reads; later, as long as
the log's files are the same, it reads that instead. Rows, lines, rejects and positions are the same, so a
run learns the same bits and says the same of it. The cache knows columns, not features: specs may differ. Its file is
MAGIC; a sequence of pieces, one for some batches of a file; the index, as JSON; the length and CRC-32 of the index, and
MAGIC again. It takes its name when it is complete. Every part is verified before it is used. A file that does not begin
with MAGIC is never replaced.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import CheckpointError, InputError, OutputError
from model_store.files import elsewhere, whole_file
from trainer.formats.batch import HEAD_BYTES, STDIN, LazyColumns, Position, RowBatch, as_stored, sha256_of
from trainer.formats.cells import CellSets, CellText
from trainer.formats.reader import LogReader, path_of
from trainer.formats.rejects import Reject

BLOCK_ROWS = 4096
MOST_ROWS = 1 << 17
"""The most rows in a run, so that its text stays far below Arrow's limit of 2 GiB."""
_CODEC = pa.Codec("lz4")
_MOST_CODES = 1 << 15
_SIZE = 8  # of the number before the compressed bytes: how many there are without compression
_CLICKS = 4  # of the number before the clicks of a block's rows: how many there are

Int64s = npt.NDArray[np.int64]
Columns = dict[str, pa.Array]


def record_of(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """The columns of a batch, at least one, as Arrow arrays of the types that they have."""
    found = as_stored(columns)
    arrays = [each.values() if isinstance(each, CellText | CellSets) else each for each in found.values()]
    return pa.RecordBatch.from_arrays(arrays, list(found))


def to_bytes(record: pa.RecordBatch) -> bytes:
    """The piece of these rows."""
    record = pa.RecordBatch.from_arrays([_coded(column) for column in record.columns], record.schema.names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record.schema) as writer:
        writer.write_batch(record)
    data = sink.getvalue()
    compressed: bytes = _CODEC.compress(data, asbytes=True)
    return int(data.size).to_bytes(_SIZE, "little") + compressed


def _coded(array: pa.Array) -> pa.Array:
    """The array, coded if its texts repeat."""
    if array.type not in (pa.binary(), pa.string()) or array.null_count:
        return array
    coded = array.dictionary_encode()
    distinct = len(coded.dictionary)
    if distinct > _MOST_CODES or 2 * distinct > len(array):
        return array
    return pa.DictionaryArray.from_arrays(coded.indices.cast(pa.int16()), coded.dictionary)


def of_bytes(piece: bytes | memoryview, where: str) -> LazyColumns:
    """The columns of a piece whose checksum was verified. Raises InputError, with `where`, for other bytes."""
    try:
        size = int.from_bytes(piece[:_SIZE], "little")
        data = _CODEC.decompress(pa.py_buffer(piece[_SIZE:]), size)
        record = pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InputError(f"{where} holds no rows of this version: {error}") from error
    return LazyColumns(dict(zip(record.schema.names, record.columns, strict=True)))


def read_piece(file: BinaryIO, at: int, size: int, crc: int, where: str, damage: str) -> memoryview:
    """The bytes of a piece, if they are those that were written. Raises InputError: `where`, and a text for damage."""
    try:
        data = os.pread(file.fileno(), size, at)
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}") from error
    if len(data) != size or zlib.crc32(data) != crc:
        raise InputError(f"{where} is damaged{damage}")
    return memoryview(data)


class Piece(NamedTuple):
    """A part of a block: its rows in the stream, its bytes in the file, and their CRC-32."""

    first_row: int
    rows: int
    at: int
    size: int
    crc: int

    @property
    def block(self) -> int:
        """The number of its block."""
        return self.first_row // BLOCK_ROWS


class Blocks:
    """The rows of a log, kept on disk while the first pass reads them, for later passes in another order.

    A block is BLOCK_ROWS rows that follow one another in the log, the last one is shorter; it keeps their order. Rows
    are counted as read, so blocks depend neither on the size of batches nor on where a run was resumed. The file is a
    sequence of pieces, each after the clicks of its rows' requests where requests are sampled: a byte a row. A piece
    ends where its batch or its block ends, so every piece has the column types of its batch. Where the pieces are is
    known in memory only, and to a checkpoint.

    Without a `path` the file is temporary: it has no name, in the folder that TMPDIR names, and the system deletes it
    with the process, however that ends. `index` says which pieces of an existing file a checkpoint names; what follows
    them is removed. Raises CheckpointError if they are not all there, OutputError if the file cannot be opened.

    `keep` may run in another thread than the rest.
    """

    def __init__(self, path: Path | None = None, index: npt.NDArray[np.int64] | None = None) -> None:
        self._pieces = [Piece(*row) for row in index.tolist()] if index is not None else []
        self._where = str(path) if path is not None else f"a temporary file in {tempfile.gettempdir()}"
        self._is_temporary = path is None
        try:
            if path is None:
                self._file: BinaryIO = tempfile.TemporaryFile(prefix="ftrie-", buffering=0)  # noqa: SIM115 (see __exit__)
            else:
                self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
            size = os.fstat(self._file.fileno()).st_size
            if size < self._end:
                self._file.close()
                raise CheckpointError(
                    f"{self._where} has {size:,} bytes, but the checkpoint names {self._end:,}: it was cut short or "
                    "replaced; put it back, or start again with another folder"
                )
            self._file.truncate(self._end)
        except OSError as error:
            raise self._unwritable(error) from error

    def keep(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The batches, unchanged; their rows are written before they pass. Raises OutputError."""
        for batch in batches:
            first, record = 0, record_of(batch.columns)
            while first < batch.rows:
                end = min(batch.rows, first + BLOCK_ROWS - (batch.first_row + first) % BLOCK_ROWS)
                clicked = b"" if batch.clicked is None else batch.clicked[first:end].tobytes()
                self._write(batch.first_row + first, record.slice(first, end - first), clicked)
                first = end
            yield batch

    def read(self, order: Iterable[int], done: int = 0) -> Iterator[RowBatch]:
        """The rows of the blocks in this order, without the first `done` pieces. Raises InputError."""
        by_block = {block: list(pieces) for block, pieces in groupby(self._pieces, lambda each: each.block)}
        pieces = [piece for block in order for piece in by_block[block]]
        return map(self._read, pieces[done:])

    def __len__(self) -> int:
        """The number of blocks."""
        return self._pieces[-1].block + 1 if self._pieces else 0

    def index(self, rows: int) -> npt.NDArray[np.int64]:
        """The pieces of the first `rows` rows, where a batch ended, once they are on disk: int64[pieces, 5]."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error
        pieces = [piece for piece in self._pieces if piece.first_row < rows]
        return np.array(pieces, np.int64).reshape(-1, len(Piece._fields))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; a temporary one is gone."""
        self._file.close()

    @property
    def _end(self) -> int:
        return self._pieces[-1].at + self._pieces[-1].size if self._pieces else 0

    def _write(self, first_row: int, rows: pa.RecordBatch, clicked: bytes) -> None:
        data = len(clicked).to_bytes(_CLICKS, "little") + clicked + to_bytes(rows)
        piece = Piece(first_row, rows.num_rows, self._end, len(data), zlib.crc32(data))
        left = memoryview(data)
        try:
            while left:
                left = left[os.pwrite(self._file.fileno(), left, piece.at + piece.size - len(left)) :]
        except OSError as error:
            raise self._unwritable(error) from error
        self._pieces.append(piece)

    def _read(self, piece: Piece) -> RowBatch:
        damage = f": its bytes from {piece.at:,} on are not those that were written; learn the log again"
        data = read_piece(self._file, piece.at, piece.size, piece.crc, self._where, damage)
        after = _CLICKS + int.from_bytes(data[:_CLICKS], "little")
        return RowBatch(
            columns=of_bytes(data[after:], self._where),
            lines=np.arange(piece.first_row + 1, piece.first_row + piece.rows + 1),
            file=self._where,
            rejects=(),
            rows=piece.rows,
            stop=Position(self._where),
            first_row=piece.first_row,
            clicked=np.frombuffer(data[_CLICKS:after], np.bool_) if after > _CLICKS else None,
        )

    def _unwritable(self, error: OSError) -> OutputError:
        remedy = elsewhere(error, "TMPDIR names another folder") if self._is_temporary else ""
        return OutputError(
            f"the rows for later passes cannot be written to {self._where}: {error.strerror}{remedy}"
        )


def shuffled(blocks: int, seed: int, number: int) -> Sequence[int]:
    """The order of the blocks in the pass with this number: a permutation that every Python makes the same."""
    draw = Random(f"{seed} {number}")
    return sorted(range(blocks), key=lambda block: draw.random())


def merged_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """The schema that tables with these schemas can share, or None.

    They may differ only in columns without any value, which have Arrow's null type and take the other's type.
    """
    if one.equals(other):
        return one
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.unify_schemas([one, other]) if one.names == other.names else None
    return None


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Batches as one of this schema, which is their `merged_schema`."""
    batches = [batch if batch.schema.equals(schema) else batch.cast(schema) for batch in batches]
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def runs(batches: Sequence[pa.RecordBatch], batch_of: Int64s, row: Int64s) -> Iterator[tuple[int, Columns]]:
    """Rows in their order, in runs of one schema: the number of a run's first row, and its columns.

    batch_of, row: int64[m], where each row is. A run has at most MOST_ROWS rows.
    """
    shared: list[pa.Schema] = []
    groups = np.empty(len(batches), np.int64)
    for number, batch in enumerate(batches):
        for group, schema in enumerate(shared):
            if (merged := merged_schema(schema, batch.schema)) is not None:
                shared[group] = merged
                break
        else:
            group = len(shared)
            shared.append(batch.schema)
        groups[number] = group
    group_of = groups[batch_of]
    edges = np.flatnonzero(np.diff(group_of)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), row.size], strict=True):
        schema = shared[int(group_of[begin])]
        for first in range(begin, end, MOST_ROWS):
            mine = slice(first, min(first + MOST_ROWS, end))
            run = _taken(batches, schema, batch_of[mine], row[mine])
            yield first, dict(zip(schema.names, run.columns, strict=True))


def _taken(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, batch_of: Int64s, row: Int64s
) -> pa.RecordBatch:
    """One take in each batch, then one that brings what was taken into order, where it is not."""
    order = np.argsort(batch_of, kind="stable")
    numbers, starts = np.unique(batch_of[order], return_index=True)
    parts = []
    for number, rows in zip(numbers.tolist(), np.split(row[order], starts[1:]), strict=True):
        batch, first = batches[number], int(rows[0])
        # Rows that follow one another are not copied.
        follow = int(rows[-1]) - first == rows.size - 1 and bool((np.diff(rows) == 1).all())
        parts.append(batch.slice(first, rows.size) if follow else batch.take(pa.array(rows)))
    together = joined(parts, schema)
    if np.array_equal(order, np.arange(order.size)):
        return together
    back = np.empty(order.size, np.int64)
    back[order] = np.arange(order.size)
    return together.take(pa.array(back))


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
