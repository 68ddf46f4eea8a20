"""Charts as SVG elements: curves with bands, reliability diagrams, and dots for the values of a slice.

A chart has a title and a description for screen readers, a point its numbers as a tooltip. Series differ by colour
and, beyond eight, by dashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from ftrie.report.elements import COLOURS, DASHES, element
from ftrie.report.series import Point, Series

WIDTH, HEIGHT = 760.0, 300.0
_LEFT, _RIGHT, _BOTTOM = 64.0, 28.0, 40.0
_LETTER, _LEGEND_LINE = 6.6, 18.0
_MOST_MARKS = 60
_STEPS = (1.0, 2.0, 5.0, 10.0)


def curve_chart(
    name: str,
    series: Sequence[Series],
    *,
    across: str = "rows",
    reference: float | None = None,
    mark: tuple[float, str] | None = None,
    says_beginning: bool = False,
    logarithmic: bool = False,
) -> Element:
    """Lines over rows, with bands where points have intervals.

    reference: a value marked by a horizontal line; mark: a position on the x axis and its label; says_beginning: print
    where the y axis begins; logarithmic: of the x axis.
    """
    legend, top = _legend(series)
    y = Scale.over([*_heights(series), *([] if reference is None else [reference])], HEIGHT - _BOTTOM, top)
    places = [point.x for each in series for point in each.points]
    # From row 0, so that the first window does not touch the axis.
    x = Scale(min(places) if logarithmic else 0.0, max(places), _LEFT, WIDTH - _RIGHT, logarithmic)
    drawn = [] if reference is None else [_horizontal(y(reference))]
    drawn += [] if mark is None else _marked(x(mark[0]), mark[1], top, HEIGHT - _BOTTOM)
    if says_beginning:
        words = f"the y axis begins at {y.low:.2g}"
        drawn.append(element("text", words, x=_LEFT, y=y.start + 34.0, class_="quiet"))
    for each in series:
        if each.mean:
            drawn += [
                _band(each, x, y),
                _line(each, x, y, " faint"),
                _line(replace(each, points=each.mean), x, y),
            ]
        else:
            drawn += [_band(each, x, y), _line(each, x, y)]
        drawn += _marks(each, x, y, across)
    return _picture(name, HEIGHT, [*_frame(x, y, across), *drawn, *legend], _curve_words(name, series))


def reliability_chart(name: str, series: Sequence[Series]) -> Element:
    """Click rate by prediction on logarithmic axes, with the diagonal on which they are equal."""
    legend, top = _legend(series)
    height = HEIGHT + 140.0
    seen = [value for each in series for point in each.points for value in (point.x, point.y) if value > 0.0]
    y = Scale.over(seen, height - _BOTTOM, top, logarithmic=True)
    x = Scale(y.low, y.high, _LEFT, WIDTH - _RIGHT, logarithmic=True)
    diagonal = f"M{x(x.low):.1f} {y(y.low):.1f}L{x(x.high):.1f} {y(y.high):.1f}"
    drawn = [element("path", d=diagonal, class_="reference")]
    for each in series:
        drawn += [_line(each, x, y), *(_bar(each, point, x, y) for point in each.points)]
        drawn += _marks(each, x, y, "predicted")
    words = f"{name}: click rate against prediction, from {short(x.low)} to {short(x.high)}."
    return _picture(name, height, [*_frame(x, y, "mean prediction"), *drawn, *legend], words)


def dot_chart(name: str, values: Sequence[str], series: Sequence[Series], reference: float | None) -> Element:
    """A dot with its interval for every value and series, one row per value."""
    legend, top = _legend(series)
    left = min(max((len(value) for value in values), default=0), 28) * _LETTER + 24.0
    pitch = max(20.0, 7.0 * len(series) + 6.0)
    height = top + pitch * len(values) + _BOTTOM
    x = Scale.over([*_heights(series), *([] if reference is None else [reference])], left, WIDTH - _RIGHT)
    drawn = _columns(x, top, height - _BOTTOM)
    if reference is not None:
        drawn.append(_vertical(x(reference), top, height - _BOTTOM, "reference"))
    for number, value in enumerate(values):
        at = top + pitch * (number + 0.5)
        drawn.append(element("path", d=f"M{left:.0f} {at:.1f}H{WIDTH - _RIGHT:.0f}", class_="grid"))
        drawn.append(element("text", _cut(value, 28), x=left - 10.0, y=at + 4.0, text_anchor="end"))
    for number, each in enumerate(series):
        for point in each.points:
            at = top + pitch * (point.x + 0.5) + (number - (len(series) - 1) / 2) * 7.0
            drawn += _dot(each, point, x, at, values[round(point.x)])
    words = f"{name} of {len(values)} values: " + ", ".join(values[:12])
    return _picture(name, height, [*drawn, *legend], words)


def stacked(pictures: Sequence[Element], style: str) -> Element:
    """Charts one below the other as one SVG element with its own style sheet."""
    total = 0.0
    whole = element(
        "svg", element("style", style), xmlns="http://www.w3.org/2000/svg", width=WIDTH, class_="chart"
    )
    ground = element("rect", width="100%", height="100%", fill="var(--ground)")
    whole.append(ground)
    for picture in pictures:
        height = float(picture.get("viewBox", "").split()[-1])
        picture.set("y", f"{total:.0f}")
        picture.set("height", f"{height:.0f}")
        picture.set("width", f"{WIDTH:.0f}")
        whole.append(picture)
        total += height + 16.0
    whole.set("height", f"{total:.0f}")
    whole.set("viewBox", f"0 0 {WIDTH:.0f} {total:.0f}")
    return whole


def _picture(name: str, height: float, drawn: Sequence[Element], words: str) -> Element:
    return element(
        "svg",
        element("title", name),
        element("desc", words),
        element("text", name, x=4.0, y=16.0, class_="name"),
        *drawn,
        class_="chart",
        role="img",
        aria_label=words,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
    )


def _legend(series: Sequence[Series]) -> tuple[list[Element], float]:
    """The series' names and colours below the title; and the y at which drawing may begin."""
    drawn: list[Element] = []
    at, line = 4.0, 38.0
    for each in series:
        size = 30.0 + len(each.name) * _LETTER + 14.0
        if at + size > WIDTH and at > 4.0:
            at, line = 4.0, line + _LEGEND_LINE
        stroke = f"M{at:.0f} {line - 4:.0f}h22"
        drawn.append(element("path", d=stroke, class_=f"line s{each.number % COLOURS}", **_dashes(each)))
        drawn.append(element("text", each.name, x=at + 28.0, y=line))
        at += size
    return drawn, line + 14.0


