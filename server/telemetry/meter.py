"""Counts what one process does (`Meter`, about a microsecond a call), and adds up the processes of a server (`Totals`).

Each thread counts into plain lists of its own, so that no call waits for a lock. `take` gives each thread new, empty
counts and reads the old ones, unless the thread is in the middle of counting (`busy`): then it reads them the next
time. Each count is taken exactly once.

A process reports increments: what a worker has counted stays counted when it has died, and no total ever falls.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar

from model_store.metrics import SUM, Family, Labels, Sample
from server.errors import Degradation

FAMILIES: dict[str, Family] = {}
"""Every metric of a server by name, as far as the modules that declare them have been imported."""


def declare(name: str, labels: Labels, help: str, buckets: tuple[float, ...] = ()) -> Family:
    """Declare a metric of the server, beside the line that counts it; the arguments are those of `Family`.

    No label may hold text from a request: models, versions and variants are the served ones, parts and reasons those in
    the code.
    """
    if name in FAMILIES:
        raise ValueError(f"{name} is declared twice")
    FAMILIES[name] = Family(name, labels, help, buckets)
    return FAMILIES[name]


_ANSWER = ("model", "version", "variant")
CALL_SECONDS = declare(
    "ftrie_call_seconds",
    _ANSWER,
    "time of an answered call in the handler: from its message to its answer, without the wait for a thread. "
    "`_count` is the number of calls",
    tuple(
        ms / 1000
        for ms in (
            *(0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 50, 75),
            *(100, 150, 250, 500, 1000, 2500),
        )
    ),
)
CANDIDATES = declare("ftrie_candidates_total", _ANSWER, "candidates of the answered calls")
UNKNOWN_USERS = declare(
    "ftrie_unknown_users_total", _ANSWER, "answered calls of whose user the model has no key"
)
STAGE_SECONDS = declare(
    "ftrie_stage_seconds_total",
    (*_ANSWER, "stage"),
    "time of the answered calls by `stage`: `store` (completing the user's features) or `ranking`",
)
ERRORS = declare(
    "ftrie_errors_total",
    ("model", "method", "status"),
    "calls that ended with an error, by `method` (`Rank`, `Explain` or `Report`) and gRPC `status`; `model` is empty "
    "if the request named no model that is served here",
)
DEGRADED = declare(
    "ftrie_degraded_total",
    ("model", "part"),
    "entries of `degraded` in answers, by `part`; without those about objectives",
)

VERSIONS_KEPT = 4
"""Versions of a model, those counted last, with series of their own: a model published every second would have ever
more. The others share the label OLDER, so that no sum falls."""
OLDER = "older"
NS = 1_000_000_000
_BOUNDS_NS = [round(bound * NS) for bound in CALL_SECONDS.buckets]
CANDIDATES_AT, TOOK_AT, STORE_AT, RANKING_AT, UNKNOWN_AT, BUCKETS_AT = range(6)
ROW = BUCKETS_AT + len(CALL_SECONDS.bounds)
"""The length of an answers row: candidates, ns of the call, of the store, of the ranking, answers to unknown users,
then calls by bucket. One row is found once a call, which costs less than finding a count for each of them."""

AnswerKey = tuple[str, int, str]
K = TypeVar("K")
Row = list[int]
"""ROW numbers, summed over answers."""
Taken = tuple[dict[AnswerKey, Row], dict[tuple[Family, Labels], float]]


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
        self.answers: dict[AnswerKey, Row] = {}
        self.counts: dict[tuple[Family, Labels], float] = {}
        self.busy = False
        self.taken: list[Taken] = []

    def take(self) -> list[Taken]:
        """Give the thread empty counts; returns what it counted before, or nothing while it is counting."""
        self.taken.append((self.answers, self.counts))
        self.answers, self.counts = {}, {}
        # After the swap: a thread that begins to count from here on finds the new dicts. One that ended while it
        # counted would be busy for ever.
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
        self._gauges: dict[tuple[Family, Labels], Callable[[], float]] = {}
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
        # Read after `busy` is set: `take` reads a dict that it has replaced only while `busy` is False.
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

    def count(self, family: Family, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter."""
        try:
            mine: _Counts = self._local.mine
        except AttributeError:
            mine = self._new_counts()
        key = (family, labels)
        mine.busy = True
        counts = mine.counts
        counts[key] = counts.get(key, 0) + by
        mine.busy = False

    def observe(self, family: Family, *labels: str, value: float) -> None:
        """Add a value to a histogram: to the count of its bucket, and to the sum."""
        self.count(family, *labels, family.bucket_of(value))
        self.count(family, *labels, SUM, by=value)

    def gauge(self, family: Family, *labels: str, read: Callable[[], float]) -> None:
        """Have `take` report `read()` with these labels from now on; it must be quick and not fail."""
        self._gauges[family, labels] = read

    def set(self, family: Family, *labels: str, value: float) -> None:
        """Have `take` report `value` from now on."""
        self.gauge(family, *labels, read=lambda: value)

    def take(self) -> dict[str, Any]:
        """What was counted since the last `take`, and the gauges as they are, as a JSON document.

        Raises ValueError for a number of labels other than the metric's.
        """
        answers: dict[AnswerKey, Row] = {}
        counts: dict[tuple[Family, Labels], float] = {}
        with self._lock:
            # Before the counts are taken: what a thread that ends meanwhile has counted is taken the next time.
            ended = [mine for mine in self._threads if not mine.thread.is_alive()]
            for mine in self._threads:
                for taken in mine.take():
                    _add(taken, answers, counts)
            self._threads = [mine for mine in self._threads if mine not in ended]
            # A copy in one operation: other threads may add gauges.
            gauges = list(self._gauges.items())
        return {
            "answers": [[*key, row] for key, row in answers.items()],
            "counts": [[*_labelled(*key), number] for key, number in counts.items()],
            "gauges": [[*_labelled(*key), read()] for key, read in gauges],
        }

    def _new_counts(self) -> _Counts:
        """This thread's counts, created when it counts for the first time."""
        mine = self._local.mine = _Counts()
        with self._lock:
            self._threads.append(mine)
        return mine


