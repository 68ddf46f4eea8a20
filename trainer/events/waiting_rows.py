"""The rows of impressions, as columns, while the join may still emit them: in memory, and on disk.

A segment is the table made from one parsed chunk of events. It is written at most once, in a pack together with others:
when a checkpoint is to name it, or when memory runs out. Unneeded segments are dropped; a file is deleted once no
checkpoint that is kept can name it. A pack is laid out and verified like a checkpoint (docs/formats/checkpoint.md): its
array `rows` is an Arrow stream of one batch, its description lists the segments.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import CheckpointError, OutputError, counted
from model_store.files import whole_file
from trainer.checkpoint import file
from trainer.checkpoint.folder import KEPT

Numbers = npt.NDArray[np.int32]

PACK_BYTES = 64 << 20
_SPARED = 0.75  # of the memory bound: used after memory was released


class _Loose(NamedTuple):
    """A segment that is in memory only."""

    batch: pa.RecordBatch
    nbytes: int


class Segments:
    """Keeps segments. `add` may be called from any thread, the rest from one.

    Opening finds what an earlier run left in `folder`; `restore` then says which segments are needed. Raises
    CheckpointError if the folder cannot be used.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._lock = Lock()
        self._next = 0
        self._loose: dict[int, _Loose] = {}
        self._loose_bytes = 0
        self._packs: list[Pack] = []
        self._place: dict[int, tuple[Pack, int]] = {}
        self._damaged: list[CheckpointError] = []
        self._dropped: list[tuple[Path, int]] = []
        self._clock = 0
        self._open()

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        """Keep a table in memory; returns its number, greater than all before. Columns have equal lengths."""
        batch = batch_from(columns)
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._loose[number] = _Loose(batch, batch.nbytes)
            self._loose_bytes += self._loose[number].nbytes
        return number

    def table(self, number: int, /) -> Mapping[str, pa.Array]:
        """The columns of a segment."""
        batch = self._segment(number)
        return dict(zip(batch.schema.names, batch.columns, strict=True))

    def replace(self, number: int, columns: Mapping[str, pa.Array], /) -> None:
        """Give a segment that `add` has just made other columns, of as many rows."""
        batch = batch_from(columns)
        with self._lock:
            self._loose_bytes += batch.nbytes - self._loose[number].nbytes
            self._loose[number] = _Loose(batch, batch.nbytes)

    def gather(
        self, segment: Numbers, row: npt.NDArray[np.int64], names: Sequence[str] | None = None
    ) -> Iterator[tuple[int, Columns]]:
        """Rows by the numbers of their segments and their index there, in the order given, in runs of one schema.

        Yields the number of a run's first row, and its columns, or those of `names` that it has. A column without any
        value in a segment takes the type that it has in the others. Raises CheckpointError naming a damaged file.
        """
        if not segment.size:
            return
        numbers, inverse = np.unique(segment, return_inverse=True)
        batches: list[pa.RecordBatch] = []
        known: dict[int, int] = {}
        where = np.empty((numbers.size, 2), np.int64)
        for index, number in enumerate(numbers.tolist()):
            batch, first = self._find(number)
            where[index] = known.setdefault(id(batch), len(batches)), first
            if len(known) > len(batches):
                batches.append(
                    batch if names is None else batch.select([n for n in names if n in batch.schema.names])
                )
        yield from runs(batches, where[inverse, 0], row + where[inverse, 1])

    def flush(self) -> None:
        """Write all segments that are not on disk yet, so that a checkpoint can name them. Raises OutputError."""
        while self._loose_on_hand():
            self._write_pack()

    def keep(self, numbers: Numbers) -> None:
        """Drop all but these segments. Not between `add` and the join of the events whose rows were added."""
        needed = set(numbers.tolist())
        with self._lock:
            self._loose = {number: loose for number, loose in self._loose.items() if number in needed}
            self._loose_bytes = sum(loose.nbytes for loose in self._loose.values())
            gone = [each for each in self._packs if needed.isdisjoint(each.numbers)]
            self._packs = [each for each in self._packs if not needed.isdisjoint(each.numbers)]
            for each in gone:
                each.forget()
                self._dropped.append((each.path, KEPT))
                for number in each.numbers:
                    del self._place[number]

    def export(self, numbers: Numbers) -> list[bytes]:
        """These segments as the bytes of packs, for `import_packs` in another folder. Raises CheckpointError."""
        groups: list[tuple[pa.Schema, list[int], list[pa.RecordBatch]]] = []
        for number in numbers.tolist():
            batch = self._segment(number)
            shared = merged_schema([groups[-1][0], batch.schema]) if groups else None
            if shared is None:
                groups.append((batch.schema, [number], [batch]))
            else:
                groups[-1] = (shared, [*groups[-1][1], number], [*groups[-1][2], batch])
        return [
            file.dumps(
                *_described(
                    of,
                    [b.num_rows for b in batches],
                    joined_batches([adapted(batch, schema) for batch in batches]),
                )
            )
            for schema, of, batches in groups
        ]

    def committed(self) -> None:
        """A checkpoint was written: delete files that no kept checkpoint can name."""
        left = [(path, commits - 1) for path, commits in self._dropped]
        for path, commits in left:
            if not commits:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        self._dropped = [(path, commits) for path, commits in left if commits]

    def restore(self, numbers: Numbers) -> None:
        """Continue from a checkpoint that names these segments. Raises CheckpointError if one is missing."""
        missing = [number for number in numbers.tolist() if number not in self._place]
        if missing:
            damage = f"; {self._damaged[0]}" if self._damaged else ""
            raise CheckpointError(
                f"{self._folder} lacks {counted(len(missing), 'segment')} that the checkpoint names, the first is "
                f"{missing[0]}{damage}; put the files back, or move the newest checkpoint away to go on from the one "
                "before it"
            )
        self.keep(numbers)

    def relieve(self, needed: Callable[[], Numbers]) -> None:
        """Bring memory below its bound: drop unneeded segments, then copies of those on disk, then write.

        Raises OutputError if the disk is full: nothing is lost, and it can be called again later.
        """
        if self.memory_used <= self._memory_bytes:
            return
        self.keep(needed())
        spared = int(self._memory_bytes * _SPARED)
        in_memory = [each for each in self._packs if each.nbytes]
        for each in sorted(in_memory, key=lambda each: each.needed):
            if self.memory_used <= spared:
                return
            each.forget()
        while self.memory_used > spared and self._loose_on_hand():
            self._write_pack().forget()

    @property
    def memory_used(self) -> int:
        """Bytes of rows in memory."""
        with self._lock:
            return self._loose_bytes + sum(each.nbytes for each in self._packs)

    def _open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for begun in self._folder.glob(f"*{BEGUN}"):
                begun.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot use {self._folder}: {error.strerror}") from error
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                self._take(opened(path))
            except CheckpointError as error:
                self._damaged.append(error)
                self._dropped.append((path, KEPT))
        self._next = 1 + max([*self._place, *(first_of(path) for path, _ in self._dropped)], default=-1)

    def _take(self, new: Pack) -> None:
        self._packs.append(new)
        first = 0
        for number, rows in zip(new.numbers, new.rows, strict=True):
            self._place[number] = new, first
            first += rows

    def _find(self, number: int) -> tuple[pa.RecordBatch, int]:
        with self._lock:
            if number in self._loose:
                return self._loose[number].batch, 0
            each, first = self._place[number]
        self._clock += 1
        each.needed = self._clock
        return each.batch(), first

    def _segment(self, number: int) -> pa.RecordBatch:
        with self._lock:
            if number in self._loose:
                return self._loose[number].batch
            pack, first = self._place[number]
        return pack.batch().slice(first, pack.rows[pack.numbers.index(number)])

    def _loose_on_hand(self) -> bool:
        with self._lock:
            return bool(self._loose)

    def _write_pack(self) -> Pack:
        """Write the oldest segments that are not on disk, as many as fit one file and one schema."""
        with self._lock:
            numbers, batches, schema = self._next_pack()
        together = joined_batches([adapted(batch, schema) for batch in batches])
        written = write(self._folder, numbers, [batch.num_rows for batch in batches], together)
        with self._lock:
            self._take(written)
            for number in numbers:
                self._loose_bytes -= self._loose.pop(number).nbytes
        return written

    def _next_pack(self) -> tuple[list[int], list[pa.RecordBatch], pa.Schema]:
        numbers: list[int] = []
        schema, size = None, 0
        for number, loose in self._loose.items():
            shared = merged_schema([schema or loose.batch.schema, loose.batch.schema])
            if shared is None:
                continue
            if numbers and size + loose.nbytes > PACK_BYTES:
                break
            numbers.append(number)
            schema, size = shared, size + loose.nbytes
        return numbers, [self._loose[number].batch for number in numbers], schema


