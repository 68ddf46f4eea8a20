"""What the experiments page shows: outcomes by variant, their course over time, and how sure one may be of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftrie.dashboard.feed import ModelState
from ftrie.dashboard.minutes import Minutes
from ftrie.outcomes import Outcomes, chances_best, outcomes

MOST_POINTS = 1_800
MOST_GROUPS = 180
GROUPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1_440)
"""Minutes that are added up to one point of the chart."""
MILLISECONDS = 60_000


@dataclass(frozen=True)
class ExperimentFigures:
    """The outcomes of a time. chances: probability of each variant to be the best; empty if they are not known yet.

    left_minutes: how long until a difference of the effect is detected at the present rate of requests, by variant;
    0 if it is already, absent if unknown. rows: a point a group of minutes and variant, with members time
    (milliseconds since 1970), series, value, low and high.
    """

    outcomes: Outcomes
    chances: dict[str, float]
    left_minutes: dict[str, float]
    rows: list[dict[str, Any]]
    group_minutes: int


def experiment_figures(
    state: ModelState, minutes: Minutes, begin: int, stop: int, effect: float
) -> ExperimentFigures:
    """The figures of the minutes from `begin` to before `stop`. effect: the relative change to detect."""
    cells = minutes.cells(begin, stop)
    found = outcomes(cells, state.shares, state.base, effect, state.divided_since)
    span = max(1, stop - (cells[0][0].minute if cells else begin))
    group = group_of(span, max(1, len(found.variants)))
    return ExperimentFigures(
        outcomes=found,
        chances=chances_best({name: each.ctr for name, each in found.variants.items()}),
        left_minutes=_left(found, span),
        rows=_course(minutes, stop - -(-span // group) * group, stop, group),
        group_minutes=group,
    )


def group_of(minutes: int, series: int) -> int:
    """How many minutes are one point, so that a chart has at most MOST_POINTS of all series."""
    most = min(MOST_GROUPS, MOST_POINTS // series)
    return next((group for group in GROUPS if minutes <= group * most), -(-minutes // most))


def _left(found: Outcomes, span: int) -> dict[str, float]:
    base = found.variants.get(found.base or "")
    left = {}
    for name, each in found.variants.items():
        if base is None or each.needed is None:
            continue
        have = base.sums.requests + each.sums.requests
        left[name] = max(0.0, (each.needed - have) / (have / span))
    return left


def _course(minutes: Minutes, begin: int, stop: int, group: int) -> list[dict[str, Any]]:
    rows = []
    for minute, name, cell in minutes.groups(begin, stop, group):
        rate = cell.click_rate
        interval = rate.interval() if rate is not None else None
        if rate is not None:
            rows.append(
                {
                    "time": (minute + group / 2) * MILLISECONDS,
                    "series": name or "(none)",
                    "value": rate.value,
                    "low": interval.low if interval else None,
                    "high": interval.high if interval else None,
                }
            )
    return rows[-MOST_POINTS:]