def _add(taken: Taken, answers: dict[AnswerKey, Row], counts: dict[tuple[Family, Labels], float]) -> None:
    for key, row in taken[0].items():
        _add_row_to(answers, key, row)
    for name, number in taken[1].items():
        counts[name] = counts.get(name, 0) + number


def _add_row_to(rows: dict[K, Row], key: K, row: Row) -> None:
    before: Iterable[int] = rows.get(key) or [0] * ROW
    rows[key] = [a + b for a, b in zip(before, row, strict=True)]


def _labelled(family: Family, labels: Labels) -> tuple[str, list[str]]:
    if len(family.labels) + bool(family.buckets) != len(labels):
        raise ValueError(f"{family.name}{labels}: its labels are {family.labels}")
    return family.name, list(labels)


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

    def samples(self) -> dict[str, list[Sample]]:
        """The samples of each metric by its name, as `Family.metric` takes them.

        Counters are sums over all processes, gauges over those alive; of a model, the latest few versions have samples
        of their own.
        """
        found: defaultdict[str, list[Sample]] = defaultdict(list)
        with self._lock:
            for model, versions in self._versions.items():
                for version, variants in versions.items():
                    for variant, row in variants.items():
                        for family, labels, number in _samples_of(row):
                            found[family.name].append(((model, version, variant, *labels), number))
            summed: dict[tuple[str, Labels], float] = {}
            for gauges in self._gauges.values():
                for key, value in gauges.items():
                    summed[key] = summed.get(key, 0.0) + value
            for (name, labels), number in (*self._counts.items(), *summed.items()):
                found[name].append((labels, number))
        return found

    def _add_row(self, model: str, version: str, variant: str, row: Row) -> None:
        versions = self._versions.setdefault(model, {OLDER: {}})
        variants = versions.pop(version, {})
        versions[version] = variants  # at the end, since it was counted last
        _add_row_to(variants, variant, row)
        if len(versions) > VERSIONS_KEPT + 1:
            oldest = next(name for name in versions if name != OLDER)
            for name, numbers in versions.pop(oldest).items():
                _add_row_to(versions[OLDER], name, numbers)


def _samples_of(row: Row) -> Iterator[tuple[Family, Labels, float]]:
    """The samples that a row of answers holds, without the labels of the row."""
    yield CANDIDATES, (), row[CANDIDATES_AT]
    yield UNKNOWN_USERS, (), row[UNKNOWN_AT]
    yield STAGE_SECONDS, ("store",), row[STORE_AT] / NS
    yield STAGE_SECONDS, ("ranking",), row[RANKING_AT] / NS
    for bound, calls in zip(CALL_SECONDS.bounds, row[BUCKETS_AT:], strict=True):
        yield CALL_SECONDS, (bound,), calls
    yield CALL_SECONDS, (SUM,), row[TOOK_AT] / NS
