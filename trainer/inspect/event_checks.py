"""Checks on times, and on events before they are joined: clicks without impressions, repeated requests, wrong times.

In: batches of times, in the order of the files; the chunks of event files, as they are read. Out: findings. Memory: two
numbers a day; about 40 bytes an event, until there are MOST_KEPT: then every second request is dropped, with its
clicks, as often as needed, and counts are estimates.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_store.spec.spec import ModelSpec
from model_store.spec.values import EPOCHS
from trainer.events.columns import Wanted
from trainer.events.events import CONVERSION, FEEDBACK, IMPRESSION, Chunk
from trainer.events.parse import Parser
from trainer.formats.cells import number_column, plain
from trainer.formats.times import MICROSECONDS, NO_TIME, parse_times
from trainer.inspect.columns import Bools, CheckedRows, Int64s, UInt64s, mixed
from trainer.inspect.findings import Cases, Findings, Places, Severity, listed, percent, words_of

# --- Times of rows or events ---


_HOUR_US, _DAY_US = 3600 * MICROSECONDS, 86_400 * MICROSECONDS
_AHEAD_US = _DAY_US
"""How far ahead of the present a time may be: clocks of other zones."""
_EARLIEST_US = 315_532_800 * MICROSECONDS
"""1980: what is earlier is no time of a click, but 0 or a number of another unit."""
_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_BOUNDS = np.array([1e11, 1e14, 1e17])
"""Above each bound a number since 1970 is of the next unit; as in `trainer.formats.times`."""
_UNSORTED = 0.01
"""At this share of rows more than an hour too late a log is not in order."""
_MANY = 0.01
_THIN = 0.1
_FEWEST_EXPECTED = 20.0
"""Clicks that a day must be expected to have before its rate is judged."""
SHIFT, SURE = 1.5, 6.0
"""How many times the others' a day's click rate must be, and by how many standard errors."""
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

    lateness_us: of events, how late the join lets one come; joined: rows that were joined, whose events have been
    checked for all but the days.
    """

    def __init__(
        self, column: str, form: str | None, lateness_us: int | None = None, joined: bool = False
    ) -> None:
        self.column, self._form, self._lateness_us, self._joined = column, form, lateness_us, joined
        self._what = "rows" if lateness_us is None else "events"
        self._now_us = time.time_ns() // 1000
        self._rows = 0
        self._orders: dict[str, Order] = {}
        self._unread, self._early, self._future = Cases(), Cases(), Cases()
        self._units = [Cases() for _ in _UNITS]
        self._days: dict[int, list[float]] = {}

    def add(self, rows: CheckedRows) -> None:
        """Count the times of the next rows, units and what cannot be read, and views and clicks of each day."""
        array, marks = plain(rows.columns[self.column]), rows.marks
        times = _fast(array) if self._form is None else None
        if times is None:
            times, bad = parse_times(array, self._form)
            self._unread.add([row for row, _ in bad], marks, lambda row: words_of(array[row].as_py()))
            self._count_units(array, marks)
        good = self.add_times(times, marks, str(rows.file))
        days, group = np.unique(times[good] // _DAY_US, return_inverse=True)
        views, clicks = np.bincount(group, rows.views[good]), np.bincount(group, rows.clicks[good])
        for day, seen, clicked in zip(days.tolist(), views.tolist(), clicks.tolist(), strict=True):
            counts = self._days.setdefault(day, [0.0, 0.0])
            counts[0] += seen
            counts[1] += clicked

    def add_times(self, times: Int64s, marks: Int64s, stream: str) -> Bools:
        """Count the next times of a stream; returns which rows have a plausible time: bool[rows]."""
        self._rows += times.size
        known = times != NO_TIME
        early = known & (times < _EARLIEST_US)
        future = known & (times > self._now_us + _AHEAD_US)
        self._early.add(np.flatnonzero(early), marks)
        self._future.add(np.flatnonzero(future), marks)
        good: Bools = known & ~early & ~future
        far_us = _HOUR_US if self._lateness_us is None else self._lateness_us
        self._orders.setdefault(stream, Order()).add(times[good], marks[good], far_us)
        return good

    def find(self, found: Findings) -> None:
        """What is wrong with the times; days without rows, and days whose click rate is another."""
        if not self._joined:
            self._find_odd(found)
            self._find_order(found)
        if len(self._days) > 1:
            self._find_missing_days(found)
            self._find_shifts(found)

    def _count_units(self, array: Any, marks: Int64s) -> None:
        if self._form not in (None, *EPOCHS) or pa.types.is_list(array.type):
            return
        try:
            numbers = number_column(array)[0]
        except (pa.ArrowException, ValueError):
            return
        known = np.flatnonzero(np.isfinite(numbers) & (numbers != 0.0))
        units = np.searchsorted(_BOUNDS, np.abs(numbers[known]), side="right")
        for unit, cases in enumerate(self._units):
            cases.add(known[units == unit], marks)

    def _find_odd(self, found: Findings) -> None:
        counts = [each.rows for each in self._units]
        usual = list(EPOCHS).index(self._form) if self._form in EPOCHS else counts.index(max(counts))
        wrong = [unit for unit in range(4) if unit != usual and counts[unit]]
        count = sum(counts[unit] for unit in wrong)
        more: dict[str, Any] = {"of": self._rows, "unit": self._what, "columns": (self.column,)}
        if count:
            most = max(wrong, key=counts.__getitem__)
            declared = self._form is not None
            remedy = "write all times in one unit"
            if declared and count > self._rows / 2:
                remedy = f'format = "{list(EPOCHS)[most]}" in the fields that read {self.column}'
            message = f"{self.column}: numbers of {_UNITS[most]}, "
            message += f"read as {_UNITS[usual]}" if declared else f"the others are of {_UNITS[usual]}"
            severity: Severity = "error" if count >= _MANY * self._rows or declared else "warning"
            cases = Cases(count, mark=self._units[most].mark)
            found.add(severity, "time-unit", message, remedy, cases, **more)
        for cases, what in (
            (self._early, "before 1980, which is 0 or a number of another unit"),
            (self._future, "in the future"),
            (self._unread, "that cannot be read"),
        ):
            if count and self._form is not None and cases is not self._unread:
                continue  # the unit says why
            if cases.rows:
                severity = "error" if cases.rows >= _MANY * self._rows else "warning"
                remedy = "correct the clock that writes them, or leave these rows out"
                found.add(severity, "time-odd", f"{self.column}: times {what}", remedy, cases, **more)

    def _find_order(self, found: Findings) -> None:
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
        found.add(
            "warning" if unsorted else "note",
            "time-backwards",
            f"{self.column} runs backwards, {far:,} times by more than {most}, by {span(worst.most_us)} at most",
            f"sort the log by {self.column}: {remedy}"
            if unsorted
            else "none, if several machines write the log; else sort it",
            Cases(back, mark=worst.mark),
            of=self._rows,
            unit=self._what,
            columns=(self.column,),
        )

    def _find_missing_days(self, found: Findings) -> None:
        usual = float(np.median([views for views, _ in self._days.values()]))
        solid = sorted(day for day, (views, _) in self._days.items() if views >= usual / 100)
        within = range(solid[0], solid[-1] + 1)
        if len(within) > 20 * len(solid):
            return  # a few times of another age, not gaps
        missing = [day for day in within if day not in self._days]
        thin = [day for day in solid[1:-1] if self._days[day][0] < _THIN * usual]
        if len(solid) < 3 or not (missing or thin):
            return
        parts = []
        if missing:
            parts.append(f"{len(missing):,} days have no row: {listed([_day(day) for day in missing], 3)}")
        if thin:
            shown = [f"{_day(day)} ({self._days[day][0]:,.0f})" for day in thin]
            parts.append(
                f"{len(thin):,} have fewer than a tenth of the usual {usual:,.0f}: {listed(shown, 3)}"
            )
        found.add(
            "warning",
            "days-missing",
            f"{self.column}: {'; '.join(parts)}",
            "look whether files are missing, or whether the writer was down",
            count=len(missing) + len(thin),
            of=len(within),
            unit="days",
            columns=(self.column,),
            example=_day((missing or thin)[0]),
        )

    def _find_shifts(self, found: Findings) -> None:
        """Days whose click rate differs from the others' by much, and surely."""
        days = sorted(day for day, (views, _) in self._days.items() if views > 0)
        views = np.array([self._days[day][0] for day in days])
        clicks = np.array([self._days[day][1] for day in days])
        pooled = clicks.sum() / views.sum() if views.sum() else 0.0
        judged = np.flatnonzero(pooled * views >= _FEWEST_EXPECTED)
        if judged.size < 2 or not 0.0 < pooled < 1.0:
            return
        shifted = []
        for at in judged.tolist():
            rest = judged[judged != at]
            usual = float(np.median(clicks[rest] / views[rest]))
            rate, expected = clicks[at] / views[at], usual * views[at]
            error = np.sqrt(max(usual * (1 - usual), 1e-12) * (1 / views[at] + 1 / views[rest].sum()))
            ratio = max(rate, 1e-12) / max(usual, 1e-12)
            if abs(rate - usual) >= SURE * error and max(ratio, 1 / ratio) >= SHIFT:
                lost = rate <= _LOST * usual and expected >= 2 * _FEWEST_EXPECTED
                shifted.append((days[at], float(rate), usual, lost, float(views[at])))
        if len(judged) == 2 and len(shifted) == 2:
            shifted = [min(shifted, key=lambda each: (not each[3], each[4]))]
        if not shifted:
            return
        shown = [f"{_day(day)} {percent(rate, 1)}" for day, rate, _, _, _ in shifted]
        lost = any(each[3] for each in shifted)
        found.add(
            "error" if lost else "warning",
            "click-rate-shift",
            f"the click rate of {len(shifted):,} of {len(judged):,} days is another than that of the others, "
            f"{percent(shifted[0][2], 1)}: {listed(shown, 4)}",
            "leave out days whose clicks were lost: --since and --until"
            if lost
            else "look what changed that day: placement, traffic, bots, or how clicks are counted",
            count=len(shifted),
            of=int(judged.size),
            unit="days",
            columns=(self.column,),
            example=_day(shifted[0][0]),
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


# --- Events ---


MOST_KEPT = 1 << 22
_MANY_CLICKS, _SOME_CLICKS, _LATE, _NEVER = 0.05, 0.001, 0.05, 2.0
"""At this share of clicks what is wrong with them is an error, a warning; at this share late ones are a warning."""


class EventChecks:
    """Watches event files; `watch` may be called from several threads, one for each source."""

    def __init__(self, spec: ModelSpec, files: Sequence[str]) -> None:
        """spec: resolved, for its [join]; files: in the order of their numbers."""
        self._wanted = Wanted.of_columns((), spec)
        self._window_us, self._needs_seen = spec.join.window_us, spec.join.negatives == "seen"
        self.places = Places(list(files))
        self._parsers: dict[str, Parser] = {}
        self._lock = threading.Lock()
        self._times = Times("ts", None, spec.join.lateness_us)
        self._level = 0
        self._shown: list[tuple[UInt64s, Int64s, Int64s]] = []
        self._pairs: list[tuple[UInt64s, UInt64s]] = []
        self._clicks: list[tuple[UInt64s, UInt64s, UInt64s, Int64s, Int64s]] = []
        self._kept = self.impressions = self.feedback = self.seen = 0

    def watch(self, source: str, chunk: Chunk) -> None:
        """Take the next chunk of a source."""
        with self._lock:
            parser = self._parsers.setdefault(source, Parser(self._wanted))
        events = parser.parse(chunk.data, chunk.starts)
        marks = chunk.marks[:, 0]
        request = mixed(events.request)
        is_shown, is_told = events.kind == IMPRESSION, events.kind == FEEDBACK
        is_click = is_told & (events.what <= CONVERSION)
        lengths = np.diff(events.first)
        of_items = np.repeat(request, lengths)
        pairs = mixed(of_items * np.uint64(3) + events.items)
        clicks = mixed(request[is_click] * np.uint64(3) + events.item[is_click])
        what = mixed(clicks + events.what[is_click].astype(np.uint64))
        with self._lock:
            good = is_shown | is_told
            self._times.add_times(events.time_us[good], marks[good], source)
            self.impressions += int(np.count_nonzero(is_shown))
            self.feedback += int(np.count_nonzero(is_click))
            self.seen += int(np.count_nonzero(is_told & ~is_click))
            self._shown.append((request[is_shown], events.time_us[is_shown], marks[is_shown]))
            self._pairs.append((of_items, pairs))
            self._clicks.append((request[is_click], clicks, what, events.time_us[is_click], marks[is_click]))
            self._kept += int(np.count_nonzero(good)) + pairs.size
            self._bound()

    def find(self, found: Findings) -> None:
        """What is wrong with the events; called when all are read."""
        self._times.find(found)
        if not self.impressions:
            return
        shown, times, marks = (np.concatenate(part) for part in zip(*self._shown, strict=True))
        order = np.lexsort((marks, shown))
        shown, times, marks = shown[order], times[order], marks[order]
        first = np.concatenate([[True], shown[1:] != shown[:-1]]) if shown.size else np.zeros(0, bool)
        self._find_repeated(first, marks, found)
        if self._needs_seen and not self.seen:
            found.add(
                "error",
                "nothing-seen",
                'no `seen` event, which [join] negatives = "seen" learns negatives from: only clicks are learned',
                'write `seen` events, or set negatives = "shown"',
                unit="impressions",
                of=self.impressions,
                **self._counted(first.size, int(marks[0])),
            )
        if self.feedback:
            self._find_clicks(shown[first], times[first], found)

    def _find_repeated(self, first: Bools, marks: Int64s, found: Findings) -> None:
        again = np.flatnonzero(~first)
        if not again.size:
            return
        at = again[np.argmin(marks[again])]
        found.add(
            "error" if again.size >= _MANY_CLICKS * first.size else "warning",
            "duplicate-requests",
            "impressions of a request that was shown before: the join takes the first and drops these",
            "write each impression once; if they are other requests, give each its own request_id",
            unit="impressions",
            of=self.impressions,
            example=f"the same request_id as {self.places.where(int(marks[at - 1]))}",
            **self._counted(again.size, int(marks[at])),
        )

    def _find_clicks(self, shown: UInt64s, times: Int64s, found: Findings) -> None:
        request, pair, what, clicked, marks = (
            np.concatenate(part) for part in zip(*self._clicks, strict=True)
        )
        if not request.size:
            return
        at = np.minimum(np.searchsorted(shown, request), shown.size - 1)
        known = shown[at] == request
        cut_off = ~known & (clicked <= int(times.min()) + self._window_us)
        pairs = np.concatenate([each for _, each in self._pairs])
        early = known & (clicked < times[at])
        most = int((times[at] - clicked)[early].max()) if early.any() else 0
        order = np.lexsort((marks, what))
        again = np.zeros(what.size, np.bool_)
        again[order[1:]] = what[order][1:] == what[order][:-1]
        for check, (error, warning), which, message, remedy in (
            (
                "orphan-clicks",
                (_MANY_CLICKS, _SOME_CLICKS),
                ~known & ~cut_off,
                "clicks of a request that no impression shows",
                "look whether files of impressions are missing, or whether both write the same request_id",
            ),
            (
                "clicks-not-shown",
                (_MANY_CLICKS, _SOME_CLICKS),
                known & ~np.isin(pair, pairs),
                "clicks of an item that their request did not show",
                "write the id under which the item was shown",
            ),
            (
                "early-clicks",
                (_MANY_CLICKS, _SOME_CLICKS),
                early,
                f"clicks before their impression, by {span(most)} at most",
                "take the times of both from one clock",
            ),
            (
                "late-clicks",
                (_NEVER, _LATE),
                known & (clicked > times[at] + self._window_us),
                f"clicks later than {span(self._window_us)} after their impression, which do not count",
                "[join] window, if they are clicks on what was shown",
            ),
            (
                "duplicate-clicks",
                (_NEVER, _SOME_CLICKS),
                again,
                "clicks of an item that its request has a click of before: the join counts the first",
                "write each click once",
            ),
        ):
            count = int(np.count_nonzero(which))
            if count:
                share = count / which.size
                severity: Severity = "error" if share >= error else "warning" if share >= warning else "note"
                more = self._counted(count, int(marks[which].min()))
                found.add(severity, check, message, remedy, of=self.feedback, unit="clicks", **more)

    def _counted(self, count: int, mark: int) -> dict[str, Any]:
        """A finding's count of events, of which a part is kept."""
        return {"count": count << self._level, "mark": mark, "is_estimate": self._level > 0}

    def _bound(self) -> None:
        """Drop every second request while there are too many."""
        while self._kept > MOST_KEPT:
            self._level += 1
            mask = np.uint64((1 << self._level) - 1)
            stores: tuple[list[Any], ...] = (self._shown, self._pairs, self._clicks)
            for store in stores:
                store[:] = [tuple(each[(part[0] & mask) == 0] for each in part) for part in store]
            self._kept = sum(part[0].size for store in stores for part in store)
