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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from model_store.errors import InputError, OutputError
from model_store.hash_kernels import hash_keys
from trainer.distributed.dealing import LogFiles, ShardPlan, open_part
from trainer.distributed.shard_kernels import ShardColumns, ShardRows, claim_new, transpose
from trainer.examples.examples_kernels import PROBABILITY_BITS, HashedRows, draw, number_single_rows
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import open_log
from trainer.formats.batch import RowBatch
from trainer.formats.rejects import Reject, RejectLog, RowCounts
from trainer.learn.metrics.tally import GroupSums
from trainer.learn.model import LearningModel
from trainer.learn.table import TableKeys

MOST = 2**31 - 1
"""The most rows and the most keys of a shard."""
MOST_LISTED = 100_000
"""The most bad rows that a shard names one by one."""
_PIECE = 1 << 17
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
        self._plan, self._began = plan, time.perf_counter()
        self._space = _Space(plan.memory_bytes, plan.folder)
        self._model = LearningModel(ExampleMaker(plan.start.resolved))
        self._rows, self._held = _GrowingRows(self._space), _GrowingRows(self._space)
        self._notes: dict[str, None] = {}

    def read(self, files: LogFiles, share: float) -> PartCounts:
        """Read the worker's part of these files, and hold out this share of the requests."""
        if not files.mine:
            return PartCounts()
        maker = _Maker(self._plan, files.mine, share)
        log = replace(open_part(self._plan, files), on_note=self._note)
        counts, listed = PartCounts(), list[Reject]()
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

    def finish(self, log: PartCounts, held_files: PartCounts) -> Shard:
        """The shard. What only the first pass needs is freed before the columns are made."""
        keys, hashes, (rows, held) = self._numbered()
        first, progressive = self._model.coordinates.weights(keys), self._model.metrics.group()
        del self._model
        columns = _columns(rows, hashes.size, self._space)
        counts = np.diff(columns.starts).astype(np.float64)
        arrays = (hashes, keys.features, keys.data, keys.offsets, counts, *rows, *columns, *held, first)
        summary = ShardSummary(
            rows=int(rows.labels.size),
            clicks=int(np.count_nonzero(rows.labels)),
            importance=rows.importance,
            held_rows=int(held.labels.size),
            keys=int(hashes.size),
            nonzeros=int(rows.ids.size),
            memory_bytes=sum(each.nbytes for each in arrays) - self._space.disk_bytes,
            disk_bytes=self._space.disk_bytes,
            seconds=time.perf_counter() - self._began,
            log=log,
            held_files=held_files,
            progressive=progressive,
            notes=tuple(self._notes),
        )
        return Shard(
            ShardKeys(hashes, keys.features, keys.data, keys.offsets, counts),
            rows,
            columns,
            held,
            first,
            summary,
        )

    def _numbered(self) -> tuple[TableKeys, Array, Sequence[ShardRows]]:
        """The keys, their hashes, and the rows and those held out with the keys' numbers."""
        table = self._model.table
        keys = table.keys()
        hashes = np.empty(keys.slots.size, np.uint64)
        hash_keys(keys.data, keys.offsets, hashes)
        number_of = np.empty(table.slots.size, np.int32)
        number_of[keys.slots] = np.arange(keys.slots.size)

        def numbers(some: Array) -> Array:
            found: Array = number_of[table.find(some, np.zeros(some.size, np.uint16))]
            return found

        return keys, hashes, [each.finish(numbers) for each in (self._rows, self._held)]

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

    def _learn(self, examples: Examples) -> None:
        self._model.learn(examples)
        self._keep(examples, self._rows)

    def _keep_held(self, examples: Examples) -> None:
        """Admit the keys, without a weight, and keep the rows."""
        hashes, table = _hashes(examples.hashed), self._model.table
        while table.room < hashes.size:
            table.grow()
        added = np.empty(hashes.size, np.int64)
        count = claim_new(table.layout, hashes, added)
        table.used += int(count)
        self._model.keep_keys(examples, added[:count])
        self._keep(examples, self._held)

    def _keep(self, examples: Examples, rows: _GrowingRows) -> None:
        if self._model.table.count > MOST:
            raise _too_large("keys")
        rows.add(examples.hashed)


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


def _too_large(what: str) -> InputError:
    return InputError(f"a worker's part of the log has more than {MOST:,} {what}; use more workers")


