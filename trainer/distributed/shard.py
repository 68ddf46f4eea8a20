"""Makes a worker's shard: the hashed rows of its part of a log, kept row by row and key by key.

In: a `ShardPlan`. Out: a `Shard`; the same plan over the same files gives the same arrays. Each batch is learned once
by the trainer's own model, whose weights methods may start from; keys have numbers in the order of its table.

The arrays are Arrow buffers: in memory that is grown in place, so a shard is never held twice, or, beyond the plan's
bound, in files without a name, which the system deletes with the process. Kernels read both through the same views.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import InputError, OutputError
from trainer.distributed.dealing import LogFiles, ShardPlan, open_part
from trainer.distributed.shard_kernels import (
    EntryArrays,
    claim_new,
    count_ids,
    hashes_of,
    move_numbers,
    number_keys,
    transpose,
)
from trainer.examples.examples_kernels import PROBABILITY_BITS, HashedRows, draw, number_single_rows
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import open_log
from trainer.formats.batch import RowBatch
from trainer.formats.rejects import Reject, RejectLog, RowCounts
from trainer.learn.metrics.tally import GroupSums
from trainer.learn.model import LearningModel

MOST = 2**31 - 1
"""The most rows and the most keys of a shard."""
MOST_LISTED = 100_000
"""The most bad rows that a shard names one by one."""
_SMALLEST = 1 << 20
_PIECE = 1 << 20
_NUMBERS = 1 << 16
_FULL = 60  # percent
_LINE_BITS = 40
_HELD_SEED = 0x5851F42D4C957F2D

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ShardKeys:
    """The keys of a shard's rows, in order of first occurrence, held-out rows included.

    hashes uint64, features uint16; data: their bytes end to end, offsets int64[keys + 1]; counts float64: occurrences
    in rows that are not held out.
    """

    hashes: Array
    features: Array
    data: Array
    offsets: Array
    counts: Array

    def texts(self, chosen: Array) -> tuple[Array, Array]:
        """The bytes of some keys end to end, and their offsets."""
        lengths = np.diff(self.offsets)[chosen]
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][chosen] - offsets[:-1], lengths)
        return self.data[at], offsets


@dataclass(frozen=True)
class Rows:
    """Rows: starts int64[rows + 1] into ids int32, key numbers, and x float64; labels float32; weights float64.

    x and weights are empty where all are 1. A key may occur more than once in a row.
    """

    starts: Array
    ids: Array
    x: Array
    labels: Array
    weights: Array

    @property
    def importance(self) -> float:
        """The sum of omega."""
        return float(self.weights.sum()) if self.weights.size else float(self.labels.size)

    def scaled(self, factor: float) -> Rows:
        """The rows with every omega multiplied."""
        return replace(
            self, weights=factor * (self.weights if self.weights.size else np.ones(self.labels.size))
        )


@dataclass(frozen=True)
class Columns:
    """The same by key: starts int64[keys + 1] into rows int32, in order, and x float64, empty where all are 1."""

    starts: Array
    rows: Array
    x: Array


@dataclass(frozen=True)
class Counts:
    """What was read.

    reasons: bad rows by category; listed: the first ones, under the names that the user gave their files.
    """

    rows: RowCounts = RowCounts()
    reasons: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Reject, ...] = ()

    @property
    def rejected(self) -> int:
        """The number of bad rows."""
        return sum(self.reasons.values())


@dataclass(frozen=True)
class ShardSummary:
    """A shard's figures, for the driver.

    clicks: rows with a click; importance: the sum of omega of the learned rows; log, held_files: what was read of the
    log, and of the files held out; progressive: the metrics of the first pass, each row predicted before it was
    learned, as sums that can be added; notes: for the user.
    """

    rows: int
    clicks: int
    importance: float
    held_rows: int
    keys: int
    nonzeros: int
    memory_bytes: int
    disk_bytes: int
    seconds: float
    log: Counts
    held_files: Counts
    progressive: GroupSums
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Shard:
    """One worker's rows.

    held: those held out, with the same key numbers; first: float64[keys, own], the weights after the first pass, 0 for
    keys of held-out rows only; progressive: the metrics of that pass; disk_bytes: of the arrays that are in files.
    """

    keys: ShardKeys
    rows: Rows
    columns: Columns
    held: Rows
    first: Array
    log: Counts
    held_files: Counts
    progressive: GroupSums
    notes: tuple[str, ...]
    disk_bytes: int

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        parts = (self.keys, self.rows, self.columns, self.held, self)
        return sum(
            each.nbytes for part in parts for each in vars(part).values() if isinstance(each, np.ndarray)
        )

    def summary(self, seconds: float) -> ShardSummary:
        """The figures. seconds: how long it took to make."""
        return ShardSummary(
            rows=int(self.rows.labels.size),
            clicks=int(np.count_nonzero(self.rows.labels)),
            importance=self.rows.importance,
            held_rows=int(self.held.labels.size),
            keys=int(self.keys.hashes.size),
            nonzeros=int(self.rows.ids.size),
            memory_bytes=self.nbytes - self.disk_bytes,
            disk_bytes=self.disk_bytes,
            seconds=seconds,
            log=self.log,
            held_files=self.held_files,
            progressive=self.progressive,
            notes=self.notes,
        )


def collect_rejects(summaries: Iterable[ShardSummary], plan: ShardPlan, rejects: RejectLog) -> None:
    """Report all workers' bad rows, in the order of the log: those listed one by one, the others by their number."""
    found = [counts for each in summaries for counts in (each.log, each.held_files)]
    names = [*plan.log.names, *(plan.held.names if plan.held is not None else ())]
    order = {name: number for number, name in reversed(list(enumerate(names)))}
    listed = [reject for counts in found for reject in counts.listed]
    for reject in sorted(listed, key=lambda each: (order[each.file], each.line)):
        rejects.add(reject)
    reasons = sum((Counter(counts.reasons) for counts in found), Counter[str]())
    rejects.add_unlisted(reasons - Counter(reject.category for reject in listed))


