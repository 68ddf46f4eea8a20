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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import CheckpointError, OutputError, counted
from model_store.files import elsewhere, whole_file
from trainer.checkpoint import file
from trainer.checkpoint.folder import KEPT
from trainer.formats.stored_rows import joined, merged_schema, runs

Numbers = npt.NDArray[np.int32]

PACK_BYTES = 64 << 20
_FREED_TO = 0.75  # of the memory bound, once that is exceeded
_SUFFIX = ".rows"
_BEGUN = ".begun"
_ROWS = "rows"


class WaitingRows(Protocol):
    """Where the rows of impressions wait for feedback."""

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        """Keep a table; returns its number."""

    def table(self, number: int, /) -> Mapping[str, pa.Array]:
        """The columns of a segment."""

    def replace(self, number: int, columns: Mapping[str, pa.Array], /) -> None:
        """Give a segment that `add` has just made other columns, also of another length."""


class Segments:
    """Keeps segments. `add` may be called from any thread, the rest from one. memory_used: bytes of rows in memory.

    Opening finds what an earlier run left in `folder`; `restore` then says which segments are needed. Raises
    CheckpointError if the folder cannot be used.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._folder, self._memory_bytes = folder, memory_bytes
        self.memory_used = 0
        self._lock = Lock()
        self._packs: list[_Pack] = []
        self._found: dict[int, tuple[_Pack, int]] = {}
        self._damaged: list[CheckpointError] = []
        self._dropped: list[tuple[Path, int]] = []
        self._clock = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for begun in folder.glob(f"*{_BEGUN}"):
                begun.unlink()
        except OSError as error:
            raise CheckpointError(f"cannot use {folder}: {error.strerror}") from error
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            try:
                self._insert(_Pack.opened(path))
            except CheckpointError as error:
                self._damaged.append(error)
                self._dropped.append((path, KEPT))
        # A file is named by its first segment.
        damaged = [int(path.stem) for path, _ in self._dropped if path.stem.isascii() and path.stem.isdigit()]
        self._next = 1 + max([*self._found, *damaged], default=-1)

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        """Keep a table in memory; returns its number, greater than all before. Columns have equal lengths."""
        batch = _batch_of(columns)
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._insert(_Pack([number], [batch.num_rows], batch=batch))
        return number

    def table(self, number: int, /) -> Mapping[str, pa.Array]:
        """The columns of a segment."""
        batch = self._segment(number)
        return dict(zip(batch.schema.names, batch.columns, strict=True))

    def replace(self, number: int, columns: Mapping[str, pa.Array], /) -> None:
        """Give a segment that `add` has just made other columns, also of another length."""
        with self._lock:
            pack, _ = self._found[number]
            before, batch = pack.nbytes, _batch_of(columns)
            pack.remember(batch)
            pack.rows = [batch.num_rows]  # no other segment is in its pack yet
            self.memory_used += pack.nbytes - before

    def gather(
        self, segment: Numbers, row: npt.NDArray[np.int64], names: Sequence[str] | None = None
    ) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """Rows by the numbers of their segments and their index there, in the order given, in runs of one schema.

        Yields the number of a run's first row, and its columns, or those of `names` that it has. A column without any
        value in a segment takes the type that it has in the others. Raises CheckpointError naming a damaged file.
        """
        if not segment.size:
            return
        numbers, inverse = np.unique(segment, return_inverse=True)
        batches: list[pa.RecordBatch] = []
        known: dict[_Pack, int] = {}
        where = np.empty((numbers.size, 2), np.int64)
        self._clock += 1
        for index, number in enumerate(numbers.tolist()):
            with self._lock:
                pack, first = self._found[number]
            if pack not in known:
                known[pack], pack.needed, batch = len(batches), self._clock, pack.batch()
                batches.append(
                    batch if names is None else batch.select([n for n in names if n in batch.schema.names])
                )
            where[index] = known[pack], first
        yield from runs(batches, where[inverse, 0], row + where[inverse, 1])

    def flush(self) -> None:
        """Write all segments that are not on disk yet, so that a checkpoint can name them. Raises OutputError."""
        for _ in self._write():
            pass

    def keep(self, numbers: Numbers) -> None:
        """Drop all but these segments. Not between `add` and the join of the events whose rows were added."""
        needed = set(numbers.tolist())
        with self._lock:
            for pack in self._packs:
                if needed.isdisjoint(pack.numbers):
                    if pack.path is not None:
                        self._dropped.append((pack.path, KEPT))
                    self._forget(pack)
                    for number in pack.numbers:
                        del self._found[number]
            self._packs = [pack for pack in self._packs if not needed.isdisjoint(pack.numbers)]

    def erase(self, segment: Numbers, row: npt.NDArray[np.int64], rows: Numbers) -> None:
        """Make all values of these runs of rows null, each in a segment; on disk too. Raises OutputError."""
        masks: dict[_Pack, npt.NDArray[np.bool_]] = {}
        for number, first, count in zip(segment.tolist(), row.tolist(), rows.tolist(), strict=True):
            if number in self._found:  # else dropped, as no row of it is needed
                pack, start = self._found[number]
                mask = masks.setdefault(pack, np.zeros(sum(pack.rows), np.bool_))
                mask[start + first : start + first + count] = True
        for pack, mask in masks.items():
            batch = pack.batch().take(pa.array(np.arange(mask.size), mask=mask))
            if pack.path is not None:
                self._write_pack(pack.path, pack.numbers, pack.rows, batch)
            with self._lock:
                self._forget(pack)
                pack.remember(batch)
                self.memory_used += pack.nbytes

    def export(self, numbers: Numbers) -> list[bytes]:
        """These segments as the bytes of packs, for `import_packs` in another folder. Raises CheckpointError."""
        groups = _grouped((number, self._segment(number)) for number in numbers.tolist())
        return [file.dumps(*_described(*group)) for group in groups]

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
        missing = [number for number in numbers.tolist() if number not in self._found]
        if missing:
            damage = f"; {self._damaged[0]}" if self._damaged else ""
            raise CheckpointError(
                f"{self._folder} lacks {counted(len(missing), 'segment')} that the checkpoint names, the first is "
                f"{missing[0]}{damage}; put the files back, or move the newest checkpoint away to go on from the one "
                "before it"
            )
        self.keep(numbers)

    def free_memory(self, needed: Callable[[], Numbers]) -> None:
        """Bring memory below its bound: drop unneeded segments, then copies of those on disk, then write.

        Raises OutputError if the disk is full: nothing is lost, and it can be called again later.
        """
        if self.memory_used <= self._memory_bytes:
            return
        self.keep(needed())
        enough = int(self._memory_bytes * _FREED_TO)
        copies = sorted(
            (pack for pack in self._packs if pack.path and pack.nbytes), key=lambda pack: pack.needed
        )
        on_disk = chain(copies, self._write())
        while self.memory_used > enough and (pack := next(on_disk, None)) is not None:
            with self._lock:
                self._forget(pack)

    def _insert(self, pack: _Pack) -> None:
        self._packs.append(pack)
        self.memory_used += pack.nbytes
        first = 0
        for number, rows in zip(pack.numbers, pack.rows, strict=True):
            self._found[number] = pack, first
            first += rows

    def _forget(self, pack: _Pack) -> None:
        self.memory_used -= pack.nbytes
        pack.forget()

    def _segment(self, number: int) -> pa.RecordBatch:
        with self._lock:
            pack, first = self._found[number]
        return pack.batch().slice(first, pack.rows[pack.numbers.index(number)])

    def _write(self) -> Iterator[_Pack]:
        """Write the segments that are not on disk, pack by pack. Leaves no file, and loses nothing, if it fails."""
        with self._lock:
            loose = [pack for pack in self._packs if pack.path is None]
        for numbers, rows, batch in _grouped((pack.numbers[0], pack.batch()) for pack in loose):
            path = self._folder / f"{numbers[0]:010}{_SUFFIX}"
            self._write_pack(path, numbers, rows, batch)
            with self._lock:
                written = {self._found[number][0] for number in numbers}
                for pack in written:
                    self._forget(pack)
                self._packs = [pack for pack in self._packs if pack not in written]
                self._insert(_Pack(numbers, rows, path, batch))
            yield self._packs[-1]

    @staticmethod
    def _write_pack(path: Path, numbers: Sequence[int], rows: Sequence[int], batch: pa.RecordBatch) -> None:
        try:
            with whole_file(path, path.with_suffix(_BEGUN)) as out:
                file.write(out, *_described(numbers, rows, batch))
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; nothing is lost, the rows that wait for their clicks are "
                f"still in memory, and it is tried again{elsewhere(error, 'make room there')}"
            ) from error


class _Pack:
    """Segments together: one in memory that is not on disk yet, or those of a file, in memory too until `forget`.

    numbers: of its segments; rows: of each; needed: the clock of its last use, set by the caller; nbytes: memory used,
    without mapped files, which belong to the page cache.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        rows: Sequence[int],
        path: Path | None = None,
        batch: pa.RecordBatch | None = None,
    ) -> None:
        self.numbers, self.rows, self.path = list(numbers), list(rows), path
        self.needed = self.nbytes = 0
        self._batch: pa.RecordBatch | None = None
        self._mapped: pa.RecordBatch | None = None
        if batch is not None:
            self.remember(batch)

    @classmethod
    def opened(cls, path: Path) -> _Pack:
        """A pack that an earlier run has written: its description is verified now, its rows when they are read.

        Raises CheckpointError naming the file.
        """
        description = file.read_description(path)
        try:
            return cls(description["segments"], description["rows"], path)
        except KeyError:
            raise CheckpointError(f"{path} is not a file of segments") from None

    def batch(self) -> pa.RecordBatch:
        """The rows of all its segments; the file is verified before it is used. Raises CheckpointError naming it."""
        if self._batch is not None:
            return self._batch
        if self._mapped is None:
            assert self.path is not None
            _, arrays = file.read(self.path)
            try:
                with pa.ipc.open_stream(pa.py_buffer(arrays[_ROWS])) as stream:
                    batch = stream.read_next_batch()
            except (pa.ArrowInvalid, StopIteration, KeyError) as error:
                raise CheckpointError(f"{self.path} is not a file of segments: {error}") from None
            if batch.num_rows != sum(self.rows):
                raise CheckpointError(f"{self.path}: got {batch.num_rows} rows, expected {sum(self.rows)}")
            self._mapped = batch
        return self._mapped

    def remember(self, batch: pa.RecordBatch) -> None:
        """Keep the batch in memory until `forget`."""
        self._batch, self.nbytes = batch, batch.nbytes

    def forget(self) -> None:
        """Release the memory; batches returned before stay valid."""
        self._batch, self._mapped, self.nbytes = None, None, 0