def _frame(x: Scale, y: Scale, across: str) -> list[Element]:
    """Grid, axis, ticks and tick labels."""
    drawn = []
    for tick in y.ticks():
        drawn.append(element("path", d=f"M{_LEFT:.0f} {y(tick):.1f}H{WIDTH - _RIGHT:.0f}", class_="grid"))
        drawn.append(
            element("text", short(tick), x=_LEFT - 8.0, y=y(tick) + 4.0, text_anchor="end", class_="quiet")
        )
    for tick in x.ticks(8):
        drawn.append(
            element("text", short(tick), x=x(tick), y=y.start + 18.0, text_anchor="middle", class_="quiet")
        )
    drawn.append(element("path", d=f"M{_LEFT:.0f} {y.start:.1f}H{WIDTH - _RIGHT:.0f}", class_="axis"))
    drawn.append(
        element("text", across, x=WIDTH - _RIGHT, y=y.start + 34.0, text_anchor="end", class_="quiet")
    )
    return drawn


def _columns(x: Scale, top: float, bottom: float) -> list[Element]:
    drawn = []
    for tick in x.ticks(7):
        drawn.append(_vertical(x(tick), top, bottom, "grid"))
        drawn.append(
            element("text", short(tick), x=x(tick), y=bottom + 18.0, text_anchor="middle", class_="quiet")
        )
    return drawn


def _vertical(x: float, top: float, bottom: float, kind: str) -> Element:
    return element("path", d=f"M{x:.1f} {top:.1f}V{bottom:.1f}", class_=kind)


def _marked(x: float, what: str, top: float, bottom: float) -> list[Element]:
    words = element("text", what, x=x + 6.0, y=top + 0.25 * (bottom - top), class_="quiet")
    return [_vertical(x, top, bottom, "reference"), words]


def _horizontal(y: float) -> Element:
    return element("path", d=f"M{_LEFT:.0f} {y:.1f}H{WIDTH - _RIGHT:.0f}", class_="reference")