Int64s = npt.NDArray[np.int64]
Columns = dict[str, pa.Array]

MOST_ROWS = 1 << 17
"""The most rows in a run, so that its text stays far below Arrow's limit of 2 GiB."""


def merged_schema(schemas: Sequence[pa.Schema]) -> pa.Schema | None:
    """The schema that tables with these schemas can share, or None.

    They may differ only in columns without any value, which have Arrow's null type and take the others' type.
    """
    first = schemas[0]
    if all(schema.equals(first) for schema in schemas):
        return first
    if any(schema.names != first.names for schema in schemas):
        return None
    types = []
    for index in range(len(first)):
        found = {
            schema.field(index).type for schema in schemas if not pa.types.is_null(schema.field(index).type)
        }
        if len(found) > 1:
            return None
        types.append(found.pop() if found else pa.null())
    return pa.schema(list(zip(first.names, types, strict=True)))


def adapted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows, with columns without values in the schema's type."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        pa.nulls(batch.num_rows, field.type) if pa.types.is_null(column.type) else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def joined_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one."""
    if len(batches) == 1:
        return batches[0]
    columns = [
        pa.concat_arrays([batch.column(index) for batch in batches])
        for index in range(len(batches[0].schema))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def runs(batches: Sequence[pa.RecordBatch], batch_of: Int64s, row: Int64s) -> Iterator[tuple[int, Columns]]:
    """Rows in their order, in runs of one schema: the number of a run's first row, and its columns.

    batch_of, row: int64[m], where each row is. A run has at most MOST_ROWS rows.
    """
    groups = _groups([batch.schema for batch in batches])
    group_of = np.array([group for group, _ in groups], np.int64)[batch_of]
    edges = np.flatnonzero(np.diff(group_of)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), row.size], strict=True):
        for first in range(begin, end, MOST_ROWS):
            mine = slice(first, min(first + MOST_ROWS, end))
            schema = groups[int(batch_of[first])][1]
            run = _take(batches, schema, batch_of[mine], row[mine])
            yield first, dict(zip(schema.names, run.columns, strict=True))


