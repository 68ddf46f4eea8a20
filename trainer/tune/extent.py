"""The extent of a log: its rows, whether they are in order of time, and where its last part begins.

A search chooses on the rows before the last part, and is judged on the last part once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import InputError, SpecError
from model_store.spec.sections import seconds_of
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import OpenLog, open_log
from trainer.examples.requests import Sample
from trainer.formats.times import MICROSECONDS, NO_TIME, parse_times, time_format
from trainer.tune.passes import RepeatedLog

MOST_MARKS = 1 << 16

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LastPart:
    """The last part of a log: a share of its rows, or the rows within so many seconds of the last."""

    share: float = 0.0
    seconds: int = 0

    @classmethod
    def of(cls, text: str) -> LastPart:
        """Parse `0.2` or `1d`. Raises ValueError."""
        try:
            share = float(text)
        except ValueError:
            seconds = seconds_of(text)
            if not seconds:
                raise ValueError(f"got {text!r}; expected a time span above 0") from None
            return cls(seconds=seconds)
        if not 0.0 <= share < 1.0:
            raise ValueError(
                f"got {text!r}; expected a share from 0 to below 1, such as 0.2, or a time span such as 1d"
            )
        return cls(share=share)


@dataclass(frozen=True)
class Extent:
    """rows: those that are learned; rejected: the others; split: the first row, from 0, of the last part, if any.

    begin, split_time, end: the times of the first row, of the row at the split and of the latest row, ISO 8601; None
    where the spec names no timestamp. unordered: rows earlier than a row before them.
    """

    rows: int
    rejected: int
    split: int | None
    begin: str | None = None
    split_time: str | None = None
    end: str | None = None
    unordered: int = 0

    def warnings(self) -> Iterator[str]:
        """Warnings for the user about the order of the rows."""
        if self.unordered:
            share = 100.0 * self.unordered / self.rows
            yield (
                f"{self.unordered:,} rows ({share:.3g} %) are earlier than a row before them: the log is not in "
                "order of time, so its last part is not its latest; sort it, or give its files in order of time"
            )


def measure(log: RepeatedLog, spec: ModelSpec, held_out: LastPart) -> Extent:
    """Read the log once and find its last part. Raises SpecError, InputError where that cannot be."""
    if held_out.seconds and spec.input.timestamp is None:
        raise SpecError(
            "--hold-out: a time span needs the time of every row: set input.timestamp, or give a share"
        )
    key = log.state.key("extent", asdict(held_out)) if log.state is not None else ""
    if log.state is not None and (kept := log.state.get(key)) is not None:
        return Extent(**kept)
    extent = _measured(log, spec, held_out)
    if log.state is not None:
        log.state.put(key, asdict(extent))
    return extent


def count_rows(log: RepeatedLog, spec: ModelSpec) -> int:
    """The number of rows of the log that would be learned."""
    return measure(log, spec, LastPart()).rows


def _measured(log: RepeatedLog, spec: ModelSpec, held_out: LastPart) -> Extent:
    rows, rejected, clock = 0, 0, _Clock()
    with _timed_examples(log, spec) as (opened, stream):
        for examples in stream:
            rows += int(examples.hashed.labels.size)
            rejected += len(examples.rejects)
            clock.add(examples.times)
            log.on_progress(rows, opened.expected_rows(rows))
    times: dict[str, Any] = {
        "begin": _iso(clock.first),
        "end": _iso(clock.latest),
        "unordered": clock.unordered,
    }
    if not rows or not (held_out.share or held_out.seconds):
        return Extent(rows, rejected, None, **times)
    if held_out.share:
        split = rows - max(1, math.floor(rows * held_out.share))
    else:
        split = clock.first_row_after(clock.latest - held_out.seconds * MICROSECONDS)
    if not 0 < split < rows:
        raise InputError(
            f"--hold-out: of {rows:,} rows {split:,} would be left to choose by; hold out a smaller part"
        )
    return Extent(rows, rejected, split, split_time=_iso(clock.time_of(split)), **times)


@contextmanager
def _timed_examples(log: RepeatedLog, spec: ModelSpec) -> Iterator[tuple[OpenLog, Iterator[Examples]]]:
    """The log's examples, with their times if the spec names a timestamp."""
    with open_log(log.log, spec) as opened:
        if spec.input.timestamp is None:
            with opened.examples(log.threads) as stream:
                yield opened, stream
            return
        batches = opened.batches([spec.input.timestamp])
        with opened.examples(log.threads, maker=_TimedMaker(opened.spec), batches=batches) as stream:
            yield opened, stream


class _TimedMaker(ExampleMaker):
    """Makes examples with times whether or not the learner needs them. A row without a time has NO_TIME."""

    def _outcomes(self, sample: Sample, bad: dict[int, str]) -> tuple[Any, Any, Any]:
        labels, weights, times = super()._outcomes(sample, bad)
        if not times.size and self.spec.input.timestamp is not None:
            times, _ = parse_times(sample.batch.columns[self.spec.input.timestamp], time_format(self.spec))
        return labels, weights, times


class _Clock:
    """The latest time so far at every 2^k-th row, at most 65,536 of them, and how many rows are out of order."""

    def __init__(self) -> None:
        self.first = self.latest = NO_TIME
        self.unordered = 0
        self._rows, self._step = 0, 1
        self._marks = np.empty(0, np.int64)

    def add(self, times: Times) -> None:
        """Add the next rows; none where rows have no times."""
        if not times.size:
            return
        latest = np.maximum.accumulate(np.maximum(times, self.latest))
        self.unordered += int(np.count_nonzero((times < latest) & (times != NO_TIME)))
        if self.first == NO_TIME:
            self.first = int(next(iter(times[times != NO_TIME]), NO_TIME))
        self.latest = int(latest[-1])
        self._marks = np.append(self._marks, latest[-self._rows % self._step :: self._step])
        self._rows += times.size
        while self._marks.size > MOST_MARKS:
            self._marks = self._marks[::2]
            self._step *= 2

    def first_row_after(self, time: int) -> int:
        """The first row later than `time`, or up to 2^k - 1 rows after it."""
        return int(np.searchsorted(self._marks, time, side="right")) * self._step

    def time_of(self, row: int) -> int:
        """The latest time up to this row, or to one up to 2^k - 1 rows before it."""
        return int(self._marks[row // self._step]) if self._marks.size else NO_TIME


def _iso(time_us: int) -> str | None:
    return None if time_us == NO_TIME else datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
