"""Whether the logs on the command line hold events, to be joined, or labelled rows; and the files of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.columns import Column, Wanted, paths_of
from trainer.events.merge import Merger
from trainer.events.open_sources import EVENTS, ROWS, open_sources
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log, open_log
from trainer.join.join import Join, Joined
from trainer.join.rows import Segments
from trainer.learn.model import LearningModel
from trainer.logs.batch import Position, RowBatch
from trainer.logs.rejects import RejectLog
from trainer.logs.times import NO_TIME, parse_times, time_format
from trainer.off_policy.logged import Layout, LoggedRows, RowCollector, bad_rows
from trainer.runs.dead_letters import Letters
from trainer.runs.stream import EventLoop

# --- What a replay did, whatever its log: how much, how fast, what the predictions were worth, which model
# came of it ---


@dataclass(frozen=True)
class Replayed:
    """A replay that has come to its end.

    kind: events or rows. counts: of events, by name; empty for rows. join: what became of them, empty for rows.
    examples: learned from; rejected: events and rows that could not be. reasons: of these, by category. span_s: from
    the log's first time to its last, None where it has no times.
    """

    kind: str
    model: LearningModel
    examples: int
    rejected: int
    seconds: float
    span_s: float | None
    counts: Mapping[str, int] = field(default_factory=dict)
    join: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def speed(self) -> float | None:
        """How many times faster than the log was written."""
        return self.span_s / self.seconds if self.span_s and self.seconds else None

    def as_dict(self) -> dict[str, object]:
        """The JSON form, without the model's bytes."""
        return {
            "kind": self.kind,
            "events": dict(self.counts) or None,
            "join": dict(self.join) or None,
            "examples": self.examples,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "seconds": round(self.seconds, 6),
            "span_s": self.span_s,
            "speed": self.speed and round(self.speed, 1),
            "keys": self.model.table.used,
            "variants": {name: metrics.as_dict() for name, metrics in self.model.metrics.summary().items()},
        }


# --- Replaying events: the daemon's own loop of merge, join and learner, over sources that end, and nothing
# published ---
#
# What it learns is what `ftrie trainer` learns from the same events: it is the same code, told that the
# sources end.


WAIT_S = 0.2
MEMORY_BYTES = 1 << 30


def as_events(spec: ModelSpec) -> ModelSpec:
    """The spec with its fields named, for events, which have no columns to name them by. Raises SpecError."""
    named = [field.column or name for name, field in spec.fields.items()]
    return spec.resolve((*named, *spec.input.named_columns))


