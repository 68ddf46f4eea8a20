"""From merged events to batches of labelled rows: what the trainer, a replay and a log of events have in common.

`EventRows` takes the next events and joins them. `JoinedExamples` makes examples of rows in the order in which they
become known, for a trainer that learns a click at once. `EventLog` delivers a log of events as batches, as a
`LogReader` delivers rows: whole requests come out together, each once, in the order in which their windows close, when
a row's label is known; a click does not come before the rows beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os.path import getsize
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import counted
from model_store.spec.sections import FieldSpec, InputSection
from model_store.spec.spec import ModelSpec
from trainer.events.columns import (
    MARK,
    RESERVED,
    UNKNOWN,
    Wanted,
    columns_named,
    columns_seen,
    digests,
    resolve_fields,
)
from trainer.events.events import PER_EVENT, BadEvent, Chunk, Merged, UInt64s
from trainer.events.histories import Arrays, EventHistories
from trainer.events.join import Join, JoinCounts, Joined
from trainer.events.views import ViewLists
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import STDIN, Position, RowBatch, mark_of, split_mark
from trainer.formats.cells import column_text, label_columns
from trainer.formats.reader import Bookmarks, expand
from trainer.formats.rejects import Reject
from trainer.sources.files import EventFiles
from trainer.sources.merge import Merger

JOIN = "join"
"""The source of joined rows, in dead letters."""


class EventRows:
    """Takes events from the merger and joins them, step by step. For one thread.

    This is the one place that every event passes on its way to a labelled row, in the order that depends on the events
    alone: for `ftrie trainer`, `ftrie replay` and event logs alike. What is computed from the order of events, such as
    a user's history before a request, is computed in `step` between the merger and the join, where the rows of the
    impressions are in their segment already, and before `Join.push` can emit any of them. What is computed from one
    impression alone, such as a price's rank in its list, is computed earlier, where `trainer.events.parse.Parser` has
    made columns of it: all readers share that parser too, and it runs ahead in their threads.
    """

    def __init__(self, merger: Merger, join: Join, segments: Segments, *specs: ModelSpec) -> None:
        """specs: resolved; segments: those that the merger adds rows to."""
        self.merger, self.join, self.segments = merger, join, segments
        self.histories = EventHistories.of(*specs)
        self._views = ViewLists(specs[0]) if specs[0].join.positive == "view" else None
        self._specs, self._forgotten = specs, np.zeros(0, np.uint64)

    def forget(self, cookies: UInt64s, requests: UInt64s) -> list[bytes]:
        """Forget users and requests by the hashes of their ids: histories, rows that wait, early feedback.

        Events of these requests that were read already are dropped as they come. Returns the cookies that had a
        history. Raises OutputError if rows on disk cannot be erased; then it may be called again.
        """
        gone: list[bytes] = []
        if self._views is not None:
            self._views.forget_users()
        if self.histories is not None:
            requests = np.union1d(requests, self.histories.forget(cookies, requests))
            gone = self.histories.users.forget(cookies)
        # Whose rows the spec reads the cookie of are found by it, though their impressions left the store long ago.
        column = self._specs[0].input.cookie or ""
        shown, kept = self.join.shown(), self.join.segments()
        theirs = np.isin(shown["request"], requests)
        for number in kept.tolist():
            columns, of = self.segments.table(number), np.flatnonzero(shown["segment"] == number)
            if column in columns:
                theirs[of] |= np.isin(digests(column_text(columns[column])), cookies)[shown["row"][of]]
        found = shown[theirs]
        requests = np.union1d(requests, found["request"])
        self._forgotten = np.union1d(self._forgotten, requests)
        self.segments.erase(found["segment"], found["row"], found["rows"])
        self.join.forget(requests)
        return gone

    def _without_forgotten(self, merged: Merged) -> Merged:
        """The events but those of forgotten requests, and their segment without the rows of these."""
        places = np.searchsorted(self._forgotten, merged.request).clip(max=self._forgotten.size - 1)
        kept = self._forgotten[places] != merged.request
        if kept.all():
            return merged
        shown = merged.rows
        events = {name: getattr(merged, name)[kept] for name in PER_EVENT}
        if shown[~kept].any():
            # The rows of one Merged are in one segment, in an order of their own.
            order = np.argsort(np.where(shown, merged.row, -1), kind="stable")
            mask, number = np.repeat(kept[order], shown[order]), int(merged.segment[shown > 0][0])
            before = np.concatenate([[0], np.cumsum(~mask)])
            columns = self.segments.table(number)
            self.segments.replace(
                number, {name: column.filter(pa.array(mask)) for name, column in columns.items()}
            )
            events["row"] = events["row"] - before[np.where(shown, merged.row, 0)[kept]]
        return replace(merged, **events, items=merged.items[np.repeat(kept, shown)])

    def step(self, wait_s: float = 0.0) -> tuple[Merged, Joined] | None:
        """The next events and what the join makes of them; None if there are none within `wait_s` seconds."""
        merged = self.merger.poll(wait_s)
        if merged is None:
            return None
        if merged.back_to_us is not None:
            self.join.step_back(merged.back_to_us)
            if self.histories is not None:
                self.histories.step_back(merged.back_to_us)
        if self._forgotten.size:
            merged = self._without_forgotten(merged)
        if self._views is not None:
            merged = self._views.take(merged, self.segments)
        if self.histories is not None:
            self.histories.take(merged, self.segments)
        return merged, self.join.push(merged)

    def history_state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the histories and of the items viewed; empty if nothing needs them."""
        parts = [each.state() for each in (self.histories, self._views) if each is not None]
        return {name: array for part in parts for name, array in part.items()}

    def restore_history(self, arrays: Arrays) -> None:
        """Continue from a `history_state`. Raises CheckpointError, KeyError."""
        for each in (self.histories, self._views):
            if each is not None:
                each.restore(arrays)