def import_packs(folder: Path, packs: Sequence[bytes]) -> None:
    """Replace the segments of a folder that is not open by exported ones. Raises OutputError, CheckpointError."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        for data in packs:
            description, _ = file.loads(data, "exported rows")
            path = folder / f"{description['segments'][0]:010}{_SUFFIX}"
            with whole_file(path, path.with_suffix(_BEGUN)) as out:
                out.write(data)
    except OSError as error:
        raise OutputError(
            f"cannot write the rows that wait for their clicks to {folder}: {error.strerror}"
        ) from error


def _batch_of(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _grouped(
    segments: Iterable[tuple[int, pa.RecordBatch]],
) -> Iterator[tuple[list[int], list[int], pa.RecordBatch]]:
    """Segments as packs, as many in one as fit a file and share a schema: their numbers, rows of each, and batch."""
    left = dict(segments)
    while left:
        schema, size = next(iter(left.values())).schema, 0
        numbers: list[int] = []
        for number, batch in left.items():
            shared = merged_schema(schema, batch.schema)
            if shared is not None and (not numbers or size + batch.nbytes <= PACK_BYTES):
                numbers.append(number)
                schema, size = shared, size + batch.nbytes
        batches = [left.pop(number) for number in numbers]
        yield numbers, [batch.num_rows for batch in batches], joined(batches, schema)


def _described(
    numbers: Sequence[int], rows: Sequence[int], batch: pa.RecordBatch
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The description and the array of a pack."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return {"segments": list(numbers), "rows": list(rows)}, {_ROWS: np.frombuffer(sink.getbuffer(), np.uint8)}
