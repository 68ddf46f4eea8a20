"""A log of events as a log of labelled rows: impressions and their feedback, joined as a trainer joins them.

In: event files, and the specs resolved by their first impressions. Out: batches of rows, as a `LogReader` delivers
them, for everything that reads labelled rows. Whole requests come out together, each once, in the order in which their
windows close: a row's label is known then, and a click does not come before the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os.path import getsize
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import counted
from model_store.spec.sections import FieldSpec
from model_store.spec.spec import ModelSpec
from trainer.events.columns import MARK, RESERVED, UNKNOWN, Wanted
from trainer.events.events import BadEvent, Chunk
from trainer.events.fields import columns_named, columns_seen, resolve_fields
from trainer.events.join import Join, Joined
from trainer.events.join_state import JoinCounts
from trainer.events.waiting_rows import Segments
from trainer.examples.joined import EventRows, labelled
from trainer.formats.batch import STDIN, Position, RowBatch, mark_of, split_mark
from trainer.formats.reader import Bookmarks, expand
from trainer.formats.rejects import Reject
from trainer.sources.files import EventFiles
from trainer.sources.merge import Merger

REQUEST = "request_id"
"""The member of an event that names its request, and its column if the spec names none."""
MEMORY_BYTES = 256 << 20
"""Of rows that wait for their feedback; the others are in a temporary folder."""
_WAIT_S = 0.2
_MOST_PARTS = 4  # of a batch, one for each run of rows of one file

Int64s = npt.NDArray[np.int64]
_NO_KEYS = np.empty(0, np.int64)


def with_request(spec: ModelSpec) -> ModelSpec:
    """The spec, whose `input.request` is REQUEST if it names none."""
    if spec.input.request is not None:
        return spec
    return spec.model_copy(update={"input": spec.input.model_copy(update={"request": REQUEST})})


class EventLog:
    """Event files as a source of batches, with the methods of a LogReader that `OpenLog` uses. Read once.

    A file or glob is one source; several are merged by the times of their events. on_note: receives remarks, also from
    other threads. join: the outcomes of the events so far (docs/join.md).
    """

    def __init__(
        self,
        inputs: Sequence[str],
        on_note: Callable[[str], None] = lambda text: None,
        on_chunk: Callable[[str, Chunk], None] | None = None,
    ) -> None:
        """on_chunk: see EventFiles; called from the threads that read. Raises InputError for a missing file."""
        self.names = tuple(inputs)
        self.files = expand(inputs)
        self.join = JoinCounts()
        self.bookmarks = Bookmarks((), (), on_note)  # no run can continue in the middle of a join
        self._on_note = on_note
        self._sources = list[EventFiles]()
        number = 0
        for name in inputs:
            files = expand([name])
            self._sources.append(EventFiles(name, files, number, on_chunk))
            number += len(files)
        self._specs = list[ModelSpec]()
        self._merger: Merger | None = None
        self._first: bytes | None = None

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files on disk; None with standard input."""
        return None if STDIN in self.files else sum(map(getsize, self.files))

    def bytes_read(self) -> int:
        """Bytes of events taken so far, counted like `total_bytes`. May be called from another thread."""
        merger = self._merger
        if merger is None:
            return 0
        return sum(int(position.get("bytes", 0)) for position in merger.positions())

    def columns(self) -> tuple[str, ...]:
        """The columns that the first impressions have, those of the request's, and those of RESERVED."""
        given = self._specs[0].input if self._specs else None
        named = given.named_columns if given is not None else ()
        return tuple(dict.fromkeys([*named, *columns_named(self._first_events()), *RESERVED]))

    def features_seen(self) -> dict[str, FieldSpec]:
        """The features of items, user and context in the first impressions, as fields."""
        return columns_seen(self._first_events())

    def kinds(self) -> Mapping[str, str | None]:
        """Nothing: fields are resolved by `resolve`."""
        return {}

    def may_have(self, column: str) -> bool:
        """True but for reserved names: a later impression may have any column."""
        return column in RESERVED or not column.startswith("@")

    def resolve(self, spec: ModelSpec, elsewhere: Mapping[str, FieldSpec]) -> ModelSpec:
        """The spec resolved by the first impressions; `input.request` is REQUEST if it names none.

        elsewhere: see `resolve_fields`. The first spec's [input] and [join] are those of the log. Raises SpecError.
        """
        resolved = resolve_fields(with_request(spec), self._first_events(), self.names, elsewhere)
        self._specs.append(resolved)
        return resolved

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """All rows with the `wanted` columns, once; a line that is no event is a reject of a batch of its own.

        Raises InputError where a file is damaged; StoreError if the temporary folder cannot be used.
        """
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ftrie-join-")))
            segments = Segments(folder, MEMORY_BYTES)
            columns = Wanted.of_columns(wanted, *self._specs)
            lateness_us = self._specs[0].join.lateness_us
            options: dict[str, Any] = {"once": True, "marks": True, "lateness_us": lateness_us}
            merger = Merger(self._sources, columns, segments, on_note=self._on_note, **options)
            stack.callback(merger.close)
            self._merger = merger
            # A request comes out once, so a click after its window corrects nothing.
            join = Join(self._specs[0].join.model_copy(update={"late": "count"}))
            events, requests = EventRows(merger, join, segments, *self._specs), _ClosedRequests()
            while not merger.ended:
                found = events.step(_WAIT_S)
                if found is not None:
                    merged, joined = found
                    yield from self._rejected(merged.bad, wanted)
                    yield from self._rows(requests.of(joined), segments, wanted)
                    self.join = join.counts
                    self.join.check_order(", ".join(self.names))
                    segments.free_memory(join.segments)
            yield from self._rows(requests.of(join.finish()), segments, wanted)
            self.join = join.counts
        self._note_outcomes()

    def close(self) -> None:
        """Close the files. May be called twice."""
        if self._merger is not None:
            self._merger.close()
        for source in self._sources:
            source.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_events(self) -> bytes:
        if self._first is None:
            self._first = b"".join(source.peek() for source in self._sources)
        return self._first

    def _rows(self, rows: _Rows, segments: Segments, wanted: Sequence[str]) -> Iterator[RowBatch]:
        given, names = self._specs[0], tuple(dict.fromkeys([*wanted, MARK, UNKNOWN]))
        learns_unknown, places = given.join.unknown_items == "learn", (rows.segment, rows.row, rows.label)
        for chosen, columns in labelled(segments, places, given.input, learns_unknown, names):
            files, lines = split_mark(columns[MARK].to_numpy())
            for name in {MARK, UNKNOWN}.difference(wanted):
                columns.pop(name, None)
            for part in _parts_of_files(files):
                yield RowBatch(
                    columns={name: column[part] for name, column in columns.items()},
                    lines=lines[part],
                    file=" or ".join(self.files[number] for number in np.unique(files[part]).tolist()),
                    rejects=(),
                    rows=lines[part].size,
                    stop=Position(self.names[0]),
                    clicked=rows.clicked[chosen[part]],
                )

    def _rejected(self, bad: Sequence[BadEvent], wanted: Sequence[str]) -> Iterator[RowBatch]:
        """Batches without rows, one for each file with bad lines."""
        found: dict[str, list[Reject]] = {}
        for event in bad:
            file, _, line = event.where.rpartition(":")
            found.setdefault(file, []).append(Reject(file, int(line), event.reason))
        label = self._specs[0].input.label
        nothing = {name: pa.nulls(0, pa.int64() if name == label else pa.binary()) for name in wanted}
        for file, rejects in found.items():
            yield RowBatch(
                columns=nothing,
                lines=np.empty(0, np.int64),
                file=file,
                rejects=tuple(rejects),
                rows=0,
                stop=Position(self.names[0]),
            )

    def _note_outcomes(self) -> None:
        """Say what of the log the join could not use."""
        counts = self.join
        if not counts.rows:
            self._on_note(f"{', '.join(self.names)}: no impression shows an item, so there is no row")
        lost = counts.late + counts.orphans + counts.out_of_order + counts.unknown_item
        if lost:
            self._on_note(
                f"{counted(lost, 'click')} or conversions of {counts.clicks + counts.conversions:,} are not of a row: "
                f"{counts.late:,} came after the window of {self._specs[0].join.window} ([join] window), "
                f"{counts.orphans:,} have no impression, {counts.unknown_item:,} are of an item not shown"
                + (f", {counts.out_of_order:,} are out of order in time" if counts.out_of_order else "")
            )
        if counts.late_impressions:
            self._on_note(
                f"{counted(counts.late_impressions, 'impression')} came when their window was over, and were taken as "
                "not clicked: sort the files by time, or raise [join] lateness"
            )