def _groups(schemas: Sequence[pa.Schema]) -> list[tuple[int, pa.Schema]]:
    """Of each schema, the number of its group and the schema that the whole group shares."""
    together: list[list[pa.Schema]] = []
    group_of = []
    for schema in schemas:
        for number, group in enumerate(together):
            if (shared := merged_schema([*group, schema])) is not None:
                together[number] = [shared]
                break
        else:
            number = len(together)
            together.append([schema])
        group_of.append(number)
    return [(number, together[number][0]) for number in group_of]


def _take(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, batch_of: Int64s, row: Int64s
) -> pa.RecordBatch:
    """One take in each batch, then one that brings what was taken into order, where it is not."""
    order = np.argsort(batch_of, kind="stable")
    numbers, starts = np.unique(batch_of[order], return_index=True)
    sorted_rows = row[order]
    taken = [
        adapted(_rows_of(batches[number], rows), schema)
        for number, rows in zip(numbers.tolist(), np.split(sorted_rows, starts[1:]), strict=True)
    ]
    together = joined_batches(taken)
    if np.array_equal(order, np.arange(order.size)):
        return together
    back = np.empty(order.size, np.int64)
    back[order] = np.arange(order.size)
    return together.take(pa.array(back))


def _rows_of(batch: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    first = int(rows[0])
    if int(rows[-1]) - first == rows.size - 1 and bool((np.diff(rows) == 1).all()):
        return batch.slice(first, rows.size)
    return batch.take(pa.array(rows))


def batch_from(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Columns of equal lengths as a batch."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


SUFFIX = ".rows"
BEGUN = ".begun"
_ROWS = "rows"


class Pack:
    """Segments on disk, and in memory while `batch` is kept.

    numbers: of its segments; rows: of each; needed: the clock of its last use, set by the caller; nbytes: memory used,
    without mapped files, which belong to the page cache.
    """

    def __init__(self, path: Path, numbers: Sequence[int], rows: Sequence[int]) -> None:
        self.path = path
        self.numbers = list(numbers)
        self.rows = list(rows)
        self.needed = 0
        self.nbytes = 0
        self._in_memory: pa.RecordBatch | None = None
        self._mapped: pa.RecordBatch | None = None

    def batch(self) -> pa.RecordBatch:
        """The rows of all its segments; the file is verified before it is used. Raises CheckpointError naming it."""
        if self._in_memory is not None:
            return self._in_memory
        if self._mapped is None:
            self._mapped = self._read()
        return self._mapped

    def remember(self, batch: pa.RecordBatch) -> None:
        """Keep the batch in memory until `forget`."""
        self._in_memory, self.nbytes = batch, batch.nbytes

    def forget(self) -> None:
        """Release the memory; batches returned before stay valid."""
        self._in_memory, self._mapped, self.nbytes = None, None, 0

    def _read(self) -> pa.RecordBatch:
        _, arrays = file.read(self.path)
        try:
            with pa.ipc.open_stream(pa.py_buffer(arrays[_ROWS])) as stream:
                batch = stream.read_next_batch()
        except (pa.ArrowInvalid, StopIteration, KeyError) as error:
            raise CheckpointError(f"{self.path} is not a file of segments: {error}") from None
        if batch.num_rows != sum(self.rows):
            raise CheckpointError(f"{self.path}: got {batch.num_rows} rows, expected {sum(self.rows)}")
        return batch


def write(folder: Path, numbers: Sequence[int], rows: Sequence[int], batch: pa.RecordBatch) -> Pack:
    """Write the segments of one batch, in order. Raises OutputError, and leaves no file, if the disk is full."""
    path = _path_of(folder, numbers[0])
    try:
        with whole_file(path, path.with_suffix(BEGUN)) as out:
            file.write(out, *_described(numbers, rows, batch))
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; nothing is lost, the rows that wait for their clicks are still in "
            "memory: make room there, and it is tried again"
        ) from error
    pack = Pack(path, numbers, rows)
    pack.remember(batch)
    return pack


def import_packs(folder: Path, packs: Sequence[bytes]) -> None:
    """Replace the segments of a folder that is not open by exported ones. Raises OutputError, CheckpointError."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        for data in packs:
            description, _ = file.loads(data, "exported rows")
            path = _path_of(folder, description["segments"][0])
            with whole_file(path, path.with_suffix(BEGUN)) as out:
                out.write(data)
    except OSError as error:
        raise OutputError(
            f"cannot write the rows that wait for their clicks to {folder}: {error.strerror}"
        ) from error


def _described(
    numbers: Sequence[int], rows: Sequence[int], batch: pa.RecordBatch
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The description and the array of a pack."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return {"segments": list(numbers), "rows": list(rows)}, {_ROWS: np.frombuffer(sink.getbuffer(), np.uint8)}


def _path_of(folder: Path, first: int) -> Path:
    return folder / f"{first:010}{SUFFIX}"  # see first_of


def first_of(path: Path) -> int:
    """The number of a pack's first segment, by its file name; -1 for other names."""
    return int(path.stem) if path.stem.isascii() and path.stem.isdigit() else -1


def opened(path: Path) -> Pack:
    """A pack that an earlier run has written: its description is verified now, its rows when they are read.

    Raises CheckpointError naming the file.
    """
    description = file.read_description(path)
    try:
        return Pack(path, description["segments"], description["rows"])
    except KeyError:
        raise CheckpointError(f"{path} is not a file of segments") from None
