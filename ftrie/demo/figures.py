"""What traffic comes to: counts of a stretch of time, by model, and the rates that follow from them. No clock here."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ftrie.demo.visitors import Seen
from model_store.errors import FtrieError
from model_store.versions.published_versions import PublishedVersions

_LEAST_CHANCE = 1e-12


@dataclass
class Tally:
    """Sums over answered visits of people; bots are left out of all but `bots`.

    expected: clicks to be expected of what was shown, best: of the best order; both by the true chances. surprise: the
    log-loss of the predictions, in nats, surprise_of_truth: of the true chances themselves.
    """

    visits: int = 0
    bots: int = 0
    shown: int = 0
    clicks: int = 0
    expected: float = 0.0
    best: float = 0.0
    surprise: float = 0.0
    surprise_of_truth: float = 0.0

    def add(self, seen: Seen) -> None:
        """Count a visit."""
        if seen.by_bot:
            self.bots += 1
            return
        self.visits += 1
        self.shown += seen.order.size
        self.clicks += int(seen.clicked.sum())
        self.expected += seen.expected
        self.best += seen.best
        self.surprise += _surprise(seen.predicted, seen.clicked)
        self.surprise_of_truth += _surprise(seen.chance, seen.clicked)

    def add_tally(self, other: Tally) -> None:
        """Count all that another has counted."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def rates(self) -> dict[str, float | None]:
        """Per shown item: ctr, expected_ctr, best_ctr, logloss, truth_logloss; None where nothing was shown."""
        sums = {
            "ctr": self.clicks,
            "expected_ctr": self.expected,
            "best_ctr": self.best,
            "logloss": self.surprise,
            "truth_logloss": self.surprise_of_truth,
        }
        return {name: round(total / self.shown, 6) if self.shown else None for name, total in sums.items()}

    def as_json(self) -> dict[str, Any]:
        """Counts and rates."""
        return {
            "visits": self.visits,
            "bots": self.bots,
            "shown": self.shown,
            "clicks": self.clicks,
            **self.rates(),
        }


@dataclass
class Figures:
    """Counts of one stretch of time. models: by name; versions: the newest that answered; failures: by gRPC status.

    lost: visits that were not answered within their patience.
    """

    models: dict[str, Tally] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    degraded: int = 0
    lost: int = 0

    def add(self, other: Figures) -> None:
        """Count all that another has counted, which came later."""
        for name, tally in other.models.items():
            self.models.setdefault(name, Tally()).add_tally(tally)
        self.versions |= other.versions
        self.failures += other.failures
        self.degraded += other.degraded
        self.lost += other.lost

    @property
    def visits(self) -> int:
        """Answered visits, of people and bots."""
        return sum(tally.visits + tally.bots for tally in self.models.values())


class Book:
    """Where the callers write down what happened. Any thread may write; `turn_page` begins the next stretch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page = Figures()
        self._earlier = Figures()

    def answered(self, model: str, version: int, seen: Seen, degraded: bool) -> None:
        """A visit was answered."""
        with self._lock:
            page = self._page
            page.models.setdefault(model, Tally()).add(seen)
            page.versions[model] = max(version, page.versions.get(model, 0))
            page.degraded += degraded

    def failed(self, status: str) -> None:
        """A call failed; its visit may still be answered."""
        with self._lock:
            self._page.failures[status] += 1

    def lost(self) -> None:
        """A visit was given up."""
        with self._lock:
            self._page.lost += 1

    def turn_page(self) -> Figures:
        """What was written since the last time; it is counted into `all`."""
        with self._lock:
            page, self._page = self._page, Figures()
            self._earlier.add(page)
        return page

    def all(self) -> Figures:
        """Everything on the pages that were turned."""
        return self._earlier


def _surprise(chance: np.ndarray[Any, Any], clicked: np.ndarray[Any, Any]) -> float:
    """-Σ ln P(what happened)."""
    likelihood = np.where(clicked, chance, 1.0 - chance)
    return float(-np.log(np.maximum(likelihood, _LEAST_CHANCE)).sum())


MOST_WAITING = 100_000
MOST_KEPT = 200_000


@dataclass(frozen=True)
class Reported:
    """A click: when its report began, by the monotonic clock, and when it was acknowledged, microseconds since 1970."""

    began_s: float
    known_us: int


class Freshness:
    """Matches reported clicks with the versions that answer. Any thread may tell; a server is its place.

    through_us: asked for a version that answers for the first time; None where it is not known. Clicks that were
    reported while nothing answered count like all others: the wait for servers is part of it.
    """

    def __init__(self, servers: int, through_us: Callable[[int], int | None]) -> None:
        self._through_us = through_us
        self._lock = threading.Lock()
        self._waiting: list[deque[Reported]] = [deque(maxlen=MOST_WAITING) for _ in range(servers)]
        self._seen = [0] * servers
        self._known: dict[int, int | None] = {}
        self._page: list[float] = []
        self._all: deque[float] = deque(maxlen=MOST_KEPT)

    def reported(self, click: Reported) -> None:
        """A click was acknowledged; reports are told in the order of their acknowledgement."""
        with self._lock:
            for waiting in self._waiting:
                waiting.append(click)

    def answered(self, server: int, version: int, at_s: float) -> None:
        """A server answered from a version, by the monotonic clock."""
        if version <= self._seen[server]:
            return
        through = self._through(version)
        with self._lock:
            if version <= self._seen[server]:
                return
            self._seen[server] = version
            waiting = self._waiting[server]
            while through is not None and waiting and waiting[0].known_us < through:
                self._page.append(at_s - waiting.popleft().began_s)

    def turn_page(self) -> list[float]:
        """Seconds of each click and server since the last time; they are counted into `all`."""
        with self._lock:
            page, self._page = self._page, []
            self._all.extend(page)
        return page

    def all(self) -> list[float]:
        """Seconds of every click and server so far, the newest 200,000."""
        with self._lock:
            return list(self._all)

    def _through(self, version: int) -> int | None:
        if version not in self._known:
            self._known[version] = self._through_us(version)
        return self._known[version]


def quantiles(seconds: list[float]) -> dict[str, float | int | None]:
    """n, p50, p95 and max, in seconds; None where there is none."""
    if not seconds:
        return {"n": 0, "p50": None, "p95": None, "max": None}
    p50, p95 = np.percentile(seconds, (50, 95))
    return {
        "n": len(seconds),
        "p50": round(float(p50), 3),
        "p95": round(float(p95), 3),
        "max": round(max(seconds), 3),
    }


def through_of(versions: PublishedVersions) -> Callable[[int], int | None]:
    """Version → through_us of its manifest; None where it has none, is gone, or the store is away."""

    def through_us(version: int) -> int | None:
        try:
            return versions.manifest(version).through_us
        except FtrieError:
            return None

    return through_us