def replay_events(
    spec: ModelSpec,
    logs: Sequence[str],
    store: Store | None = None,
    *,
    tap: JoinedTap | None = None,
    memory_bytes: int = MEMORY_BYTES,
    on_progress: Callable[[EventLoop], None] = lambda loop: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Replayed:
    """Learn from impressions and feedback to the end of all logs. `tap` is given every joined row as well.

    Rows that wait for their clicks take up to memory_bytes, then lie in a folder that goes when this ends. Raises
    SpecError, InputError, StoreUnavailable.
    """
    began = time.perf_counter()
    resolved = as_events(spec)
    with ExitStack() as stack:
        sources = open_sources(logs, spec, store, (), on_note, once=True)
        folder = stack.enter_context(TemporaryDirectory(prefix="ftrie-replay-"))
        segments = Segments(Path(folder), memory_bytes)
        merger = Merger(sources, _wanted(resolved, tap), segments, once=True, on_note=on_note)
        stack.callback(merger.close)
        model = LearningModel(ExampleMaker(resolved))
        letters, span = Letters(None), _Span()

        def joined(found: Joined, segments: Segments) -> None:
            span.add(found)
            if tap is not None:
                tap.add(found, segments)

        loop = EventLoop(merger, Join(resolved.join), segments, model, letters, joined)
        while not loop.ended:
            loop.step(WAIT_S)
            on_progress(loop)
        loop.finish()
        on_progress(loop)
    return Replayed(
        kind=EVENTS,
        model=model,
        examples=loop.counts.examples,
        rejected=loop.counts.bad_events + loop.counts.bad_rows,
        seconds=time.perf_counter() - began,
        span_s=span.seconds,
        counts=loop.counts.as_dict(),
        join=dict(vars(loop.join.counts)),
        reasons=dict(letters.reasons.most_common()),
    )


def _wanted(resolved: ModelSpec, tap: JoinedTap | None) -> Wanted:
    """What the spec's joined rows have, and what the tap asks for besides: as text, which every kind is read from."""
    wanted = Wanted.of(resolved)
    known = set(wanted.names)
    more = [name for name in (tap.columns if tap is not None else ()) if name not in known]
    extra = tuple(Column(name, "text", paths_of(resolved, name)) for name in dict.fromkeys(more))
    return replace(wanted, columns=wanted.columns + extra)


class _Span:
    """From the first closed request's time to the last's."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    @property
    def seconds(self) -> float | None:
        """None where no request was closed."""
        return (max(self._ends) - min(self._ends)) / 1e6 if self._ends else None

    def add(self, joined: Joined) -> None:
        """Look at what the join gave out."""
        times = np.asarray(joined.closed.time_us)
        if times.size:
            self._ends = [min([int(times.min()), *self._ends]), max([int(times.max()), *self._ends])]


# --- Replaying labelled rows: no join, for a row carries its label. The learner is the one that joined events
# go to ---


def replay_rows(
    spec: ModelSpec,
    log: Log,
    *,
    rejects: RejectLog,
    threads: int | None = None,
    on_progress: Callable[[LearningModel, int | None], None] = lambda model, expected: None,
) -> Replayed:
    """Learn from every row in turn, as `ftrie train` does. on_progress: told of how many rows are expected.

    Raises SpecError where the spec does not fit the log, InputError where the log cannot be read to its end.
    """
    began = time.perf_counter()
    with open_log(log, spec) as opened:
        model, span = LearningModel(opened.maker), _SpanRows(opened.spec)
        stamp = spec.input.timestamp
        batches = span.of(opened.batches([stamp] if stamp in opened.columns else []))
        with opened.examples(threads, batches=batches) as stream:
            for examples in stream:
                rejects.add_all(examples.rejects)
                model.learn(examples)
                on_progress(model, opened.expected_rows(model.rows))
    for warning in opened.requests.warnings():
        log.on_note(warning)
    seconds = time.perf_counter() - began
    return Replayed(ROWS, model, model.rows, rejects.count, seconds, span.seconds, reasons=rejects.counts)


class _SpanRows:
    """From the first to the last time of a log, by the first and the last row of every batch."""

    def __init__(self, spec: ModelSpec) -> None:
        self._column = spec.input.timestamp
        self._form = time_format(spec)
        self._first: int | None = None
        self._last: int | None = None

    @property
    def seconds(self) -> float | None:
        """None where no row has a time."""
        return None if self._first is None or self._last is None else (self._last - self._first) / 1e6

    def of(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The batches, looked at as they pass."""
        for batch in batches:
            column = batch.columns.get(self._column) if self._column else None
            if column is not None and batch.rows:
                ends, _ = parse_times(column.take([0, batch.rows - 1]), self._form)
                self._pass([int(each) for each in ends if each != NO_TIME])
            yield batch

    def _pass(self, times: Sequence[int]) -> None:
        if times:
            self._first = min(times) if self._first is None else min(self._first, *times)
            self._last = max(times) if self._last is None else max(self._last, *times)


# --- Keeps what the join gives out, for estimates: every impression's rows in the order shown, with what came
# of them ---


_ROWS_A_SEGMENT = 40
"""Bits of a row's number in its key; the segment's number stands above them."""


@dataclass
class JoinedTap:
    """Collects joined rows. columns: those that estimates want, besides what the spec of the replay wants.

    A row that the join gives out again, corrected by a late click, counts as it was given out last.
    """

    spec: ModelSpec
    columns: Sequence[str]
    _batches: list[RowBatch] = field(default_factory=list)
    _keys: list[Any] = field(default_factory=list)
    _rows: int = 0

    def add(self, joined: Joined, segments: Segments) -> None:
        """Keep the rows of one step."""
        keys = joined.segment.astype(np.int64) << _ROWS_A_SEGMENT | joined.row
        for first, columns in segments.gather(joined.segment, joined.row):
            rows = len(next(iter(columns.values())))
            mine = slice(first, first + rows)
            label = pa.array(joined.label[mine].astype(np.int64))
            self._batches.append(
                RowBatch(
                    columns={**columns, self.spec.input.label: label},
                    lines=np.arange(self._rows, self._rows + rows, dtype=np.int64),
                    file="join",
                    rejects=(),
                    rows=rows,
                    stop=Position("join"),
                )
            )
            self._keys.append(keys[mine])
            self._rows += rows

    def read(
        self,
        models: Sequence[ModelSpec],
        propensity: str | None,
        position: str | None,
        decision: str,
        on_rows: Callable[[int], None] = lambda rows: None,
    ) -> tuple[LoggedRows, Layout]:
        """The rows, without those that are no example to one of the (resolved) models. Raises SpecError, InputError."""
        names = tuple(self._batches[0].columns) if self._batches else ()
        layout = Layout.of(names, propensity, position)
        collector = RowCollector(self.spec.input, layout)
        makers = [ExampleMaker(spec) for spec in models]
        rows = 0
        for batch, keys in zip(self._batches, self._keys, strict=True):
            collector.add(batch, bad_rows(batch, makers), keys)
            rows += batch.rows
            on_rows(rows)
        return collector.rows(decision), layout
