"""What the traffic has told so far: windows, and what they come to before and after tastes change. Plain records."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ftrie.simulation.live.asked import FROZEN
from ftrie.simulation.market import MODEL

MOST = 86_400


@dataclass(frozen=True)
class Rates:
    """Per shown item: what the clicks came to, what was to be expected, what the best order would have had."""

    shown: int = 0
    clicks: int = 0
    expected: float = 0.0
    best: float = 0.0

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            self.shown + other.shown,
            self.clicks + other.clicks,
            self.expected + other.expected,
            self.best + other.best,
        )

    def as_json(self) -> dict[str, float | int | None]:
        """Counts, and rates where anything was shown."""
        shown = self.shown
        return {
            "shown": shown,
            "clicks": self.clicks,
            "ctr": round(self.clicks / shown, 6) if shown else None,
            "expected_ctr": round(self.expected / shown, 6) if shown else None,
            "best_ctr": round(self.best / shown, 6) if shown else None,
        }


def rates_of(window: dict[str, Any], model: str) -> Rates:
    """One window's, of one model."""
    told = window["models"].get(model)
    if not told or not told["shown"]:
        return Rates()
    shown = told["shown"]
    return Rates(shown, told["clicks"], told["expected_ctr"] * shown, told["best_ctr"] * shown)


class Windows:
    """Every window of the traffic, the last day's. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: deque[dict[str, Any]] = deque(maxlen=MOST)
        self.summary: dict[str, Any] = {}

    def hear(self, line: dict[str, Any]) -> None:
        """A line of `ftrie simulate --json`."""
        if line.get("event") == "summary":
            self.summary = line
        elif line.get("event") == "window":
            with self._lock:
                self._windows.append(line)

    def all(self) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        with self._lock:
            return list(self._windows)

    def between(self, from_s: float, to_s: float) -> dict[str, Rates]:
        """Loop, frozen: the rates of the windows that end in (from_s, to_s]."""
        some = [each for each in self.all() if from_s < each["second"] <= to_s]
        return {
            "loop": total(rates_of(each, MODEL) for each in some),
            "frozen": total(rates_of(each, FROZEN) for each in some),
        }

    @property
    def second(self) -> float:
        """How far the market is, by the last window."""
        with self._lock:
            return float(self._windows[-1]["second"]) if self._windows else 0.0


def total(rates: Iterable[Rates]) -> Rates:
    """The sum."""
    return sum(rates, start=Rates())
