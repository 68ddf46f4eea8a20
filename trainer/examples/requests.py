"""The requests of rows: their ids, whole requests across batches, and the sample of requests to learn from.

A request is a run of rows with one id in one file. Where the spec samples requests or compares their rows,
WholeRequests determines for each row whether its request has a click before any of its rows passes on. Sampling follows
McMahan et al. (KDD 2013), section 4.6: every request with a click is learned from; of the others a share r, each with
weight 1/r, so that the expected gradient is that of all rows and the model stays calibrated. The draw is a seeded hash
of the request's id: the rows of a request stay together, and every run over the same log draws the same requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from model_store.hash_kernels import digest_columns
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import PROBABILITY_BITS, draw, number_single_rows
from trainer.formats.batch import Position, RowBatch
from trainer.formats.cells import addresses, clicked, column_text

_REMEMBERED = 1 << 18
"""Slots for ids of requests met so far, 8 bytes each; a later id replaces an earlier one."""
_NOT_RAW = np.zeros(1, np.uint8)

MOST_ROWS = 1 << 16
"""The most rows of one request; a longer run of rows is taken as several requests."""

Ids = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


def request_ids(batch: RowBatch, column: str | None) -> Ids:
    """A hash of every row's request id: uint64[rows]. A row without one is a request of its own."""
    if column is None or not batch.rows:
        ids = np.zeros(batch.rows, np.uint64)
    else:
        text = column_text(batch.columns[column])
        ids = np.empty(batch.rows, np.uint64)
        digest_columns(*addresses([text]), batch.rows, _NOT_RAW, ids.reshape(1, -1))
    number_single_rows(ids, batch.first_row)
    return ids


class Runs:
    """Counts runs of rows with one id in one file. Memory: 2 MiB.

    resumed: runs whose id an earlier run had, as far as ids are remembered: the request's rows are not adjacent.
    """

    def __init__(self) -> None:
        self.resumed = 0
        self._begun = np.zeros(_REMEMBERED, np.uint64)
        self._last = (0, -1)

    def add(self, ids: Ids, file: int) -> int:
        """Take the next rows, of the log's file of this number; returns how many runs begin. O(runs log runs)."""
        if not ids.size:
            return 0
        begins = np.concatenate([[(int(ids[0]), file) != self._last], ids[1:] != ids[:-1]])
        self._last = (int(ids[-1]), file)
        begun = ids[begins]
        distinct = np.unique(begun)
        slots = (distinct % np.uint64(_REMEMBERED)).astype(np.int64)
        self.resumed += int(begun.size - distinct.size + np.count_nonzero(self._begun[slots] == distinct))
        self._begun[slots] = distinct
        return int(begun.size)


@dataclass
class _Open:
    """A request that may continue: its parts of batches, its id, its rows so far, whether one is a click."""

    parts: list[RowBatch]
    id: int
    rows: int
    clicked: bool

    def continues_in(self, batch: RowBatch, ids: Ids) -> bool:
        """Whether the batch's first row belongs to this request."""
        is_next = self.parts[-1].stop.number == batch.stop.number and self.rows < MOST_ROWS
        return is_next and (not ids.size or int(ids[0]) == self.id)

    def add(self, part: RowBatch, clicks: Flags) -> None:
        """Add a part."""
        self.parts.append(part)
        self.rows += part.rows
        self.clicked |= bool(clicks.any())

    def release(self, ended: bool) -> Iterator[RowBatch]:
        """Its parts. A later run may continue only after the last part, and only if the request `ended` there."""
        for part in self.parts:
            clicks = np.full(part.rows, self.clicked)
            yield replace(part, clicked=clicks, resumable=ended and part is self.parts[-1])


