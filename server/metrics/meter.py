"""Counts what one process does, at about a microsecond a call. Who adds processes up is `totals`.

Each thread counts into plain lists of its own, so no call waits for a lock. `take` gives each thread new, empty counts
and reads those it took away, unless the thread was in the middle of counting (`busy`): then it reads them the next
time. So each count is taken exactly once.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from server.metrics.families import BUCKETS_MS, DEGRADED, ERRORS, FAMILIES

if TYPE_CHECKING:
    from server.serving import Serving

_BOUNDS_NS = [int(ms * 1_000_000) for ms in BUCKETS_MS]
CANDIDATES_AT, TOOK_AT, STORE_AT, RANKING_AT, BUCKETS_AT = range(5)
ROW = BUCKETS_AT + len(_BOUNDS_NS) + 1
"""Numbers of an answers row: candidates, ns of the call, of the store, of the ranking, then calls by bucket."""

Labels = tuple[str, ...]
AnswerKey = tuple[str, int, str]
Taken = tuple[dict[AnswerKey, list[int]], dict[tuple[str, Labels], float]]
Listener = Callable[["Serving", str, int, int, Sequence[str], str], None]
"""Called for each answer with serving, variant, candidates, ns, degraded and request_id."""


class _Counts:
    """What one thread has counted since the last `take`; `taken` is what was not safe to read then.

    Invariant: the thread touches neither dict but between busy = True and busy = False, and finds both anew each time.
    """

    __slots__ = ("answers", "busy", "counts", "taken", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.answers: dict[AnswerKey, list[int]] = {}
        self.counts: dict[tuple[str, Labels], float] = {}
        self.busy = False
        self.taken: list[Taken] = []

    def take(self) -> list[Taken]:
        """Let the thread go on with empty counts; what it counted before, or nothing while it is counting."""
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
        serving: Serving,
        variant: int,
        candidates: int,
        began_ns: int,
        store_ns: int,
        ranking_ns: int,
        degraded: Sequence[str],
        request_id: str,
    ) -> None:
        """Count one answer. `began_ns` is perf_counter_ns at its beginning, the stages are durations."""
        took_ns = perf_counter_ns() - began_ns
        try:
            mine: _Counts = self._local.mine
        except AttributeError:
            mine = self._joined()
        name = serving.variant_names[variant]
        key = (serving.name, serving.version, name)
        mine.busy = True
        answers = mine.answers
        row = answers.get(key)
        if row is None:
            row = answers[key] = [0] * ROW
        row[CANDIDATES_AT] += candidates
        row[TOOK_AT] += took_ns
        row[STORE_AT] += store_ns
        row[RANKING_AT] += ranking_ns
        row[BUCKETS_AT + bisect_left(_BOUNDS_NS, took_ns)] += 1
        mine.busy = False
        if degraded:
            for reason in degraded:
                self.count(DEGRADED, serving.name, reason.partition(":")[0])
        if self.listeners:
            for listener in self.listeners:
                listener(serving, name, candidates, took_ns, degraded, request_id)

    def failed(self, model: str, method: str, status: str) -> None:
        """Count one error of a model that is served; "" where the request names none that is."""
        self.count(ERRORS, model, method, status)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter of `families`."""
        try:
            mine: _Counts = self._local.mine
        except AttributeError:
            mine = self._joined()
        key = (name, labels)
        mine.busy = True
        counts = mine.counts
        counts[key] = counts.get(key, 0) + by
        mine.busy = False

    def gauge(self, name: str, *labels: str, read: Callable[[], float]) -> None:
        """From now on `take` reports `read()` under this name and labels; it must be quick and not fail."""
        self._gauges[_known(name, labels), labels] = read

    def set(self, name: str, *labels: str, value: float) -> None:
        """Report `value` from now on."""
        self.gauge(name, *labels, read=lambda: value)

    def take(self) -> dict[str, Any]:
        """What was counted since the last `take`, and the gauges as they are, as JSON takes it."""
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

    def _joined(self) -> _Counts:
        """This thread's counts, made when it counts for the first time."""
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


def _known(name: str, labels: Labels) -> str:
    """`name`, if `families` has it with as many labels: a metric that no document names is a mistake of ours."""
    family = FAMILIES.get(name)
    if family is None or len(family.labels) != len(labels):
        raise ValueError(f"{name}{labels}: no such metric in server.metrics.families")
    return name
