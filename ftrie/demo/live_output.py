"""What `ftrie live` prints: the traffic's windows and their rates, lines of a running loop, its result and picture.

Its input is what the processes report: JSON lines of traffic and trainer. The dashboard shows the rest.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrie.demo.live_crew import FROZEN, Crew
from ftrie.demo.market import MODEL
from ftrie.draw.charts import curve, point
from ftrie.draw.pages import svg
from ftrie.terminal import json_output, print_json, print_table
from model_store.files import write_whole

MOST_WINDOWS = 86_400
SETTLED_S = 30.0
"""The result compares the loop with the frozen model over this many seconds."""
RECENT_S = 10.0
LINE_EVERY_S = 5.0
PICTURE_TITLE = "Clicks per shown item"
MOST_POINTS = 60
LEAST_CHUNK_S = 5.0


@dataclass(frozen=True)
class LiveResult:
    """The outcome of a run; --json prints all fields but `windows`.

    change_at: the second at which tastes changed or would have changed; restarts, exit_codes: by process;
    frozen_version: the version that the frozen model is a copy of.
    """

    seconds: float
    change_at: float
    windows: list[dict[str, Any]]
    traffic: dict[str, Any]
    before: dict[str, Any]
    last: dict[str, Any]
    trainer: dict[str, Any]
    restarts: dict[str, int]
    exit_codes: dict[str, int | None]
    frozen_version: int | None


@dataclass(frozen=True)
class Rates:
    """Sums over shown items: actual clicks, expected clicks, and expected clicks of the best order."""

    shown: int = 0
    clicks: int = 0
    expected: float = 0.0
    best: float = 0.0

    @classmethod
    def of(cls, window: dict[str, Any], model: str) -> Rates:
        """One model's in one window."""
        tally = window["models"].get(model)
        if not tally or not tally["shown"]:
            return cls()
        shown = tally["shown"]
        return cls(shown, tally["clicks"], tally["expected_ctr"] * shown, tally["best_ctr"] * shown)

    @classmethod
    def total(cls, windows: Iterable[dict[str, Any]], model: str) -> Rates:
        """One model's over several windows."""
        return sum((cls.of(window, model) for window in windows), start=cls())

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            self.shown + other.shown,
            self.clicks + other.clicks,
            self.expected + other.expected,
            self.best + other.best,
        )

    def as_json(self) -> dict[str, float | int | None]:
        """Counts, and rates per shown item; None if nothing was shown."""
        shown = self.shown
        return {
            "shown": shown,
            "clicks": self.clicks,
            "ctr": round(self.clicks / shown, 6) if shown else None,
            "expected_ctr": round(self.expected / shown, 6) if shown else None,
            "best_ctr": round(self.best / shown, 6) if shown else None,
        }


class Windows:
    """The traffic's windows, the newest 86,400, and its summary. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: deque[dict[str, Any]] = deque(maxlen=MOST_WINDOWS)
        self.summary: dict[str, Any] = {}

    def add(self, line: dict[str, Any]) -> None:
        """Take a line of `ftrie simulate --json`."""
        if line.get("event") == "summary":
            self.summary = line
        elif line.get("event") == "window":
            with self._lock:
                self._windows.append(line)

    def all(self) -> list[dict[str, Any]]:
        """All windows, oldest first."""
        with self._lock:
            return list(self._windows)

    def between(self, from_s: float, to_s: float) -> dict[str, Rates]:
        """The rates of the windows that end in (from_s, to_s]: of `loop` and `frozen`."""
        some = [each for each in self.all() if from_s < each["second"] <= to_s]
        return {"loop": Rates.total(some, MODEL), "frozen": Rates.total(some, FROZEN)}

    @property
    def second(self) -> float:
        """The market's second at the end of the last window; 0 before the first."""
        with self._lock:
            return float(self._windows[-1]["second"]) if self._windows else 0.0


class Lines:
    """Notes, and the loop's figures as a line every five seconds, on stderr; nothing with --json."""

    def __init__(self) -> None:
        self._next_line = 0.0

    def note(self, message: str) -> None:
        """Print a message."""
        if not json_output():
            print(message, file=sys.stderr, flush=True)

    def show(self, crew: Crew, windows: Windows) -> None:
        """Print the figures, if five seconds have passed."""
        if time.monotonic() < self._next_line:
            return
        last = (windows.all() or [{}])[-1]
        recent = windows.between(windows.second - RECENT_S, windows.second)
        line = _line(crew, last, recent)
        if line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            self.note(line)