class _Rows:
    """Rows of whole requests: segment int32, row int64, label int64, clicked bool, one element each."""

    def __init__(self, joined: Joined, positives: Int64s) -> None:
        """positives: the keys of the rows that are positive."""
        closed = joined.closed
        lengths = closed.rows.astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        self.segment = np.repeat(closed.segment, lengths)
        self.row = np.repeat(closed.row - starts, lengths) + np.arange(int(lengths.sum()))
        self.keys = mark_of(self.segment.astype(np.int64), self.row)
        self.label = np.isin(self.keys, positives).astype(np.int64)
        self.clicked = np.repeat(closed.positives > 0, lengths)


class _ClosedRequests:
    """Holds back what the join says of rows until their request closes.

    By segment, as the requests that close in a step are of few: the clicks of all others are not looked at.
    Memory: 8 bytes for each click that waits.
    """

    def __init__(self) -> None:
        self._positives: dict[int, Int64s] = {}

    def of(self, joined: Joined) -> _Rows:
        """The rows of the requests that closed, in their order and as they were shown."""
        positive = joined.label == 1
        self._add(mark_of(joined.segment[positive].astype(np.int64), joined.row[positive]))
        closing = np.unique(joined.closed.segment).tolist()
        known = np.concatenate([_NO_KEYS, *(self._positives.pop(each, _NO_KEYS) for each in closing)])
        rows = _Rows(joined, known)
        self._add(known[~np.isin(known, rows.keys)])
        return rows

    def _add(self, keys: Int64s) -> None:
        keys = np.sort(keys)
        edges = np.flatnonzero(np.diff(split_mark(keys)[0])) + 1
        for part in np.split(keys, edges) if keys.size else ():
            segment = int(split_mark(part[0])[0])
            self._positives[segment] = np.concatenate([self._positives.get(segment, _NO_KEYS), part])


def _parts_of_files(files: Int64s) -> list[slice]:
    """Runs of rows of one file; one of all if there were many, as of files whose times overlap."""
    if not files.size:
        return []
    edges = (np.flatnonzero(np.diff(files)) + 1).tolist()
    if len(edges) >= _MOST_PARTS:
        edges = []
    return [slice(first, last) for first, last in zip([0, *edges], [*edges, files.size], strict=True)]
