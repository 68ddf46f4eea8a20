"""Checks on events before they are joined: clicks without impressions, repeated requests, times that run backwards.

In: the chunks of event files, as they are read. Out: findings. Memory: about 40 bytes an event, until there are
MOST_KEPT; then every second request is dropped, with its clicks, as often as needed, and counts are estimates.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from model_store.spec.spec import ModelSpec
from trainer.events.columns import Wanted
from trainer.events.events import FEEDBACK, IMPRESSION, Chunk
from trainer.events.parse import Parser
from trainer.inspect.columns import Bools
from trainer.inspect.findings import Finding, Severity
from trainer.inspect.roles import Places
from trainer.inspect.sketches import Int64s, UInt64s, mixed
from trainer.inspect.times import Times, span

MOST_KEPT = 1 << 22
_MANY, _SOME, _LATE = 0.05, 0.001, 0.05
"""The share of clicks from which on what is wrong with them is an error, a warning; and of late ones a warning."""


class EventChecks:
    """Watches event files; `watch` may be called from several threads, one for each source."""

    def __init__(self, spec: ModelSpec, files: Sequence[str]) -> None:
        """spec: resolved, for its [join]; files: in the order of their numbers."""
        self._wanted = Wanted.of_columns((), spec)
        self._window_us = spec.join.window_us
        self._places = Places(list(files))
        self._parsers: dict[str, Parser] = {}
        self._lock = threading.Lock()
        self._times = Times("ts", None, "events", spec.join.lateness_us)
        self._level = 0
        self._shown: list[tuple[UInt64s, Int64s, Int64s]] = []
        self._pairs: list[tuple[UInt64s, UInt64s]] = []
        self._clicks: list[tuple[UInt64s, UInt64s, UInt64s, Int64s, Int64s]] = []
        self._kept = self.impressions = self.feedback = 0

    def watch(self, source: str, chunk: Chunk) -> None:
        """Take the next chunk of a source."""
        with self._lock:
            parser = self._parsers.setdefault(source, Parser(self._wanted))
        events = parser.parse(chunk.data, chunk.starts)
        marks = chunk.marks[:, 0]
        request = mixed(events.request)
        is_shown, is_click = events.kind == IMPRESSION, events.kind == FEEDBACK
        lengths = np.diff(events.first)
        of_items = np.repeat(request, lengths)
        pairs = mixed(of_items * np.uint64(3) + events.items)
        clicks = mixed(request[is_click] * np.uint64(3) + events.item[is_click])
        what = mixed(clicks + events.what[is_click].astype(np.uint64))
        with self._lock:
            good = is_shown | is_click
            self._times.add(events.time_us[good], marks[good], source)
            self.impressions += int(np.count_nonzero(is_shown))
            self.feedback += int(np.count_nonzero(is_click))
            self._shown.append((request[is_shown], events.time_us[is_shown], marks[is_shown]))
            self._pairs.append((of_items, pairs))
            self._clicks.append((request[is_click], clicks, what, events.time_us[is_click], marks[is_click]))
            self._kept += int(np.count_nonzero(good)) + pairs.size
            self._bound()

    def findings(self) -> Iterator[Finding]:
        """What is wrong with the events; called when all are read."""
        yield from self._times.findings(self._places)
        if not self.impressions:
            return
        shown, times, marks = (np.concatenate(part) for part in zip(*self._shown, strict=True))
        order = np.lexsort((marks, shown))
        shown, times, marks = shown[order], times[order], marks[order]
        first = np.concatenate([[True], shown[1:] != shown[:-1]]) if shown.size else np.zeros(0, bool)
        yield from self._repeated(first, marks)
        if self.feedback:
            yield from self._of_clicks(shown[first], times[first])

    def _repeated(self, first: Bools, marks: Int64s) -> Iterator[Finding]:
        again = np.flatnonzero(~first)
        if not again.size:
            return
        many = again.size >= _MANY * first.size
        at = again[np.argmin(marks[again])]
        yield self._finding(
            "error" if many else "warning",
            "duplicate-requests",
            "impressions of a request that was shown before: the join takes the first and drops these",
            "write each impression once; if they are other requests, give each its own request_id",
            again.size,
            self.impressions,
            int(marks[at]),
            example=f"the same request_id as {self._places.where(int(marks[at - 1]))}",
            unit="impressions",
        )

    def _of_clicks(self, shown: UInt64s, times: Int64s) -> Iterator[Finding]:
        request, pair, what, clicked, marks = (
            np.concatenate(part) for part in zip(*self._clicks, strict=True)
        )
        if not request.size:
            return
        at = np.minimum(np.searchsorted(shown, request), shown.size - 1)
        known = shown[at] == request
        began = int(times.min())
        cut_off = ~known & (clicked <= began + self._window_us)
        orphans = ~known & ~cut_off
        yield from self._clicks_finding(
            "orphan-clicks",
            orphans,
            marks,
            "clicks of a request that no impression shows",
            "look whether files of impressions are missing, or whether both write the same request_id",
        )
        pairs = np.concatenate([each for _, each in self._pairs])
        elsewhere = known & ~np.isin(pair, pairs)
        yield from self._clicks_finding(
            "clicks-not-shown",
            elsewhere,
            marks,
            "clicks of an item that their request did not show",
            "write the id under which the item was shown",
        )
        early = known & (clicked < times[at])
        most = int((times[at] - clicked)[early].max()) if early.any() else 0
        yield from self._clicks_finding(
            "early-clicks",
            early,
            marks,
            f"clicks before their impression, by {span(most)} at most",
            "take the times of both from one clock",
        )
        late = known & (clicked > times[at] + self._window_us)
        share = np.count_nonzero(late) / late.size
        if late.any():
            yield self._finding(
                "warning" if share >= _LATE else "note",
                "late-clicks",
                f"clicks later than {span(self._window_us)} after their impression, which do not count",
                "[join] window, if they are clicks on what was shown",
                int(np.count_nonzero(late)),
                self.feedback,
                int(marks[late].min()),
                unit="clicks",
            )
        order = np.lexsort((marks, what))
        again = np.zeros(what.size, np.bool_)
        again[order[1:]] = what[order][1:] == what[order][:-1]
        yield from self._clicks_finding(
            "duplicate-clicks",
            again,
            marks,
            "clicks of an item that its request has a click of before: the join counts the first",
            "write each click once",
            worst="warning",
        )

    def _clicks_finding(
        self,
        check: str,
        which: Bools,
        marks: Int64s,
        message: str,
        remedy: str,
        worst: Severity = "error",
    ) -> Iterator[Finding]:
        """A finding on some of the kept clicks, as severe as they are many."""
        count = int(np.count_nonzero(which))
        if not count:
            return
        share = count / which.size
        severity: Severity = worst if share >= _MANY else "warning" if share >= _SOME else "note"
        yield self._finding(
            severity, check, message, remedy, count, self.feedback, int(marks[which].min()), unit="clicks"
        )

    def _finding(
        self,
        severity: Severity,
        check: str,
        message: str,
        remedy: str,
        count: int,
        of: int,
        mark: int,
        *,
        unit: str,
        example: str = "",
    ) -> Finding:
        return Finding(
            severity,
            check,
            message,
            remedy,
            count=count << self._level,
            of=of,
            unit=unit,
            example=example,
            where=self._places.where(mark),
            is_estimate=self._level > 0,
        )

    def _bound(self) -> None:
        """Drop every second request while there are too many."""
        while self._kept > MOST_KEPT:
            self._level += 1
            mask = np.uint64((1 << self._level) - 1)
            stores: tuple[list[Any], ...] = (self._shown, self._pairs, self._clicks)
            for store in stores:
                store[:] = [tuple(each[(part[0] & mask) == 0] for each in part) for part in store]
            self._kept = sum(part[0].size for store in stores for part in store)
