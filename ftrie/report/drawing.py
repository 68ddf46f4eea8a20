"""Charts of the reports: a page's `Series`, drawn by `ftrie.charts`. In: a title and series. Out: a specification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ftrie.charts.kinds import MOST_ROWS, Spec, intervals, lines, reliability
from ftrie.report.series import Point, Series


def curve_chart(
    title: str,
    series: Sequence[Series],
    *,
    across: str = "rows",
    reference: float | None = None,
    mark: tuple[float, str] | None = None,
    logarithmic: bool = False,
    y_log: bool = False,
    zero: bool = False,
) -> Spec:
    """Lines over rows, with bands where points have intervals, and thick running means where series have them.

    reference: a value marked by a horizontal line; mark: a position on the x axis and its label; logarithmic: of the x
    axis; y_log: of the y axis; zero: the y axis begins at 0.
    """
    has_mean = any(each.mean for each in series)
    rows = []
    for each in series:
        means = each.mean or each.points
        for point, mean in _thinned(list(zip(each.points, means, strict=True)), len(series)):
            rows.append(_row(each, point) | ({"mean": mean.y} if has_mean else {}))
    ends = "; ".join(f"{each.name} from {each.points[0].y:.5g} to {each.points[-1].y:.5g}" for each in series)
    chart = lines(
        rows,
        x="x",
        y="value",
        x_title=across,
        y_title=title,
        series=_names(series),
        x_axis="log" if logarithmic else "number",
        y_log=y_log,
        mean="mean" if has_mean else None,
        marks=[mark] if mark is not None else [],
        reference=reference,
        zero=zero,
        description=f"{title}. {ends}.",
    )
    return chart | {"title": title}


def reliability_chart(title: str, series: Sequence[Series]) -> Spec:
    """Click rate by prediction on logarithmic axes, with the diagonal on which they are equal."""
    rows = [
        {
            "series": each.name,
            "predicted": point.x,
            "observed": point.y,
            "low": point.low,
            "high": point.high,
        }
        for each in series
        for point in each.points
    ]
    rates = [point.x for each in series for point in each.points]
    words = f"{title}: click rate against prediction, from {min(rates):.4g} to {max(rates):.4g}."
    return reliability(rows, series=_names(series), description=words) | {"title": title}


def dot_chart(title: str, values: Sequence[str], series: Sequence[Series], reference: float | None) -> Spec:
    """A dot with its interval for every value and series, one line per value."""
    most = max(1, MOST_ROWS // len(series))
    rows = [
        _row(each, point) | {"name": values[round(point.x)]}
        for each in series
        for point in each.points
        if point.x < most
    ]
    rows.sort(key=lambda row: row["x"])
    words = f"{title} of {len(values)} values: " + ", ".join(values[:12])
    chart = intervals(rows, value_title=title, series=_names(series), reference=reference, description=words)
    return chart | {"title": title}


def _thinned(points: Sequence[tuple[Point, Point]], series: int) -> Sequence[tuple[Point, Point]]:
    """Evenly fewer points, the last one among them, where all series have more than a chart holds."""
    step = max(1, math.ceil(len(points) / max(1, MOST_ROWS // series)))
    return points[(len(points) - 1) % step :: step]


def _row(series: Series, point: Point) -> dict[str, Any]:
    return {"series": series.name, "x": point.x, "value": point.y, "low": point.low, "high": point.high}


def _names(series: Sequence[Series]) -> dict[str, int]:
    return {each.name: each.number for each in series}
