"""Freshness: how long after a click was reported the answers of each server come from a version that contains it.

A version's manifest says through when it has learned (`through_us`, by the store's clock). A report that was
acknowledged at a moment is in the stream by then, so a version that has learned through that moment contains it. This
machine's clock stands for the store's: what is measured across machines is off by as much as their clocks are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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