class _Space:
    """Where a shard's arrays are: in memory, or, if that has a `bound` in bytes, in nameless files in `folder`."""

    def __init__(self, bound: int | None, folder: str | None) -> None:
        self._bound, self._folder = bound, folder or tempfile.gettempdir()
        self._maps: list[mmap.mmap] = []
        self.disk_bytes = 0

    @property
    def piece_bytes(self) -> int | None:
        """Half the bound, for arrays that are made from others piece by piece; None: all at once."""
        return None if self._bound is None else max(self._bound // 2, mmap.PAGESIZE)

    def file(self) -> BinaryIO:
        """A new nameless file, on disk also where the system has none in memory. Raises OutputError."""
        if self._bound is None and hasattr(os, "memfd_create"):
            return os.fdopen(os.memfd_create("ftrie-shard"), "w+b")
        with self.writing():
            return tempfile.TemporaryFile(prefix="ftrie-shard-", dir=self._folder)

    def mapped(self, file: BinaryIO, dtype: Any, size: int) -> Array:
        """The first `size` numbers of a file as an array; the file is closed, and grows if it must."""
        nbytes = size * np.dtype(dtype).itemsize
        with self.writing(), file:
            file.flush()
            file.truncate(nbytes)
            if not nbytes:
                return np.empty(0, dtype)
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk is met here, not while a kernel writes
            opened = mmap.mmap(file.fileno(), nbytes)
        if self._bound is not None:
            self._maps.append(opened)
            self.disk_bytes += nbytes
        return np.frombuffer(opened, dtype)

    def release(self) -> None:
        """Let the system take back the memory of mapped files on disk; their content stays."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises OutputError where a file cannot be written."""
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"a worker's rows cannot be written to a temporary file in {self._folder}: {error.strerror}; TMPDIR "
                "names another folder, without --shard-memory they are in memory, and more workers have fewer rows each"
            ) from error


class _Growing:
    """An array that grows at its end."""

    def __init__(self, space: _Space, dtype: Any) -> None:
        self._space, self._dtype = space, np.dtype(dtype)
        self._file = space.file()
        self.size = 0

    def add(self, values: Array) -> None:
        """Append values. Raises OutputError."""
        with self._space.writing():
            self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.size += values.size

    def finish(self) -> Array:
        """The array; no more can be added."""
        return self._space.mapped(self._file, self._dtype, self.size)

    def numbered(self, numbers: Callable[[Array], Array]) -> Array:
        """Numbers of the hashes that the array has, int32, in the first half of its file; no more can be added."""
        with self._space.writing():
            self._file.flush()
            for first in range(0, self.size, _PIECE):
                hashes = os.pread(self._file.fileno(), 8 * min(_PIECE, self.size - first), 8 * first)
                os.pwrite(self._file.fileno(), numbers(np.frombuffer(hashes, np.uint64)).data, 4 * first)
        return self._space.mapped(self._file, np.int32, self.size)


class _GrowingOnes(_Growing):
    """An array that stays empty while all its values are 1."""

    def __init__(self, space: _Space) -> None:
        super().__init__(space, np.float64)
        self._ones = 0

    def add_or_ones(self, values: Array, count: int) -> None:
        """Append `count` values; none given: all are 1."""
        if not self.size and (not values.size or (values == 1.0).all()):
            self._ones += count
            return
        while self._ones:
            some = min(self._ones, _PIECE)
            self.add(np.ones(some))
            self._ones -= some
        self.add(values if values.size else np.ones(count))


class _GrowingRows:
    """Rows that are added batch by batch, with the hashes of their keys until these have numbers."""

    def __init__(self, space: _Space) -> None:
        self._starts, self._hashes = _Growing(space, np.int64), _Growing(space, np.uint64)
        self._labels = _Growing(space, np.float32)
        self._x, self._weights = _GrowingOnes(space), _GrowingOnes(space)
        self._starts.add(np.zeros(1))

    def add(self, rows: HashedRows) -> None:
        """Add rows. Raises InputError if a shard has too many, OutputError."""
        size = int(rows.labels.size)
        if self._labels.size + size > MOST:
            raise _too_large("rows")
        hashes = _hashes(rows)
        self._starts.add(rows.starts[1:] + self._hashes.size)
        self._hashes.add(hashes)
        self._x.add_or_ones(rows.x[: hashes.size], hashes.size)
        self._labels.add(rows.labels)
        self._weights.add_or_ones(rows.weights, size)

    def finish(self, numbers: Callable[[Array], Array]) -> ShardRows:
        """The rows; no more can be added. numbers: of keys, by their hashes."""
        ids = self._hashes.numbered(numbers)
        starts, x, labels, weights = (
            each.finish() for each in (self._starts, self._x, self._labels, self._weights)
        )
        return ShardRows(starts, ids, x, labels, weights)


def _columns(rows: ShardRows, keys: int, space: _Space) -> ShardColumns:
    """The columns of rows: a counting sort; where the space is bounded, by ranges of keys, and those by ranges of rows.

    A range of rows and one of keys have together about as many bytes as the bound.
    """
    starts = np.zeros(keys + 1, np.int64)
    of_rows = space.mapped(space.file(), np.int32, rows.ids.size)
    x = space.mapped(space.file(), np.float64, rows.x.size)
    at_once = (space.piece_bytes or rows.ids.nbytes + rows.x.nbytes) // (12 if rows.x.size else 4)
    for first in range(0, rows.ids.size, _PIECE):
        np.add.at(starts[1:], rows.ids[first : first + _PIECE], 1)
    space.release()
    np.cumsum(starts, out=starts)
    for first, last in _ranges(starts, at_once):
        cursor = starts[first:last].copy()
        for begin, end in _ranges(rows.starts, at_once):
            transpose(rows, begin, end, first, last, cursor, of_rows, x)
            space.release()
    return ShardColumns(starts, of_rows, x)


def _ranges(starts: Array, at_once: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows or keys, by where their entries start: one after another, each of about `at_once` entries."""
    first = 0
    while first < starts.size - 1:
        last = int(np.searchsorted(starts, starts[first] + max(at_once, 1), "right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