def _line(series: Series, x: Scale, y: Scale, also: str = "") -> Element:
    path = "M" + "L".join(f"{x(point.x):.1f} {y(point.y):.1f}" for point in series.points)
    return element("path", d=path, class_=f"line s{series.number % COLOURS}{also}", **_dashes(series))


def _band(series: Series, x: Scale, y: Scale) -> Element:
    known = [(x(p.x), y(p.low), y(p.high)) for p in series.points if p.low is not None and p.high is not None]
    there = [f"{at:.1f} {high:.1f}" for at, _, high in known]
    back = [f"{at:.1f} {low:.1f}" for at, low, _ in reversed(known)]
    path = "M" + "L".join([*there, *back]) + "Z" if known else ""
    return element("path", d=path, class_=f"band f{series.number % COLOURS}")


def _marks(series: Series, x: Scale, y: Scale, across: str) -> list[Element]:
    """Dots with tooltips, unless there are too many to point at."""
    if len(series.points) > _MOST_MARKS:
        return []
    return [
        _mark(
            series, x(point.x), y(point.y), f"{series.name}: {_numbers(point)} at {across} {short(point.x)}"
        )
        for point in series.points
    ]


def _mark(series: Series, x: float, y: float, words: str) -> Element:
    return element("circle", element("title", words), cx=x, cy=y, r=2.5, class_=f"f{series.number % COLOURS}")


def _bar(series: Series, point: Point, x: Scale, y: Scale) -> Element:
    low = y.low if point.low is None else point.low
    high = y.high if point.high is None else point.high
    path = f"M{x(point.x):.1f} {y(low):.1f}V{y(high):.1f}"
    return element("path", d=path, class_=f"bar s{series.number % COLOURS}")


def _dot(series: Series, point: Point, x: Scale, at: float, value: str) -> list[Element]:
    drawn = []
    if point.low is not None and point.high is not None:
        path = f"M{x(point.low):.1f} {at:.1f}H{x(point.high):.1f}"
        drawn.append(element("path", d=path, class_=f"bar s{series.number % COLOURS}"))
    drawn.append(_mark(series, x(point.y), at, f"{value}, {series.name}: {_numbers(point)}"))
    return drawn


def _numbers(point: Point) -> str:
    interval = (
        f" [{point.low:.5g}, {point.high:.5g}]" if point.low is not None and point.high is not None else ""
    )
    return f"{point.y:.5g}{interval}"


def _dashes(series: Series) -> dict[str, str]:
    dashes = DASHES[series.number // COLOURS % len(DASHES)]
    return {"stroke_dasharray": dashes} if dashes else {}


def _heights(series: Sequence[Series]) -> list[float]:
    """All y values, including the ends of intervals."""
    values = [value for each in series for point in each.points for value in (point.y, point.low, point.high)]
    return [value for value in values if value is not None]


def _curve_words(name: str, series: Sequence[Series]) -> str:
    ends = "; ".join(f"{each.name} from {each.points[0].y:.5g} to {each.points[-1].y:.5g}" for each in series)
    return f"{name}. {ends}."


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to coordinates from `start` to `stop`, linearly or logarithmically."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        start: float,
        stop: float,
        *,
        logarithmic: bool = False,
        margin: float = 0.05,
    ) -> Scale:
        """A scale over all the values; `margin` is a share of their range, added on both sides."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
        low, high = min(known, default=0.5), max(known, default=1.0)
        if logarithmic:
            low, high = math.log(low), math.log(high)
        spread = (high - low) * margin or max(abs(high) * 0.05, 1e-6)
        low, high = low - spread, high + spread
        if logarithmic:
            low, high = math.exp(low), math.exp(high)
        return cls(low, high, start, stop, logarithmic)

    def __call__(self, value: float) -> float:
        """The coordinate of a value, clamped to the scale."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.stop - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """About `most` round values within the scale, at most."""
        return self._logarithmic_ticks(most) if self.logarithmic else self._linear_ticks(most)

    def _linear_ticks(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _logarithmic_ticks(self, most: int) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
            ticks = [step * 10.0**power for power in powers for step in steps]
            inside = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(inside) <= most:
                break
        return inside if len(inside) > 1 else self._linear_ticks(most)


def short(value: float) -> str:
    """A tick label: 0.0125, 1.5 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g} {letter}"
    return f"{value:.4g}"