class WholeRequests:
    """Numbers the rows of a stream; where the spec samples requests or compares their rows, cuts batches between them.

    Each row is then marked whether its request has a click, each batch whether its last request ends in it. The last
    request of a batch waits for the next batch; batches are cut, never joined, and nothing is reordered. A run of more
    than MOST_ROWS rows is taken as several requests, which bounds memory: `cut` counts these. `resumed` counts requests
    that continue after rows of others, which are taken as several too. Both are final at the stream's end.
    """

    def __init__(self, spec: ModelSpec, first_row: int = 0) -> None:
        """first_row: the number of rows of the stream that earlier runs have read."""
        self._input, self._request = spec.input, spec.input.request
        self._samples = spec.learner.subsample is not None
        self._compares = any(field.list is not None for field in spec.fields.values())
        self._rows = first_row
        self._open: _Open | None = None
        self._runs = Runs()
        self.cut = 0

    @property
    def resumed(self) -> int:
        """The requests resumed so far, see Runs."""
        return self._runs.resumed

    def of(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The same rows in the same order, in batches with `first_row`, `clicked` and `resumable`."""
        for batch in batches:
            numbered = replace(batch, first_row=self._rows)
            self._rows += batch.rows
            if self._samples or self._compares:
                yield from self._mark(numbered)
            else:
                yield numbered
        yield from self._close()

    def warnings(self) -> Iterator[str]:
        """Warnings for the user about requests that were taken as several."""
        column, who = repr(self._request), "learner.subsample" if self._samples else "list features"
        took = "took" if self._samples else "take"
        wrong = "rows beside a click may be left out or weigh as if there were none"
        if not self._samples:
            wrong = "rows are compared with a part of their request"
        if self.resumed:
            yield (
                f"{self.resumed:,} times a request went on after rows of another: {who} {took} each run of "
                f"rows as a request of its own, so {wrong}; sort the log by {column}"
            )
        if self.cut:
            yield (
                f"{self.cut:,} times a request of more than {MOST_ROWS:,} rows was cut: {who} {took} each "
                f"part as a request of its own; does {column} name requests?"
            )

    def _mark(self, batch: RowBatch) -> Iterator[RowBatch]:
        ids = request_ids(batch, self._request)
        clicks = clicked(batch.columns, self._input) if batch.rows else np.zeros(0, bool)
        if self._open is not None and not self._open.continues_in(batch, ids):
            yield from self._close()
        before = self._open.rows if self._open is not None else 0
        starts = np.flatnonzero(request_starts(ids, before))
        self.cut += starts.size - self._runs.add(ids, batch.stop.number)
        if not starts.size:  # all rows, if any, are of the open request
            if self._open is None:
                yield replace(batch, clicked=clicks)
            else:
                self._open.add(batch, clicks)
            return
        cut = int(starts[-1])
        if cut:
            bounds = np.append(np.unique(np.concatenate([[0], starts[:-1]])), cut)
            of_request = np.repeat(np.logical_or.reduceat(clicks[:cut], bounds[:-1]), np.diff(bounds))
            if self._open is not None:
                self._open.clicked |= bool(clicks[: starts[0]].any())
                of_request[: starts[0]] = self._open.clicked
        yield from self._close(ended=not starts[0])
        if cut:
            begin = batch.start or Position(batch.file, number=batch.stop.number)
            stop = begin.until(int(batch.lines[cut]))
            yield replace(_slice(batch, 0, cut), clicked=of_request, stop=stop)
        tail = _slice(batch, cut, batch.rows)
        self._open = _Open([tail], int(ids[-1]), tail.rows, bool(clicks[cut:].any()))

    def _close(self, ended: bool = True) -> Iterator[RowBatch]:
        if self._open is not None:
            yield from self._open.release(ended)
            self._open = None


def request_starts(ids: Ids, before: int = 0) -> Flags:
    """Where a request starts: the id changes, or it has MOST_ROWS rows. before: rows of the first one so far."""
    if not ids.size:
        return np.zeros(0, bool)
    changes = np.concatenate([[before == 0], ids[1:] != ids[:-1]])
    rows = np.arange(ids.size)
    run = np.maximum.accumulate(np.where(changes, rows, -before if before else 0))
    starts: Flags = changes | ((rows - run) % MOST_ROWS == 0)
    return starts


def _slice(batch: RowBatch, first: int, stop: int) -> RowBatch:
    """Rows of a batch, with the rejects among and before them (at its end: also after them)."""
    low = int(batch.lines[first]) if first else 0
    high = int(batch.lines[stop]) if stop < batch.rows else None
    rejects = tuple(r for r in batch.rejects if low <= r.line and (high is None or r.line < high))
    return replace(batch.part(first, stop), rejects=rejects)


@dataclass(frozen=True)
class Sample:
    """The rows of a batch to learn from, the request of each, and the factor of its weight."""

    batch: RowBatch
    ids: Ids
    factors: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """Draws `share` of the requests without a click."""

    share: float
    seed: int
    input: InputSection

    @classmethod
    def of(cls, spec: ModelSpec) -> Sampling | None:
        """The spec's sampling; None where every request is learned from."""
        subsample = spec.learner.subsample
        if subsample is None or subsample.unclicked == 1.0:
            return None
        return cls(subsample.unclicked, spec.learner.seed, spec.input)

    def draw(self, batch: RowBatch, ids: Ids) -> Sample:
        """The sample of a batch. `WholeRequests` has marked clicked requests; else each row is a request."""
        clicks = batch.clicked if batch.clicked is not None else clicked(batch.columns, self.input)
        drawn = np.empty(batch.rows, np.bool_)
        draw(ids, clicks, np.uint64(self.seed), np.uint64(self.share * (1 << PROBABILITY_BITS)), drawn)
        factors = np.where(clicks, 1.0, 1.0 / self.share)[drawn]
        return Sample(replace(batch.where(drawn), clicked=None), ids[drawn], factors)