@dataclass(frozen=True)
class BadJoinedRow:
    """A joined row that cannot be learned from: why, and the row as JSON."""

    reason: str
    json: bytes


class JoinedExamples:
    """Labels and hashes joined rows, in their order. `rows` counts them, learned from or not.

    unknown_items: rows skipped because the server did not know the item; they are not in `rows`.
    """

    def __init__(
        self, maker: ExampleMaker, segments: Segments, rows: int = 0, unknown_items: int = 0
    ) -> None:
        self._maker = maker
        self._segments = segments
        self._input = maker.spec.input
        self._learns_unknown = maker.spec.join.unknown_items == "learn"
        self.rows = rows
        self.unknown_items = unknown_items

    def of(self, joined: Joined) -> Iterator[tuple[Examples, list[BadJoinedRow]]]:
        """Examples of consecutive rows whose columns have the same types, and the bad rows among them."""
        for batch in self._batches(joined):
            examples = self._maker.make(batch)
            yield examples, [_bad(batch, reject) for reject in examples.rejects]

    def _batches(self, joined: Joined) -> Iterator[RowBatch]:
        before, rows = self.rows, (joined.segment, joined.row, joined.label)
        for chosen, columns in labelled(self._segments, rows, self._input, self._learns_unknown):
            yield RowBatch(
                columns=columns,
                lines=np.arange(self.rows, self.rows + chosen.size, dtype=np.int64),
                file=JOIN,
                rejects=(),
                rows=chosen.size,
                stop=Position(JOIN),
                first_row=self.rows,
                clicked=joined.clicked[chosen],
            )
            self.rows += chosen.size
        self.unknown_items += len(joined) - (self.rows - before)


def labelled(
    segments: Segments,
    rows: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[Any]],
    given: InputSection,
    with_unknown: bool = True,
    names: Sequence[str] | None = None,
) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, pa.Array]]]:
    """Joined rows in runs of one schema: their numbers among `rows`, and their columns, or those of `names`.

    rows: their segments, their indexes there and their labels, 0 or 1. The label is a column as well, in place of an
    event's own of that name. with_unknown: also rows of items that the server that ranked them had no data on.
    """
    segment, row, label = rows
    for first, columns in segments.gather(segment, row, names):
        chosen = np.arange(first, first + len(next(iter(columns.values()))))
        unknown = None if with_unknown else columns.get(UNKNOWN)  # missing in rows of older checkpoints
        if unknown is not None and unknown.null_count < len(unknown):
            known = pc.fill_null(unknown, 0).to_numpy(zero_copy_only=False) == 0
            columns = {name: column.filter(pa.array(known)) for name, column in columns.items()}
            chosen = chosen[known]
        if chosen.size:
            yield chosen, {**columns, **label_columns(given, label[chosen])}


def _bad(batch: RowBatch, reject: Reject) -> BadJoinedRow:
    row = reject.line - int(batch.lines[0])
    values = {name: _plain(column[row].as_py()) for name, column in batch.columns.items()}
    return BadJoinedRow(
        reject.reason, json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape")
    )


def _plain(value: Any) -> Any:
    """A JSON value: bytes as text, a map as an object."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else [_plain(each) for each in value]
    return value


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
            given = self._specs[0]
            join = Join(given.join.model_copy(update={"late": "count"}), given.input.rows)
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
            self._on_note(
                f"{', '.join(self.names)}: no impression shows an item, so there is no row; views are rows with "
                '[join] positive = "view"'
            )
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
    """Rows of whole requests that count as shown: segment int32, row int64, label int64, clicked bool, one each."""

    def __init__(self, joined: Joined, positives: Int64s) -> None:
        """positives: the keys of the rows that are positive."""
        closed = joined.closed
        lengths = closed.rows.astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        self.segment = np.repeat(closed.segment, lengths)
        self.row = np.repeat(closed.row - starts, lengths) + np.arange(int(lengths.sum()))
        self.clicked = np.repeat(closed.positives > 0, lengths)
        if closed.exposed.size:
            for name in ("segment", "row", "clicked"):
                setattr(self, name, getattr(self, name)[closed.exposed])
        self.keys = mark_of(self.segment.astype(np.int64), self.row)
        self.label = np.isin(self.keys, positives).astype(np.int64)


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
