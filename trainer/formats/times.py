"""The time of every row, in microseconds since 1970, UTC: the clock that a time to live goes by.

A column of numbers is seconds, milliseconds, microseconds or nanoseconds since 1970, told by their size; other text is
ISO-8601, UTC where it names no zone. Where a time field of the spec reads the same column, its `format` holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import FieldValueError, SpecError
from model_store.spec.spec import ModelSpec
from model_store.spec.values import EPOCHS, decoded, parse_number, parse_time
from trainer.formats.batch import RowBatch
from trainer.formats.cells import by_distinct, plain, text_column
from trainer.formats.rejects import Reject

NO_TIME = np.iinfo(np.int64).min
MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FROM_MILLISECONDS = 1e11  # as seconds, the year 5138; as milliseconds, 1973
_FROM_MICROSECONDS = 1e14
_FROM_NANOSECONDS = 1e17
_LATEST = 9e18

Times = npt.NDArray[np.int64]
Bad = list[tuple[int, str]]


@dataclass(frozen=True)
class Period:
    """Rows from one time on and before another, in microseconds since 1970. column: their times; None for all rows."""

    column: str | None
    form: str | None
    since_us: int
    until_us: int

    @classmethod
    def of(cls, spec: ModelSpec, since: str | None, until: str | None) -> Period:
        """From texts in the format of the log's times, or ISO-8601; None for no bound. Raises SpecError."""
        if since is None and until is None:
            return cls(None, None, 0, 0)
        if spec.input.timestamp is None:
            raise SpecError("--since and --until need the rows' times: set input.timestamp")
        form = time_format(spec)
        first = NO_TIME + 1 if since is None else _bound("--since", since, form)
        last = np.iinfo(np.int64).max if until is None else _bound("--until", until, form)
        return cls(spec.input.timestamp, form, first, int(last))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs."""
        return () if self.column is None else (self.column,)

    def rows(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The rows in the period; those without a time are rejected."""
        for batch in batches:
            yield batch if self.column is None or not batch.rows else self._inside(batch, self.column)

    def _inside(self, batch: RowBatch, column: str) -> RowBatch:
        times, bad = parse_times(batch.columns[column], self.form)
        reasons = dict(bad)
        absent = [row for row in np.flatnonzero(times == NO_TIME).tolist() if row not in reasons]
        reasons |= dict.fromkeys(absent, "got no value, expected a time, which --since and --until go by")
        inside = (times >= self.since_us) & (times < self.until_us)
        inside[list(reasons)] = False
        rejects = [Reject(batch.file, int(batch.lines[row]), f"{column}: {reasons[row]}") for row in reasons]
        return batch.where(inside, rejects)


def _bound(flag: str, text: str, form: str | None) -> int:
    for each in (form, None):
        times, bad = parse_times(pa.array([text]), each)
        if not bad and times[0] != NO_TIME:
            return int(times[0])
    like = "" if form is None else f", or one like {form}"
    raise SpecError(f"{flag}: got {text!r}, expected a time such as 2026-11-21T18:00:00Z{like}")


def time_format(spec: ModelSpec) -> str | None:
    """The format of the timestamp column, if a time field of the spec reads it and names a format."""
    for name, field in spec.fields.items():
        if field.kind == "time" and field.format and (field.column or name) == spec.input.timestamp:
            return field.format
    return None


def parse_times(array: Any, form: str | None) -> tuple[Times, Bad]:
    """Times of a column, NO_TIME where empty, and the (row, reason) of values that are not times.

    form: None, or as in a time field: one of EPOCHS, or strptime's letters.
    """
    array = plain(array)
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        times = array.cast(pa.timestamp("us")).cast(pa.int64())
        return np.asarray(times.fill_null(NO_TIME)), []
    if pa.types.is_list(array.type):
        return np.full(len(array), NO_TIME), [
            (row, "got a list, expected a time") for row in range(len(array))
        ]
    numbers = _all_numbers(array) if form is None or form in EPOCHS else None
    if numbers is not None:
        return _of_numbers(numbers, form), []
    return _by_text(text_column(array), form)


def _all_numbers(array: Any) -> npt.NDArray[np.float64] | None:
    """A column of numbers, NaN where null; None for another type, or if a number is not a time."""
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return None
    numbers: npt.NDArray[np.float64] = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    timely = np.abs(numbers) <= _LATEST
    return numbers if (timely | np.asarray(array.is_null())).all() else None


def _by_text(text: Any, form: str | None) -> tuple[Times, Bad]:
    """Numbers at once if all values are numbers; else by distinct text."""
    if form is None or form in EPOCHS:
        empty = pc.equal(pc.binary_length(text), 0)
        try:
            present = pc.if_else(empty, pa.scalar(None, pa.binary()), text)
            numbers = present.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            numbers = np.full(len(text), np.nan)
        if (np.abs(numbers) <= _LATEST)[~np.asarray(empty)].all():
            return _of_numbers(numbers, form), []
    return by_distinct(text, lambda value: _time_of(value, form), int(NO_TIME), np.int64)


@lru_cache(maxsize=1 << 16)
def _time_of(text: bytes, form: str | None) -> int:
    if not text:
        return int(NO_TIME)
    if form is None or form in EPOCHS:
        with suppress(FieldValueError):
            if abs(number := parse_number(text)) <= _LATEST:
                return int(_of_numbers(np.array([number]), form)[0])
    if form in EPOCHS:
        raise FieldValueError(f"got {decoded(text)!r}, expected a time like {form}")
    return (parse_time(decoded(text), form) - _EPOCH) // _MICROSECOND


def _of_numbers(numbers: npt.NDArray[np.float64], form: str | None) -> Times:
    """Microseconds, rounded down; NO_TIME for NaN."""
    size = np.abs(numbers)
    if form is None:
        scale = np.where(size < _FROM_MILLISECONDS, float(MICROSECONDS), 1000.0)
        scale = np.where(size >= _FROM_MICROSECONDS, 1.0, scale)
        scale = np.where(size >= _FROM_NANOSECONDS, 0.001, scale)
    else:
        scale = np.full(numbers.size, MICROSECONDS / EPOCHS[form])
    known = ~np.isnan(numbers)
    microseconds = np.floor(np.where(known, numbers, 0.0) * scale)
    return np.where(known, microseconds, NO_TIME).astype(np.int64)
