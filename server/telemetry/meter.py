"""Counts what one process does (`Meter`, about a microsecond a call), and adds up the processes of a server (`Totals`).

Each thread counts into plain lists of its own, so that no call waits for a lock. `take` gives each thread new, empty
counts and reads the old ones, unless the thread is in the middle of counting (`busy`): then it reads them the next
time. Each count is taken exactly once.

A process reports increments: what a worker has counted stays counted when it has died, and no total ever falls.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

from server.errors import Degradation
from server.telemetry.families import BUCKETS_MS, DEGRADED, ERRORS, FAMILIES, OLDER, SUM, VERSIONS_KEPT

_BOUNDS_NS = [int(ms * 1_000_000) for ms in BUCKETS_MS]
CANDIDATES_AT, TOOK_AT, STORE_AT, RANKING_AT, UNKNOWN_AT, BUCKETS_AT = range(6)
ROW = BUCKETS_AT + len(_BOUNDS_NS) + 1
"""The length of an answers row: candidates, ns of the call, of the store, of the ranking, answers to unknown users,
then calls by bucket."""

Labels = tuple[str, ...]
AnswerKey = tuple[str, int, str]
Row = list[int]
"""ROW numbers, summed over answers."""
Taken = tuple[dict[AnswerKey, list[int]], dict[tuple[str, Labels], float]]


class Answered(NamedTuple):
    """One answer, as listeners receive it. took_ns: the duration of the call."""

    model: str
    version: int
    variant: str
    candidates: int
    took_ns: int
    degraded: Sequence[Degradation]
    request_id: str


Listener = Callable[[Answered], None]
"""Called for each answer."""


class _Counts:
    """What one thread has counted since the last `take`. taken: counts that were not safe to read then.

    Invariant: the thread uses the two dicts only between busy = True and busy = False, and looks both up each time.
    """

    __slots__ = ("answers", "busy", "counts", "taken", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.answers: dict[AnswerKey, list[int]] = {}
        self.counts: dict[tuple[str, Labels], float] = {}
        self.busy = False
        self.taken: list[Taken] = []

    def take(self) -> list[Taken]:
        """Give the thread empty counts; returns what it counted before, or nothing while it is counting."""
        self.taken.append((self.answers, self.counts))
        self.answers, self.counts = {}, {}
        if self.busy and self.thread.is_alive():
            return []
        taken, self.taken = self.taken, []
        return taken


class Meter:
    """The counts of one process. Thread safety: all methods from any thread, `take` from one at a time."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._threads: list[_Counts] = []
        self._gauges: dict[tuple[str, Labels], Callable[[], float]] = {}
        self.listeners: tuple[Listener, ...] = ()

    def answered(
        self,
        model: str,
        version: int,
        variant: str,
        candidates: int,
        began_ns: int,
        store_ns: int,
        ranking_ns: int,
        degraded: Sequence[Degradation],
        request_id: str,
        *,
        unknown_user: bool = False,
    ) -> None:
        """Count one answer. `began_ns` is perf_counter_ns at its beginning, the stages are durations."""
        took_ns = perf_counter_ns() - began_ns
        try:
            mine: _Counts = self._local.mine
        except AttributeError:
            mine = self._new_counts()
        key = (model, version, variant)
        mine.busy = True
        answers = mine.answers
        row = answers.get(key)
        if row is None:
            row = answers[key] = [0] * ROW
        row[CANDIDATES_AT] += candidates
        row[TOOK_AT] += took_ns
        row[STORE_AT] += store_ns
        row[RANKING_AT] += ranking_ns
        if unknown_user:
            row[UNKNOWN_AT] += 1
        row[BUCKETS_AT + bisect_left(_BOUNDS_NS, took_ns)] += 1
        mine.busy = False
        if degraded:
            for each in degraded:
                self.count(DEGRADED, model, each.part)
        if self.listeners:
            answer = Answered(model, version, variant, candidates, took_ns, degraded, request_id)
            for listener in self.listeners:
                listener(answer)

    def failed(self, model: str, method: str, status: str) -> None:
        """Count one error. model: "" if the request names no served model."""
        self.count(ERRORS, model, method, status)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter of `families`."""
        try:
            mine: _Counts = self._local.mine
        except AttributeError:
            mine = self._new_counts()
        key = (name, labels)
        mine.busy = True
        counts = mine.counts
        counts[key] = counts.get(key, 0) + by
        mine.busy = False

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Add a value to a histogram of `families`: to the count of its bucket, and to the sum."""
        bounds = FAMILIES[name].buckets
        place = bisect_left(bounds, value)
        self.count(name, *labels, bucket_name(bounds, place))
        self.count(name, *labels, SUM, by=value)

    def gauge(self, name: str, *labels: str, read: Callable[[], float]) -> None:
        """Have `take` report `read()` under this name and labels from now on; it must be quick and not fail."""
        self._gauges[_known(name, labels), labels] = read

    def set(self, name: str, *labels: str, value: float) -> None:
        """Have `take` report `value` from now on."""
        self.gauge(name, *labels, read=lambda: value)

    def take(self) -> dict[str, Any]:
        """What was counted since the last `take`, and the gauges as they are, as a JSON document."""
        answers: dict[AnswerKey, list[int]] = {}
        counts: dict[tuple[str, Labels], float] = {}
        with self._lock:
            ended = [mine for mine in self._threads if not mine.thread.is_alive()]
            for mine in self._threads:
                for taken in mine.take():
                    _add(taken, answers, counts)
            self._threads = [mine for mine in self._threads if mine not in ended]
            gauges = list(self._gauges.items())
        return {
            "answers": [[*key, row] for key, row in answers.items()],
            "counts": [[_known(*key), list(key[1]), number] for key, number in counts.items()],
            "gauges": [[name, list(labels), read()] for (name, labels), read in gauges],
        }

    def _new_counts(self) -> _Counts:
        """This thread's counts, created when it counts for the first time."""
        mine = self._local.mine = _Counts()
        with self._lock:
            self._threads.append(mine)
        return mine