def build_shard(plan: ShardPlan) -> Shard:
    """Read, hash and learn the worker's part of the log.

    Raises InputError where a file is not the one of the plan, is damaged, or has a bad row with `strict`; OutputError
    where the rows cannot be written to files.
    """
    builder = _Builder(plan)
    log = builder.read(plan.log, plan.held_share)
    held_files = builder.read(plan.held, 1.0) if plan.held is not None else Counts()
    return builder.finish(log, held_files)


@dataclass(frozen=True, kw_only=True)
class _Examples(Examples):
    """Examples, and which rows are held out: bool[rows]."""

    held: npt.NDArray[np.bool_]


class _Maker(ExampleMaker):
    """Makes examples, and holds out a `share` of the requests; mine: the numbers of the reader's files in the log.

    A row without a request is one by itself, known by its file and line: the choice depends neither on the number of
    workers nor on who reads the row.
    """

    def __init__(self, plan: ShardPlan, mine: tuple[int, ...], share: float) -> None:
        super().__init__(plan.start.resolved)
        self._mine, self._share = mine, share
        self._seed = np.uint64(self.spec.learner.seed ^ _HELD_SEED)

    def make(self, batch: RowBatch) -> _Examples:
        """Hash a batch."""
        if batch.rows:
            number = self._mine[batch.stop.number]
            batch = replace(batch, first_row=(number << _LINE_BITS) + int(batch.lines[0]))
        examples = super().make(batch)
        return _Examples(**vars(examples), held=self._held(batch, examples))

    def _held(self, batch: RowBatch, examples: Examples) -> npt.NDArray[np.bool_]:
        held = np.full(examples.rows.size, self._share >= 1.0)
        if 0.0 < self._share < 1.0 and held.size:
            ids = examples.requests
            if not ids.size:
                of_rows = np.zeros(batch.rows, np.uint64)
                number_single_rows(of_rows, batch.first_row)
                ids = of_rows[examples.rows]
            threshold = np.uint64(self._share * (1 << PROBABILITY_BITS))
            draw(ids, np.zeros(held.size, np.bool_), self._seed, threshold, held)
        return held


