"""The picture of a run: click rates of the loop, of the frozen model and of the best order, over time. SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftrie.simulation.live.asked import FROZEN
from ftrie.simulation.live.seen import Rates, rates_of, total
from ftrie.simulation.market import MODEL
from model_store.whole_file import write_whole
from trainer.report.charts import curve_chart, stacked
from trainer.report.elements import as_svg
from trainer.report.series import Point, Series
from trainer.report.style import PICTURE, VARIABLES

MOST_POINTS = 60
LEAST_S = 5.0
NAME = "Clicks per shown item"


def write(windows: Sequence[dict[str, Any]], change_at: float, path: Path) -> None:
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
