"""Makes a worker's shard: the hashed rows of its part of a log, kept row by row and key by key.

In: a `ShardPlan`. Out: a `Shard`; the same plan over the same files gives the same arrays. Each batch is learned once
by the trainer's own model, whose weights methods may start from; keys have numbers in the order of its table.

The arrays of rows are files without a name, mapped into memory; kernels read them as any array. They are in memory, or,
where the plan bounds that, on disk: the system writes and reads what it has no room for, and deletes them with the
process. What is read is kept as hashes, and numbered in place once all keys are known, so a shard is never held twice.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from model_store.errors import InputError, OutputError
from model_store.hash_kernels import hash_keys
from trainer.distributed.dealing import LogFiles, ShardPlan, open_part
from trainer.distributed.shard_kernels import ShardColumns, ShardRows, transpose
from trainer.examples.examples_kernels import PROBABILITY_BITS, HashedRows, draw, number_single_rows
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import open_log
from trainer.formats.batch import RowBatch, mark_of
from trainer.formats.rejects import Reject, RejectLog, RowCounts
from trainer.learn.metrics.tally import GroupSums
from trainer.learn.model import LearningModel
from trainer.learn.table_kernels import claim_keys

MOST = 2**31 - 1
"""The most rows and the most keys of a shard."""
MOST_LISTED = 100_000
"""The most bad rows that a shard names one by one."""
_PIECE = 1 << 17
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
class PartCounts:
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

    clicks: rows with a click; importance: the sum of omega of the learned rows; seconds: it took to make it; log,
    held_files: what was read of the log, and of the files held out; progressive: the metrics of the first pass, each
    row predicted before it was learned, as sums that can be added; notes: for the user.
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
    log: PartCounts
    held_files: PartCounts
    progressive: GroupSums
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Shard:
    """One worker's rows.

    held: those held out, with the same key numbers; first: float64[keys, own], the weights after the first pass, 0 for
    keys of held-out rows only.
    """

    keys: ShardKeys
    rows: ShardRows
    columns: ShardColumns
    held: ShardRows
    first: Array
    summary: ShardSummary


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
    held_files = builder.read(plan.held, 1.0) if plan.held is not None else PartCounts()
    return builder.finish(log, held_files)


@dataclass(frozen=True, kw_only=True)
class _Examples(Examples):
    """Examples, and which rows are held out: bool[rows]."""

    held: npt.NDArray[np.bool_]

    def only(self, chosen: npt.NDArray[np.bool_]) -> Examples:
        """Some of the rows."""
        if chosen.all():
            return self
        rows, lengths = self.hashed, np.diff(self.hashed.starts)
        entries = np.flatnonzero(np.repeat(chosen, lengths))
        hashed = HashedRows(
            starts=np.concatenate([[0], np.cumsum(lengths[chosen])]),
            hashes=rows.hashes[entries],
            features=rows.features[entries],
            x=rows.x[entries] if rows.x.size else rows.x,
            labels=rows.labels[chosen],
            weights=rows.weights[chosen] if rows.weights.size else rows.weights,
        )
        return replace(
            self,
            rows=self.rows[chosen],
            hashed=hashed,
            requests=self.requests[chosen] if self.requests.size else self.requests,
            times=self.times[chosen] if self.times.size else self.times,
            held=self.held[chosen],
        )


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
            file = self._mine[batch.stop.number]
            batch = replace(batch, first_row=mark_of(file, int(batch.lines[0])))
        examples = super().make(batch)
        held = np.full(examples.rows.size, self._share >= 1.0)
        if 0.0 < self._share < 1.0 and held.size:
            ids = examples.requests
            if not ids.size:
                of_rows = np.zeros(batch.rows, np.uint64)
                number_single_rows(of_rows, batch.first_row)
                ids = of_rows[examples.rows]
            threshold = np.uint64(self._share * (1 << PROBABILITY_BITS))
            draw(ids, np.zeros(held.size, np.bool_), self._seed, threshold, held)
        return _Examples(**vars(examples), held=held)


class _Builder:
    """A shard in the making."""

    def __init__(self, plan: ShardPlan) -> None:
        self._plan, self._began = plan, time.perf_counter()
        self._folder = None if plan.memory_bytes is None else tempfile.gettempdir()
        self._model = LearningModel(ExampleMaker(plan.start.resolved))
        self._rows, self._held = _GrowingRows(self._folder), _GrowingRows(self._folder)
        self._notes: dict[str, None] = {}

    def read(self, files: LogFiles, share: float) -> PartCounts:
        """Read the worker's part of these files, and hold out this share of the requests."""
        if not files.mine:
            return PartCounts()
        maker = _Maker(self._plan, files.mine, share)
        log = replace(open_part(self._plan, files), on_note=self._notes.setdefault)
        counts, listed = RowCounts(), list[Reject]()
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
                counts += examples.counts
            for warning in opened.requests.warnings():
                self._notes.setdefault(warning)
        return PartCounts(counts, rejects.counts, tuple(listed))

    def _add(self, examples: _Examples) -> None:
        """Learn the rows that are not held out, admit the keys of the others without a weight, and keep all."""
        table, held = self._model.table, examples.held
        if not held.all() or not held.size:
            learned = examples.only(~held)
            self._model.learn(learned)
            self._keep(learned, self._rows)
        if held.any():
            left = examples.only(held)
            hashes = _hashes(left.hashed)
            unknown = np.flatnonzero(table.find(hashes, left.hashed.features) < 0)
            new = np.sort(unknown[np.unique(hashes[unknown], return_index=True)[1]])
            while table.room < new.size:
                table.grow()
            features, slots = left.hashed.features[new], np.empty(new.size, np.int64)
            table.used += int(claim_keys(table.layout, table.space, hashes[new], features, slots))
            self._model.keep_keys(left, new)
            self._keep(left, self._held)

    def _keep(self, examples: Examples, rows: _GrowingRows) -> None:
        if self._model.table.count > MOST:
            raise _too_large("keys")
        with _writing(self._folder):
            rows.add(examples.hashed)

    def finish(self, log: PartCounts, held_files: PartCounts) -> Shard:
        """The shard. What only the first pass needs is freed before the columns are made."""
        table = self._model.table
        found = table.keys()
        hashes, self._number_of = np.empty(found.slots.size, np.uint64), np.empty(table.slots.size, np.int32)
        hash_keys(found.data, found.offsets, hashes)
        self._number_of[found.slots] = np.arange(found.slots.size)
        with _writing(self._folder):
            rows, held = (each.finish(self._numbers) for each in (self._rows, self._held))
            first, progressive = self._model.coordinates.weights(found), self._model.metrics.group()
            del self._model, table, self._number_of
            columns = _columns(rows, hashes.size, self._plan.memory_bytes, self._folder)
        counts = np.diff(columns.starts).astype(np.float64)
        keys = ShardKeys(hashes, found.features, found.data, found.offsets, counts)
        mapped = sum(each.nbytes for each in (*rows, columns.rows, columns.x, *held))
        others = sum(each.nbytes for each in (*vars(keys).values(), columns.starts, first))
        in_memory = self._folder is None
        summary = ShardSummary(
            rows=int(rows.labels.size),
            clicks=int(np.count_nonzero(rows.labels)),
            importance=rows.importance,
            held_rows=int(held.labels.size),
            keys=int(hashes.size),
            nonzeros=int(rows.ids.size),
            memory_bytes=others + (mapped if in_memory else 0),
            disk_bytes=0 if in_memory else mapped,
            seconds=time.perf_counter() - self._began,
            log=log,
            held_files=held_files,
            progressive=progressive,
            notes=tuple(self._notes),
        )
        return Shard(keys, rows, columns, held, first, summary)

    def _numbers(self, hashes: Array) -> Array:
        """The numbers of keys, by their hashes."""
        found: Array = self._number_of[self._model.table.find(hashes, np.zeros(hashes.size, np.uint16))]
        return found


