"""Statistics of simulated traffic: counts and rates by model and window, and the time from a click to its weight."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ftrie.demo.market import AnsweredVisit
from model_store.errors import FtrieError
from model_store.versions.model_versions import ModelVersions

MOST_WAITING = 100_000
MOST_KEPT = 200_000
_LEAST_CHANCE = 1e-12


@dataclass
class Tally:
    """Sums over answered visits; visits of bots count in `bots` only.

    expected: expected clicks on the items shown, best: on the best order, by the true probabilities. logloss: that of
    the predictions, in nats, truth_logloss: that of the true probabilities.
    """

    visits: int = 0
    bots: int = 0
    shown: int = 0
    clicks: int = 0
    expected: float = 0.0
    best: float = 0.0
    logloss: float = 0.0
    truth_logloss: float = 0.0

    def add(self, visit: AnsweredVisit) -> None:
        """Count a visit."""
        if visit.by_bot:
            self.bots += 1
            return
        self.visits += 1
        self.shown += visit.order.size
        self.clicks += int(visit.clicked.sum())
        self.expected += visit.expected
        self.best += visit.best
        self.logloss += _logloss(visit.predicted, visit.clicked)
        self.truth_logloss += _logloss(visit.chance, visit.clicked)

    def add_tally(self, other: Tally) -> None:
        """Add another tally."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def rates(self) -> dict[str, float | None]:
        """Per shown item: ctr, expected_ctr, best_ctr, logloss, truth_logloss; None if nothing was shown."""
        sums = {
            "ctr": self.clicks,
            "expected_ctr": self.expected,
            "best_ctr": self.best,
            "logloss": self.logloss,
            "truth_logloss": self.truth_logloss,
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
    """Counts of one window. models: by name; versions: the newest that answered; failures: by gRPC status.

    lost: visits without an answer in time.
    """

    models: dict[str, Tally] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    degraded: int = 0
    lost: int = 0

    def add(self, other: Figures) -> None:
        """Add a later window."""
        for name, tally in other.models.items():
            self.models.setdefault(name, Tally()).add_tally(tally)
        self.versions |= other.versions
        self.failures += other.failures
        self.degraded += other.degraded
        self.lost += other.lost

    @property
    def visits(self) -> int:
        """Answered visits of people and bots."""
        return sum(tally.visits + tally.bots for tally in self.models.values())


class Statistics:
    """Counts what happens to visits, window by window. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._window = Figures()
        self._earlier = Figures()

    def answered(self, model: str, version: int, visit: AnsweredVisit, degraded: bool) -> None:
        """Count an answered visit."""
        with self._lock:
            window = self._window
            window.models.setdefault(model, Tally()).add(visit)
            window.versions[model] = max(version, window.versions.get(model, 0))
            window.degraded += degraded

    def failed(self, status: str) -> None:
        """Count a failed call; its visit may still be answered."""
        with self._lock:
            self._window.failures[status] += 1

    def lost(self) -> None:
        """Count a visit without an answer."""
        with self._lock:
            self._window.lost += 1

    def next_window(self) -> Figures:
        """End the current window and return it; `all` includes it from now on."""
        with self._lock:
            window, self._window = self._window, Figures()
            self._earlier.add(window)
        return window

    def all(self) -> Figures:
        """The sum of all ended windows."""
        return self._earlier


def _logloss(chance: np.ndarray[Any, Any], clicked: np.ndarray[Any, Any]) -> float:
    """-Σ ln P(clicked or not)."""
    likelihood = np.where(clicked, chance, 1.0 - chance)
    return float(-np.log(np.maximum(likelihood, _LEAST_CHANCE)).sum())


@dataclass(frozen=True)
class Reported:
    """A reported click. began_s: start of the report, monotonic; known_us: acknowledgement, microseconds since 1970."""

    began_s: float
    known_us: int


class Freshness:
    """Measures the time from a click's report to the first answer of a version that has learned it. Thread-safe.

    Servers are numbered from 0 and measured separately. through_us: version → the time up to which it has learned, None
    if unknown; called once a version. Clicks reported during an outage count too: the outage is part of the delay.
    """

    def __init__(self, servers: int, through_us: Callable[[int], int | None]) -> None:
        self._through_us = through_us
        self._lock = threading.Lock()
        # Bounded: a server that is away would keep all clicks.
        self._waiting: list[deque[Reported]] = [deque(maxlen=MOST_WAITING) for _ in range(servers)]
        self._versions = [0] * servers
        self._known: dict[int, int | None] = {}
        self._window: list[float] = []
        self._all: deque[float] = deque(maxlen=MOST_KEPT)

    def reported(self, click: Reported) -> None:
        """Take an acknowledged click, in the order of acknowledgement."""
        with self._lock:
            for waiting in self._waiting:
                waiting.append(click)

    def answered(self, server: int, version: int, at_s: float) -> None:
        """Take an answer of a server from a version; at_s: monotonic."""
        # Without the lock, since most answers come from a known version; it is checked again below.
        if version <= self._versions[server]:
            return
        if version not in self._known:
            # Outside the lock: this is a round trip to the store, and clicks are reported meanwhile.
            self._known[version] = self._through_us(version)
        through = self._known.get(version)
        with self._lock:
            if version <= self._versions[server]:
                return
            self._versions[server] = version
            self._known = {each: until for each, until in self._known.items() if each > min(self._versions)}
            waiting = self._waiting[server]
            # In the order of acknowledgement: the first click that came too late ends it.
            while through is not None and waiting and waiting[0].known_us < through:
                self._window.append(at_s - waiting.popleft().began_s)

    def next_window(self) -> list[float]:
        """End the current window; returns its delays in seconds, one for each click and server."""
        with self._lock:
            window, self._window = self._window, []
            self._all.extend(window)
        return window

    def all(self) -> list[float]:
        """The newest 200,000 delays of all ended windows."""
        with self._lock:
            return list(self._all)


def quantiles(seconds: list[float]) -> dict[str, float | int | None]:
    """n, p50, p95 and max, in seconds; None if there are no delays."""
    if not seconds:
        return {"n": 0, "p50": None, "p95": None, "max": None}
    p50, p95 = np.percentile(seconds, (50, 95))
    return {
        "n": len(seconds),
        "p50": round(float(p50), 3),
        "p95": round(float(p95), 3),
        "max": round(max(seconds), 3),
    }


def through_of(versions: ModelVersions) -> Callable[[int], int | None]:
    """Version → through_us of its manifest; None if it has none, is gone, or the store is unavailable."""

    def through_us(version: int) -> int | None:
        try:
            return versions.manifest(version).through_us
        except FtrieError:
            return None

    return through_us


def rate_text(rate: float | None, decimals: int = 2) -> str:
    """A rate for a reader."""
    return "—" if rate is None else f"{100 * rate:.{decimals}f} %"


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts by name for a reader."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