class _Builder:
    """A shard in the making."""

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan
        self._space = _Space(plan.memory_bytes, plan.folder)
        self._model = LearningModel(ExampleMaker(plan.start.resolved))
        self._numbers = _Numbers()
        self._rows, self._held = _GrowingRows(self._space), _GrowingRows(self._space)
        self._notes: dict[str, None] = {}

    def read(self, files: LogFiles, share: float) -> Counts:
        """Read the worker's part of these files, and hold out this share of the requests."""
        if not files.mine:
            return Counts()
        maker = _Maker(self._plan, files.mine, share)
        log = replace(open_part(self._plan, files), on_note=self._note)
        counts, listed = Counts(), list[Reject]()
        rejects, names = RejectLog(strict=self._plan.strict), dict(zip(files.files, files.names, strict=True))
        with (
            open_log(log, start=self._plan.start) as opened,
            opened.examples(self._plan.threads, maker=maker) as stream,
        ):
            for examples in stream:
                assert isinstance(examples, _Examples)
                named = [replace(each, file=names[each.file]) for each in examples.rejects]
                rejects.add_all(named)
                listed += named[: MOST_LISTED - len(listed)]
                self._add(examples)
                counts = replace(counts, rows=counts.rows + examples.counts)
            for warning in opened.requests.warnings():
                self._note(warning)
        return replace(counts, reasons=rejects.counts, listed=tuple(listed))

    def finish(self, log: Counts, held_files: Counts) -> Shard:
        """The shard. What only the first pass needs is freed before the columns are made."""
        model, coordinates = self._model, self._model.coordinates
        table = model.table.keys()
        hashes = np.empty(self._numbers.known, np.uint64)
        hashes_of(self._numbers.table, hashes)
        first = coordinates.weights(table)
        progressive = model.metrics.group()
        del self._model, self._numbers, model, coordinates
        rows, held = self._rows.finish(), self._held.finish()
        columns = _columns(rows, hashes.size, self._space)
        counts = np.diff(columns.starts).astype(np.float64)
        return Shard(
            keys=ShardKeys(hashes, table.features, table.data, table.offsets, counts),
            rows=rows,
            columns=columns,
            held=held,
            first=first,
            log=log,
            held_files=held_files,
            progressive=progressive,
            notes=tuple(self._notes),
            disk_bytes=self._space.disk_bytes,
        )

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _add(self, examples: _Examples) -> None:
        """Learn the rows that are not held out, number the keys of all, and keep them."""
        if not examples.held.any():
            self._learn(examples)
        elif examples.held.all():
            self._keep_held(examples)
        else:
            self._learn(_only(examples, ~examples.held))
            self._keep_held(_only(examples, examples.held))
        self._space.check(self._rows, self._held)

    def _learn(self, examples: Examples) -> None:
        self._model.learn(examples)
        self._rows.add(examples.hashed, self._numbers.of(_hashes(examples.hashed)))

    def _keep_held(self, examples: Examples) -> None:
        """Admit the keys, without a weight, and keep the rows."""
        hashes, table = _hashes(examples.hashed), self._model.table
        while table.room < hashes.size:
            table.grow()
        added = np.empty(hashes.size, np.int64)
        count = claim_new(table.layout, hashes, added)
        table.used += int(count)
        self._model.keep_keys(examples, added[:count])
        self._held.add(examples.hashed, self._numbers.of(hashes))


def _hashes(rows: HashedRows) -> Array:
    """The hashes of the rows' keys; what follows them in the array is unused."""
    hashes: Array = rows.hashes[: int(rows.starts[-1])]
    return hashes


def _only(examples: _Examples, chosen: npt.NDArray[np.bool_]) -> Examples:
    """Some rows of a batch."""
    rows = examples.hashed
    lengths = np.diff(rows.starts)
    starts = np.zeros(int(chosen.sum()) + 1, np.int64)
    np.cumsum(lengths[chosen], out=starts[1:])
    entries = np.flatnonzero(np.repeat(chosen, lengths))
    hashed = HashedRows(
        starts=starts,
        hashes=rows.hashes[entries],
        features=rows.features[entries],
        x=rows.x[entries] if rows.x.size else rows.x,
        labels=rows.labels[chosen],
        weights=rows.weights[chosen] if rows.weights.size else rows.weights,
    )
    return replace(
        examples,
        rows=examples.rows[chosen],
        hashed=hashed,
        requests=examples.requests[chosen] if examples.requests.size else examples.requests,
        times=examples.times[chosen] if examples.times.size else examples.times,
        held=examples.held[chosen],
    )


