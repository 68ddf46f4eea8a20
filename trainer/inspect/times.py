"""The times of rows or events: their order, their units, impossible ones, and the rows and clicks of each day.

In: batches of times, in the order of the files. Out: findings. Memory: two numbers a day.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_store.features.cells import number_column, plain
from model_store.features.values import EPOCHS
from trainer.formats.times import MICROSECONDS, NO_TIME, parse_times
from trainer.inspect.columns import Bools, Rows
from trainer.inspect.findings import Finding, Severity, cut, listed, percent
from trainer.inspect.roles import Places
from trainer.inspect.sketches import Int64s

_HOUR_US, _DAY_US = 3600 * MICROSECONDS, 86_400 * MICROSECONDS
_AHEAD_US = _DAY_US
"""So far ahead of the present a time may be: clocks of other zones."""
_EARLIEST_US = 315_532_800 * MICROSECONDS
"""1980: what is earlier is no time of a click, but 0 or a number of another unit."""
_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_BOUNDS = np.array([1e11, 1e14, 1e17])
"""From so many on, a number since 1970 is of the next unit; as in `trainer.formats.times`."""
_UNSORTED = 0.01
"""The share of rows more than an hour too late from which on an order is none."""
_MANY = 0.01
_THIN = 0.1
_FEWEST_EXPECTED = 20.0
"""Clicks that a day must be expected to have before its rate is judged."""
SHIFT, SURE = 1.5, 6.0
"""A day's click rate is so many times the others', and so many standard errors away from it."""
_LOST = 0.05


class Order:
    """How times go on within one stream: how often and how far back."""

    def __init__(self) -> None:
        self.latest = NO_TIME
        self.rows = self.back = self.far_back = 0
        self.most_us = 0
        self.mark = -1

    def add(self, times: Int64s, marks: Int64s, far_us: int = _HOUR_US) -> None:
        """The next times, all valid; `far_back` counts those that are later by more than `far_us`."""
        if not times.size:
            return
        latest = np.maximum.accumulate(np.concatenate([[self.latest], times]))
        behind = latest[:-1] - times
        behind[latest[:-1] == NO_TIME] = 0
        self.latest = int(latest[-1])
        self.rows += times.size
        self.back += int(np.count_nonzero(behind > 0))
        self.far_back += int(np.count_nonzero(behind > far_us))
        worst = int(np.argmax(behind))
        if behind[worst] > self.most_us:
            self.most_us, self.mark = int(behind[worst]), int(marks[worst])


class Times:
    """The checks on the times of a log's rows, or of its events. column: its name, in messages.

    lateness_us: of events, how late the join lets one come.
    """

    def __init__(
        self, column: str, form: str | None, what: str = "rows", lateness_us: int | None = None
    ) -> None:
        self.column, self._form, self._what, self._lateness_us = column, form, what, lateness_us
        self._now_us = time.time_ns() // 1000
        self._rows = 0
        self._orders: dict[str, Order] = {}
        self._unread, self._unread_mark, self._unread_text = 0, -1, ""
        self._early, self._early_mark = 0, -1
        self._future, self._future_mark = 0, -1
        self._units = np.zeros(4, np.int64)
        self._unit_marks = np.full(4, -1, np.int64)
        self._days: dict[int, list[float]] = {}

    def parsed(self, column: Any, marks: Int64s) -> Int64s:
        """The times of a column in microseconds, NO_TIME where there is none; counts units and what cannot be read."""
        array = plain(column)
        times = _fast(array) if self._form is None else None
        if times is None:
            times, bad = parse_times(array, self._form)
            if bad:
                self._unread += len(bad)
                if self._unread_mark < 0:
                    row = bad[0][0]
                    self._unread_mark, self._unread_text = int(marks[row]), _text(array[row].as_py())
            self._count_units(array, marks)
        return times

    def add(self, times: Int64s, marks: Int64s, stream: str) -> Bools:
        """Count the next times of a stream; returns which rows have a plausible time: bool[rows]."""
        self._rows += times.size
        known = times != NO_TIME
        early = known & (times < _EARLIEST_US)
        future = known & (times > self._now_us + _AHEAD_US)
        if early.any():
            self._early += int(np.count_nonzero(early))
            self._early_mark = int(marks[np.argmax(early)]) if self._early_mark < 0 else self._early_mark
        if future.any():
            self._future += int(np.count_nonzero(future))
            self._future_mark = int(marks[np.argmax(future)]) if self._future_mark < 0 else self._future_mark
        good: Bools = known & ~early & ~future
        far_us = _HOUR_US if self._lateness_us is None else self._lateness_us
        self._orders.setdefault(stream, Order()).add(times[good], marks[good], far_us)
        return good

    def add_days(self, times: Int64s, good: Bools, rows: Rows) -> None:
        """Count views and clicks of each day."""
        days, group = np.unique(times[good] // _DAY_US, return_inverse=True)
        views, clicks = np.bincount(group, rows.views[good]), np.bincount(group, rows.clicks[good])
        for day, seen, clicked in zip(days.tolist(), views.tolist(), clicks.tolist(), strict=True):
            found = self._days.setdefault(day, [0.0, 0.0])
            found[0] += seen
            found[1] += clicked

    def findings(self, places: Places) -> Iterator[Finding]:
        """What is wrong with the times."""
        yield from self._odd(places)
        yield from self._order(places)
        yield from self.findings_on_days()

    def findings_on_days(self) -> Iterator[Finding]:
        """Days without rows, and days whose click rate is another."""
        if len(self._days) > 1:
            yield from self._missing_days()
            yield from self._shifts()

    def _count_units(self, array: Any, marks: Int64s) -> None:
        if self._form not in (None, *EPOCHS) or pa.types.is_list(array.type):
            return
        try:
            numbers = number_column(array)[0]
        except (pa.ArrowException, ValueError):
            return
        known = np.flatnonzero(np.isfinite(numbers) & (numbers != 0.0))
        units = np.searchsorted(_BOUNDS, np.abs(numbers[known]), side="right")
        self._units += np.bincount(units, minlength=4)
        for unit in np.unique(units).tolist():
            if self._unit_marks[unit] < 0:
                self._unit_marks[unit] = marks[known[np.argmax(units == unit)]]

    def _odd(self, places: Places) -> Iterator[Finding]:
        usual = list(EPOCHS).index(self._form) if self._form in EPOCHS else int(np.argmax(self._units))
        wrong = [unit for unit in range(4) if unit != usual and self._units[unit]]
        count = int(sum(self._units[unit] for unit in wrong))
        if count:
            most = max(wrong, key=lambda unit: int(self._units[unit]))
            declared = self._form is not None
            remedy = "write all times in one unit"
            if declared and count > self._rows / 2:
                remedy = f'format = "{list(EPOCHS)[most]}" in the fields that read {self.column}'
            yield Finding(
                "error" if count >= _MANY * self._rows or declared else "warning",
                "time-unit",
                f"{self.column}: numbers of {_UNITS[most]}, "
                + (f"read as {_UNITS[usual]}" if declared else f"the others are of {_UNITS[usual]}"),
                remedy,
                count=count,
                of=self._rows,
                unit=self._what,
                columns=(self.column,),
                where=places.where(int(self._unit_marks[most])),
            )
        early, future = self._early, self._future
        if count and self._form is not None:  # the unit says why
            early = future = 0
        for number, mark, what in (
            (early, self._early_mark, "before 1980, which is 0 or a number of another unit"),
            (future, self._future_mark, "in the future"),
            (self._unread, self._unread_mark, "that cannot be read"),
        ):
            if number:
                severity: Severity = "error" if number >= _MANY * self._rows else "warning"
                yield Finding(
                    severity,
                    "time-odd",
                    f"{self.column}: times {what}",
                    "correct the clock that writes them, or leave these rows out",
                    count=number,
                    of=self._rows,
                    unit=self._what,
                    columns=(self.column,),
                    example=self._unread_text if what.startswith("that") else "",
                    where=places.where(mark),
                )

    def _order(self, places: Places) -> Iterator[Finding]:
        orders = self._orders.values()
        back, far = sum(each.back for each in orders), sum(each.far_back for each in orders)
        if not back:
            return
        worst = max(orders, key=lambda each: each.most_us)
        unsorted = far >= _UNSORTED * self._rows
        most, remedy = (
            "an hour",
            "it is learned in its order, and the loss of a row is that of a model of the rows before",
        )
        if self._lateness_us is not None:
            most = f"{span(self._lateness_us)}, [join] lateness"
            remedy = (
                "`ftrie trainer` loses the clicks of these events; `ftrie train` sorts what fits in memory"
            )
        yield Finding(
            "warning" if unsorted else "note",
            "time-backwards",
            f"{self.column} runs backwards, {far:,} times by more than {most}, by {span(worst.most_us)} at most",
            f"sort the log by {self.column}: {remedy}"
            if unsorted
            else "none, if several machines write the log; else sort it",
            count=back,
            of=self._rows,
            unit=self._what,
            columns=(self.column,),
            where=places.where(worst.mark),
        )

    def _missing_days(self) -> Iterator[Finding]:
        usual = float(np.median([views for views, _ in self._days.values()]))
        solid = sorted(day for day, (views, _) in self._days.items() if views >= usual / 100)
        within = range(solid[0], solid[-1] + 1)
        if len(within) > 20 * len(solid):
            return  # a few times of another age, not gaps
        missing = [day for day in within if day not in self._days]
        thin = [day for day in solid[1:-1] if self._days[day][0] < _THIN * usual]
        if len(solid) < 3 or not (missing or thin):
            return
        told = []
        if missing:
            told.append(f"{len(missing):,} days have no row: {listed([_day(day) for day in missing], 3)}")
        if thin:
            shown = [f"{_day(day)} ({self._days[day][0]:,.0f})" for day in thin]
            told.append(
                f"{len(thin):,} have fewer than a tenth of the usual {usual:,.0f}: {listed(shown, 3)}"
            )
        yield Finding(
            "warning",
            "days-missing",
            f"{self.column}: {'; '.join(told)}",
            "look whether files are missing, or whether the writer was down",
            count=len(missing) + len(thin),
            of=len(within),
            unit="days",
            columns=(self.column,),
            example=_day((missing or thin)[0]),
        )

    def _shifts(self) -> Iterator[Finding]:
        """Days whose click rate differs from the others' by much, and surely."""
        days = sorted(day for day, (views, _) in self._days.items() if views > 0)
        views = np.array([self._days[day][0] for day in days])
        clicks = np.array([self._days[day][1] for day in days])
        pooled = clicks.sum() / views.sum() if views.sum() else 0.0
        judged = np.flatnonzero(pooled * views >= _FEWEST_EXPECTED)
        if judged.size < 2 or not 0.0 < pooled < 1.0:
            return
        found = []
        for at in judged.tolist():
            rest = judged[judged != at]
            usual = float(np.median(clicks[rest] / views[rest]))
            rate, expected = clicks[at] / views[at], usual * views[at]
            error = np.sqrt(max(usual * (1 - usual), 1e-12) * (1 / views[at] + 1 / views[rest].sum()))
            ratio = max(rate, 1e-12) / max(usual, 1e-12)
            if abs(rate - usual) >= SURE * error and max(ratio, 1 / ratio) >= SHIFT:
                lost = rate <= _LOST * usual and expected >= 2 * _FEWEST_EXPECTED
                found.append((days[at], float(rate), usual, lost, float(views[at])))
        if len(judged) == 2 and len(found) == 2:
            found = [min(found, key=lambda each: (not each[3], each[4]))]
        if not found:
            return
        shown = [f"{_day(day)} {percent(rate, 1)}" for day, rate, _, _, _ in found]
        lost = any(each[3] for each in found)
        yield Finding(
            "error" if lost else "warning",
            "click-rate-shift",
            f"the click rate of {len(found):,} of {len(judged):,} days is another than that of the others, "
            f"{percent(found[0][2], 1)}: {listed(shown, 4)}",
            "leave out days whose clicks were lost: --since and --until"
            if lost
            else "look what changed that day: placement, traffic, bots, or how clicks are counted",
            count=len(found),
            of=int(judged.size),
            unit="days",
            columns=(self.column,),
            example=_day(found[0][0]),
        )


def _fast(array: Any) -> Int64s | None:
    """ISO-8601 texts of one kind as times, by Arrow; None for anything else."""
    if not pa.types.is_binary(array.type) or not len(array):
        return None
    try:
        texts = pc.if_else(pc.equal(pc.binary_length(array), 0), pa.scalar(None, pa.binary()), array)
        texts = texts.cast(pa.string())
        if pc.any(pc.match_substring_regex(texts, r"^\d+(\.\d*)?$")).as_py():
            return None
        zoned = pc.any(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$")).as_py()
        moments = texts.cast(pa.timestamp("us", "UTC") if zoned else pa.timestamp("us"))
    except pa.ArrowException:
        return None
    return np.asarray(moments.cast(pa.int64()).fill_null(NO_TIME)).astype(np.int64)


def span(us: int) -> str:
    """A time span in words: 3.2 h."""
    for unit, size in (("days", _DAY_US), ("h", _HOUR_US), ("min", 60 * MICROSECONDS), ("s", MICROSECONDS)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us / 1000:.3g} ms"


def _day(day: int) -> str:
    return str(np.datetime64(day, "D"))


def _text(value: Any) -> str:
    return cut(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
