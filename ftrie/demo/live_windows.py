"""What the traffic has told so far: windows, and what they come to before and after tastes change. Plain records."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrie.demo.live_processes import FROZEN
from ftrie.demo.market import MODEL
from ftrie.report.charts import curve_chart, stacked
from ftrie.report.elements import PICTURE, VARIABLES, as_svg
from ftrie.report.series import Point, Series
from model_store.whole_file import write_whole

MOST = 86_400
SETTLED_S = 30.0
"""The summary compares the loop with the frozen model over the last so many seconds."""


@dataclass
class Whole:
    """The outcome of a run.

    change_at: the second in which tastes changed, or were to; restarts, exit_codes: by process; frozen_version: what
    the frozen model was a copy of.
    """

    seconds: float = 0.0
    change_at: float = 0.0
    windows: list[dict[str, Any]] = field(default_factory=list)
    traffic: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    frozen_version: int | None = None


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


MOST_POINTS = 60
LEAST_S = 5.0
NAME = "Clicks per shown item"


def write_picture(windows: Sequence[dict[str, Any]], change_at: float, path: Path) -> None:
    """Write the picture. Raises OutputError."""
    write_whole(path, drawn(windows, change_at).encode())


def drawn(windows: Sequence[dict[str, Any]], change_at: float) -> str:
    """The picture: what was to be expected by the true chances, so that chance blurs nothing."""
    stretches = _stretches(windows)
    series = [
        Series("best possible", 2, _points(stretches, MODEL, "best")),
        Series("the loop", 0, _points(stretches, MODEL, "expected")),
        Series("frozen before the change", 1, _points(stretches, FROZEN, "expected")),
    ]
    seen = [each for each in series if each.points]
    last = float(windows[-1]["second"])
    mark = (change_at, "tastes change") if change_at < last else None
    chart = curve_chart(NAME, seen, across="seconds", mark=mark, says_beginning=True)
    return as_svg(stacked([chart], VARIABLES + PICTURE))


def _stretches(windows: Sequence[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any]]]]:
    """Neighbouring windows together, with the second in the middle of each stretch."""
    first = windows[0]["second"] - windows[0]["seconds"]
    width = max(LEAST_S, (windows[-1]["second"] - first) / MOST_POINTS)
    stretches: dict[int, list[dict[str, Any]]] = {}
    for each in windows:
        stretches.setdefault(math.floor((each["second"] - each["seconds"] / 2 - first) / width), []).append(
            each
        )
    return [(first + (number + 0.5) * width, some) for number, some in sorted(stretches.items())]


def _points(
    stretches: Sequence[tuple[float, list[dict[str, Any]]]], model: str, what: str
) -> tuple[Point, ...]:
    summed = [(at, total(rates_of(each, model) for each in some)) for at, some in stretches]
    return tuple(Point(at, _rate(rates, what)) for at, rates in summed if rates.shown)


def _rate(rates: Rates, what: str) -> float:
    return (rates.best if what == "best" else rates.expected) / rates.shown