class _Numbers:
    """Numbers for keys, by their hashes, in order of first occurrence: see `shard_kernels`."""

    def __init__(self) -> None:
        self.table = np.zeros(2 * _NUMBERS, np.uint64)
        self.known = 0

    def of(self, hashes: Array) -> Array:
        """The numbers of keys: int32[n]. Raises InputError if a shard has too many keys."""
        places = self.table.size // 2
        while (self.known + hashes.size) * 100 > places * _FULL:
            places *= 2
        if 2 * places > self.table.size:
            wider = np.zeros(2 * places, np.uint64)
            move_numbers(self.table, wider)
            self.table = wider
        ids = np.empty(hashes.size, np.int32)
        self.known = int(number_keys(self.table, hashes, ids, self.known))
        if self.known > MOST:
            raise _too_large("keys")
        return ids


def _too_large(what: str) -> InputError:
    return InputError(f"a worker's part of the log has more than {MOST:,} {what}; use more workers")


class _Space:
    """Where a shard's arrays are: in memory, or, once they exceed the `bound`, in nameless files in `folder`."""

    def __init__(self, bound: int | None, folder: str | None) -> None:
        self._bound, self._folder = bound, folder or tempfile.gettempdir()
        self._maps: list[mmap.mmap] = []
        self.spilled = False
        self.disk_bytes = 0

    def check(self, rows: _GrowingRows, held: _GrowingRows) -> None:
        """Move the rows to files if they, with the columns that will be made of them, exceed the bound."""
        if self._bound is None or self.spilled:
            return
        if rows.nbytes + rows.entry_bytes + held.nbytes > self._bound:
            self.spilled = True
            for each in (*rows.arrays, *held.arrays):
                each.spill()

    @property
    def piece_bytes(self) -> int | None:
        """Half the bound, for arrays that are made from others piece by piece; None: all at once."""
        return max((self._bound or 0) // 2, mmap.PAGESIZE) if self.spilled else None

    def file(self) -> BinaryIO:
        """A new nameless file. Raises OutputError."""
        try:
            return tempfile.TemporaryFile(prefix="ftrie-shard-", dir=self._folder, buffering=0)
        except OSError as error:
            raise self.unwritable(error) from error

    def empty(self, size: int, dtype: Any) -> Array:
        """A new array in memory or in a file."""
        nbytes = size * np.dtype(dtype).itemsize
        if not nbytes:
            return np.empty(0, dtype)
        if not self.spilled:
            return _view(_anonymous(nbytes), dtype)
        with self.file() as file:
            try:
                os.posix_fallocate(
                    file.fileno(), 0, nbytes
                )  # a full disk is met here, not while a kernel writes
            except OSError as error:
                raise self.unwritable(error) from error
            return self.mapped(file, nbytes, dtype)

    def mapped(self, file: BinaryIO, nbytes: int, dtype: Any) -> Array:
        """The array in a file."""
        opened = mmap.mmap(file.fileno(), nbytes)
        self._maps.append(opened)
        self.disk_bytes += nbytes
        return _view(opened, dtype)

    def release(self) -> None:
        """Let the system take back the memory of mapped files; their content stays."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)

    def unwritable(self, error: OSError) -> OutputError:
        """The error of a file that cannot be written."""
        return OutputError(
            f"a worker's rows cannot be written to a temporary file in {self._folder}: {error.strerror}; "
            "TMPDIR names another folder, a larger --shard-memory keeps more in memory, and more workers have fewer "
            "rows each"
        )


def _anonymous(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _view(memory: mmap.mmap, dtype: Any) -> Array:
    """Memory as an array over an Arrow buffer."""
    return np.frombuffer(pa.py_buffer(memory), dtype)


class _Growing:
    """An array that grows at its end. In memory it grows in place: pages that are not written take no room."""

    def __init__(self, space: _Space, dtype: Any) -> None:
        self._space, self._dtype = space, np.dtype(dtype)
        self._memory: mmap.mmap | None = None
        self._file: BinaryIO | None = None
        self.nbytes = 0
        if space.spilled:
            self.spill()

    def add(self, values: Array) -> None:
        """Append values. Raises OutputError."""
        plain: Any = np.ascontiguousarray(values, self._dtype)
        data = memoryview(plain).cast("B")
        if self._file is not None:
            self._write(data)
        elif data.nbytes:
            end = self.nbytes + data.nbytes
            if self._memory is None:
                self._memory = _anonymous(max(_SMALLEST, end))
            elif end > len(self._memory):
                self._memory.resize(max(end, 2 * len(self._memory)))
            self._memory[self.nbytes : end] = data
        self.nbytes += data.nbytes

    def spill(self) -> None:
        """Move to a file. Raises OutputError."""
        self._file = self._space.file()
        if self._memory is not None:
            size, self.nbytes = self.nbytes, 0
            with self._memory as memory:
                for at in range(0, size, _PIECE):
                    piece = memory[at : min(at + _PIECE, size)]
                    self._write(memoryview(piece))
                    self.nbytes += len(piece)
            self._memory = None

    def finish(self) -> Array:
        """The array; no more can be added."""
        if not self.nbytes:
            return np.empty(0, self._dtype)
        if self._file is not None:
            with self._file as file:
                return self._space.mapped(file, self.nbytes, self._dtype)
        assert self._memory is not None
        self._memory.resize(self.nbytes)
        return _view(self._memory, self._dtype)

    def _write(self, data: memoryview) -> None:
        assert self._file is not None
        at = self.nbytes
        try:
            while data:
                written = os.pwrite(self._file.fileno(), data, at)
                data, at = data[written:], at + written
        except OSError as error:
            raise self._space.unwritable(error) from error


class _GrowingOnes(_Growing):
    """An array that stays empty while all its values are 1."""

    def __init__(self, space: _Space) -> None:
        super().__init__(space, np.float64)
        self._ones = 0

    def add_or_ones(self, values: Array, count: int) -> None:
        """Append `count` values; none given: all are 1."""
        if not self.nbytes and (not values.size or (values == 1.0).all()):
            self._ones += count
            return
        while self._ones:
            some = min(self._ones, _PIECE)
            self.add(np.ones(some))
            self._ones -= some
        self.add(values if values.size else np.ones(count))


class _GrowingRows:
    """Rows that are added batch by batch."""

    def __init__(self, space: _Space) -> None:
        self._starts, self._ids = _Growing(space, np.int64), _Growing(space, np.int32)
        self._labels = _Growing(space, np.float32)
        self._x, self._weights = _GrowingOnes(space), _GrowingOnes(space)
        self._starts.add(np.zeros(1))
        self._entries = self._count = 0

    @property
    def arrays(self) -> tuple[_Growing, ...]:
        """All arrays."""
        return self._starts, self._ids, self._labels, self._x, self._weights

    @property
    def entry_bytes(self) -> int:
        """The bytes of what stands in the columns as well: key numbers and x."""
        return self._ids.nbytes + self._x.nbytes

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(each.nbytes for each in self.arrays)

    def add(self, rows: HashedRows, ids: Array) -> None:
        """Add rows with these key numbers. Raises InputError if a shard has too many rows, OutputError."""
        used, size = int(rows.starts[-1]), int(rows.labels.size)
        self._count += size
        if self._count > MOST:
            raise _too_large("rows")
        self._starts.add(rows.starts[1:] + self._entries)
        self._ids.add(ids)
        self._x.add_or_ones(rows.x[:used], used)
        self._labels.add(rows.labels)
        self._weights.add_or_ones(rows.weights, size)
        self._entries += used

    def finish(self) -> Rows:
        """The rows; no more can be added."""
        starts, ids, labels, x, weights = (each.finish() for each in self.arrays)
        return Rows(starts, ids, x, labels, weights)


def _columns(rows: Rows, keys: int, space: _Space) -> Columns:
    """The columns of rows: a counting sort; where the space is bounded, by ranges of keys, and those by ranges of rows.

    A range of rows and one of keys have together about as many bytes as the bound.
    """
    entries = EntryArrays(rows.starts, rows.ids, rows.x)
    starts = np.zeros(keys + 1, np.int64)
    of_rows, x = space.empty(rows.ids.size, np.int32), space.empty(rows.x.size, np.float64)
    at_once = (space.piece_bytes or rows.ids.nbytes + rows.x.nbytes) // (12 if rows.x.size else 4)
    for begin, end in _ranges(rows.starts, at_once):
        count_ids(rows.ids[rows.starts[begin] : rows.starts[end]], starts[1:])
        space.release()
    np.cumsum(starts, out=starts)
    for first, last in _ranges(starts, at_once):
        cursor = starts[first:last].copy()
        for begin, end in _ranges(rows.starts, at_once):
            transpose(entries, begin, end, first, last, cursor, of_rows, x)
            space.release()
    return Columns(starts, of_rows, x)


def _ranges(starts: Array, at_once: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows or keys, by where their entries start: one after another, each of about `at_once` entries."""
    first = 0
    while first < starts.size - 1:
        last = int(np.searchsorted(starts, starts[first] + max(at_once, 1), "right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