def _line(crew: Crew, last: dict[str, Any], recent: dict[str, Rates]) -> str:
    if not last:
        return ""
    loop, frozen, trainer = recent["loop"].as_json(), recent["frozen"].as_json(), crew.trainer.last_line
    parts = [
        f"{last['second']:5.0f} s",
        f"{last['visits_a_second']:,.0f} visits/s",
        f"version {last['versions'].get(MODEL)}",
        f"CTR {_percent(loop['expected_ctr'])}",
        *([f"frozen {_percent(frozen['expected_ctr'])}"] if frozen["shown"] else []),
        f"best {_percent(loop['best_ctr'])}",
        f"click to weight {_freshness(last['freshness'])}",
        *([f"trainer lag {_lag(trainer)}"] if trainer else []),
        *(f"{name} {count:,}" for name, count in last["failures"].items()),
    ]
    return " · ".join(parts)


def print_result(result: LiveResult) -> None:
    """Print a run's result, with --json as one object."""
    if json_output():
        print_json({name: value for name, value in vars(result).items() if name != "windows"})
        return
    print(f"\n{result.seconds:,.0f} s; all processes have ended.")
    _print_rates(result)
    if result.traffic:
        _print_traffic(result.traffic)
    restarts = [f"{name} {count}" for name, count in result.restarts.items() if count]
    if restarts:
        print(f"restarts: {', '.join(restarts)}")


def _print_rates(result: LiveResult) -> None:
    rows = [
        (when, model, *(_percent(rates[key], 2) for key in ("ctr", "expected_ctr", "best_ctr")))
        for when, models in (
            (f"{min(SETTLED_S, result.change_at):.0f} s before the change", result.before),
            ("at the end", result.last),
        )
        for model, rates in models.items()
        if rates["shown"]
    ]
    if rows:
        print_table(("", "model", "CTR", "expected", "best possible"), rows)


def _print_traffic(traffic: dict[str, Any]) -> None:
    feedback, failures, freshness = traffic["feedback"], traffic["failures"], traffic["freshness"]
    print(f"click to weight in serving: {_freshness(freshness)}, of {freshness['n']:,}")
    print(
        f"{feedback['clicks']:,} clicks and {feedback['conversions']:,} conversions reported; failed calls: "
        + (", ".join(f"{name} {count:,}" for name, count in failures.items()) or "none")
        + f"; lost visits {traffic['lost_visits']:,}"
    )


def _lag(line: dict[str, Any]) -> str:
    lags = line.get("lags", {}).values()
    seconds = [lag["seconds"] for lag in lags if lag.get("seconds") is not None]
    events = [lag["events"] for lag in lags if lag.get("events") is not None]
    return f"{sum(events):,} events" + (f", {max(seconds):.1f} s" if seconds else "")


def _freshness(quantiles: dict[str, Any]) -> str:
    if not quantiles.get("n"):
        return "—"
    return f"p50 {quantiles['p50']:.2f} s, p95 {quantiles['p95']:.2f} s"


def _percent(rate: float | None, decimals: int = 1) -> str:
    return "—" if rate is None else f"{100 * rate:.{decimals}f} %"


def write_picture(windows: Sequence[dict[str, Any]], change_at: float, path: Path) -> None:
    """Write the picture as SVG. Raises OutputError."""
    write_whole(path, picture(windows, change_at).encode())


def picture(windows: Sequence[dict[str, Any]], change_at: float) -> str:
    """Expected click rates over time, by the true chances, hence free of the noise of clicks; as SVG."""
    chunks = _chunks(windows)
    kinds = {
        "best possible": (2, MODEL, "best"),
        "the loop": (0, MODEL, "expected"),
        "frozen before the change": (1, FROZEN, "expected"),
    }
    rows = [
        point(name, at, getattr(rates, clicks) / rates.shown)
        for name, (_, model, clicks) in kinds.items()
        for at, some in chunks
        if (rates := Rates.total(some, model)).shown
    ]
    colours = {name: number for name, (number, _, _) in kinds.items()}
    marks = [(change_at, "tastes change")] if change_at < float(windows[-1]["second"]) else []
    return svg(curve(PICTURE_TITLE, rows, colours, across="seconds", marks=marks, zero=True))


def _chunks(windows: Sequence[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any]]]]:
    """Neighbouring windows grouped into at most about MOST_POINTS chunks, each with its middle second."""
    first = windows[0]["second"] - windows[0]["seconds"]
    width = max(LEAST_CHUNK_S, (windows[-1]["second"] - first) / MOST_POINTS)
    chunks: dict[int, list[dict[str, Any]]] = {}
    for each in windows:
        number = math.floor((each["second"] - each["seconds"] / 2 - first) / width)
        chunks.setdefault(number, []).append(each)
    return [(first + (number + 0.5) * width, some) for number, some in sorted(chunks.items())]