def _add(taken: Taken, answers: dict[AnswerKey, list[int]], counts: dict[tuple[str, Labels], float]) -> None:
    for key, row in taken[0].items():
        before: Iterable[int] = answers.get(key) or [0] * ROW
        answers[key] = [a + b for a, b in zip(before, row, strict=True)]
    for name, number in taken[1].items():
        counts[name] = counts.get(name, 0) + number


def bucket_name(bounds: Sequence[float], place: int) -> str:
    """The label `le` of a histogram's bucket: its upper bound, +Inf for the last."""
    return f"{bounds[place]:g}" if place < len(bounds) else "+Inf"


def _known(name: str, labels: Labels) -> str:
    """`name`, if `families` has it with as many labels, one more for a bucket: each metric must be documented."""
    family = FAMILIES.get(name)
    if family is None or len(family.labels) + bool(family.buckets) != len(labels):
        raise ValueError(f"{name}{labels}: no such metric in server.telemetry.families")
    return name


class Totals:
    """What all processes together have counted. Thread safety: all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, dict[str, dict[str, Row]]] = {}
        """Model → version, the one counted last at the end → variant → row."""
        self._counts: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[str, dict[tuple[str, Labels], float]] = {}

    def add(self, source: str, taken: Mapping[str, Any]) -> None:
        """Add what the process `source` took from its meter; its gauges replace its earlier ones."""
        with self._lock:
            for model, version, variant, row in taken["answers"]:
                self._add_row(model, str(version), variant, row)
            for name, labels, number in taken["counts"]:
                key = (name, tuple(labels))
                self._counts[key] = self._counts.get(key, 0) + number
            self._gauges[source] = {(name, tuple(labels)): value for name, labels, value in taken["gauges"]}

    def gone(self, source: str) -> None:
        """Note that a process has ended: its gauges are dropped, its counts stay."""
        with self._lock:
            self._gauges.pop(source, None)

    def answers(self) -> list[tuple[Labels, Row]]:
        """(model, version, variant) and the sum of its rows; the latest few versions of a model by name."""
        with self._lock:
            return [
                ((model, version, variant), list(row))
                for model, versions in self._versions.items()
                for version, variants in versions.items()
                for variant, row in variants.items()
            ]

    def counts(self) -> list[tuple[str, Labels, float]]:
        """Each counter's name, labels and sum."""
        with self._lock:
            return [(name, labels, number) for (name, labels), number in self._counts.items()]

    def gauges(self) -> list[tuple[str, Labels, float]]:
        """Each gauge's name, labels and sum over the processes alive."""
        summed: dict[tuple[str, Labels], float] = {}
        with self._lock:
            for gauges in self._gauges.values():
                for key, value in gauges.items():
                    summed[key] = summed.get(key, 0.0) + value
        return [(name, labels, value) for (name, labels), value in summed.items()]

    def _add_row(self, model: str, version: str, variant: str, row: Row) -> None:
        versions = self._versions.setdefault(model, {OLDER: {}})
        variants = versions.pop(version, {})
        versions[version] = variants  # at the end, since it was counted last
        _add_row_to(variants, variant, row)
        if len(versions) > VERSIONS_KEPT + 1:
            oldest = next(name for name in versions if name != OLDER)
            for name, numbers in versions.pop(oldest).items():
                _add_row_to(versions[OLDER], name, numbers)


def _add_row_to(variants: dict[str, Row], variant: str, row: Row) -> None:
    before = variants.get(variant) or [0] * ROW
    variants[variant] = [a + b for a, b in zip(before, row, strict=True)]
