"""Replaying labelled rows: no join, for a row carries its label. The learner is the one that joined events go to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from model_store.spec import ModelSpec
from trainer.admission.eviction import NO_TIME
from trainer.beginning import begin
from trainer.hashing.examples import ExampleMaker
from trainer.model import LearningModel
from trainer.pipeline import default_threads, examples_of
from trainer.rejects import RejectLog
from trainer.replaying.kinds import ROWS
from trainer.replaying.replayed import Replayed
from trainer.requests.whole import WholeRequests
from trainer.side_tables import SideTable, joined
from trainer.sources import LogReader, RowBatch
from trainer.times import parse_times, time_format


def replay_rows(
    spec: ModelSpec,
    inputs: Sequence[str],
    *,
    rejects: RejectLog,
    format: str | None = None,
    tables: Sequence[SideTable] = (),
    threads: int | None = None,
    on_progress: Callable[[LearningModel, int | None], None] = lambda model, expected: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Replayed:
    """Learn from every row in turn, as `ftrie train` does. on_progress: told of how many rows are expected.

    Raises SpecError where the spec does not fit the log, InputError where the log cannot be read to its end.
    """
    began = time.perf_counter()
    with LogReader(inputs, format=format, on_note=on_note) as reader:
        beginning = begin(spec, reader, tables, on_note)
        maker = ExampleMaker(beginning.resolved)
        model, span = LearningModel(maker), _Span(maker.spec)
        stamp = spec.input.timestamp
        read = tuple(dict.fromkeys([*beginning.columns, *([stamp] if stamp in reader.columns() else [])]))
        batches = span.of(joined(reader.batches(read), tables, maker.spec.wanted_columns()))
        requests = WholeRequests(maker.spec)
        with examples_of(requests.of(batches), maker, threads or default_threads()) as stream:
            for examples in stream:
                rejects.add_all(examples.rejects)
                model.learn(examples)
                total, done = reader.total_bytes, reader.bytes_read()
                on_progress(model, int(model.rows * total / done) if total and done else None)
    for warning in requests.warnings():
        on_note(warning)
    seconds = time.perf_counter() - began
    return Replayed(ROWS, model, model.rows, rejects.count, seconds, span.seconds, reasons=rejects.counts)


class _Span:
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