def _hashes(rows: HashedRows) -> Array:
    """The hashes of the rows' keys; what follows them in the array is unused."""
    hashes: Array = rows.hashes[: int(rows.starts[-1])]
    return hashes


def _too_large(what: str) -> InputError:
    return InputError(f"a worker's part of the log has more than {MOST:,} {what}; use more workers")


@contextmanager
def _writing(folder: str | None) -> Iterator[None]:
    """Raises OutputError where a file of rows cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"a worker's rows cannot be written to a temporary file in {folder or 'memory'}: {error.strerror}; TMPDIR "
            "names another folder, without --shard-memory they are in memory, and more workers have fewer rows each"
        ) from error


def _mapped(file: BinaryIO, dtype: Any, size: int) -> Array:
    """The first `size` numbers of a file as an array; the file is closed, and grows if it must."""
    nbytes = size * np.dtype(dtype).itemsize
    with file:
        file.flush()
        file.truncate(nbytes)
        if not nbytes:
            return np.empty(0, dtype)
        os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk is met here, not while a kernel writes
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype)


def _nameless(folder: str | None) -> BinaryIO:
    """A new file without a name: in memory, or in a folder, also where the system has none in memory."""
    if folder is None and hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("ftrie-shard"), "w+b")
    return tempfile.TemporaryFile(prefix="ftrie-shard-", dir=folder)


class _Growing:
    """An array that grows at its end."""

    def __init__(self, folder: str | None, dtype: Any, may_be_ones: bool = False) -> None:
        """may_be_ones: it stays empty while all its values are 1."""
        self._dtype, self._file = np.dtype(dtype), _nameless(folder)
        self._may_be_ones, self._ones = may_be_ones, 0
        self.size = 0

    def add(self, values: Array, count: int) -> None:
        """Append `count` values; none given: all are 1."""
        if self._may_be_ones and not self.size and (not values.size or (values == 1.0).all()):
            self._ones += count
            return
        while self._ones:
            some = min(self._ones, _PIECE)
            self._write(np.ones(some))
            self._ones -= some
        self._write(values if values.size else np.ones(count))

    def _write(self, values: Array) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.size += values.size

    def finish(self) -> Array:
        """The array; no more can be added."""
        return _mapped(self._file, self._dtype, self.size)

    def numbered(self, numbers: Callable[[Array], Array]) -> Array:
        """Numbers of the hashes that the array has, int32, in the first half of its file; no more can be added."""
        self._file.flush()
        for first in range(0, self.size, _PIECE):
            hashes = os.pread(self._file.fileno(), 8 * min(_PIECE, self.size - first), 8 * first)
            os.pwrite(self._file.fileno(), numbers(np.frombuffer(hashes, np.uint64)).data, 4 * first)
        return _mapped(self._file, np.int32, self.size)


class _GrowingRows:
    """Rows that are added batch by batch, with the hashes of their keys until these have numbers."""

    def __init__(self, folder: str | None) -> None:
        with _writing(folder):
            self._starts, self._hashes = _Growing(folder, np.int64), _Growing(folder, np.uint64)
            self._labels = _Growing(folder, np.float32)
            self._x, self._weights = (_Growing(folder, np.float64, may_be_ones=True) for _ in range(2))
            self._starts.add(np.zeros(1), 1)

    def add(self, rows: HashedRows) -> None:
        """Add rows. Raises InputError if a shard has too many."""
        size, hashes = int(rows.labels.size), _hashes(rows)
        if self._labels.size + size > MOST:
            raise _too_large("rows")
        self._starts.add(rows.starts[1:] + self._hashes.size, size)
        self._hashes.add(hashes, hashes.size)
        self._x.add(rows.x[: hashes.size], hashes.size)
        self._labels.add(rows.labels, size)
        self._weights.add(rows.weights, size)

    def finish(self, numbers: Callable[[Array], Array]) -> ShardRows:
        """The rows; no more can be added. numbers: of keys, by their hashes."""
        ids = self._hashes.numbered(numbers)
        starts, x, labels, weights = (
            each.finish() for each in (self._starts, self._x, self._labels, self._weights)
        )
        return ShardRows(starts, ids, x, labels, weights)


def _columns(rows: ShardRows, keys: int, bound: int | None, folder: str | None) -> ShardColumns:
    """The columns of rows: a counting sort; where memory has a bound, by ranges of keys, and those by ranges of rows.

    A range of rows and one of keys have together about as many bytes as the bound.
    """
    starts, size = np.zeros(keys + 1, np.int64), rows.ids.size
    of_rows = _mapped(_nameless(folder), np.int32, size)
    x = _mapped(_nameless(folder), np.float64, rows.x.size)
    at_once = size if bound is None else bound // 2 // (12 if rows.x.size else 4)
    for begin in range(0, size, _PIECE):
        np.add.at(starts[1:], rows.ids[begin : begin + _PIECE], 1)
    np.cumsum(starts, out=starts)
    for first, last in _ranges(starts, at_once):
        cursor = starts[first:last].copy()
        for begin, end in _ranges(rows.starts, at_once):
            transpose(rows, begin, end, first, last, cursor, of_rows, x)
    return ShardColumns(starts, of_rows, x)


def _ranges(starts: Array, at_once: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows or keys, by where their entries start: one after another, each of about `at_once` entries."""
    first = 0
    while first < starts.size - 1:
        last = int(np.searchsorted(starts, starts[first] + max(at_once, 1), "right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
