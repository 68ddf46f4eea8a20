"""The kinds of chart. Each function takes plain rows and returns an Altair chart whose data are these rows.

The rows are one data set named "rows", which all layers share, so that a page can be given other rows without drawing
the chart anew. A row is a dictionary; the names of its members are arguments or in the function's description. Charts
are as wide as what they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ftrie.charts.theme import BETTER, EQUAL, MUTED, SERIES, WORSE
from model_store.errors import UsageError

if TYPE_CHECKING:
    import altair as alt_types

MOST_ROWS = 2_000
HEIGHT = 240
BAR = 18
Rows = Sequence[dict[str, Any]]
Axis = Literal["number", "time", "log", "category"]


def lines(
    rows: Rows,
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str,
    series: Sequence[str],
    x_axis: Axis = "number",
    percent: bool = False,
    mark: tuple[float, str] | None = None,
    reference: float | None = None,
    points: bool = False,
    zero: bool = False,
    title: str = "",
    height: int = HEIGHT,
    description: str = "",
) -> alt_types.LayerChart:
    """A line a series, with a band from `low` to `high`, and a thicker line through `mean`, where the rows have them.

    Rows: x, y, series, and low, high and mean or None. x of a time: milliseconds since 1970. series: all names, in the
    order of the colours. mark: a dashed line at an x, with its text; reference: a dashed line at a y.
    """
    alt = _altair()
    chart = alt.Chart(_data(rows))
    across = _across(alt, x, x_title, x_axis, [row[x] for row in rows])
    up = alt.Y(f"{y}:Q", title=y_title, axis=_numbers(alt, percent), scale=alt.Scale(zero=zero))
    colour = _colour(alt, series)
    tips = [
        _tip(alt, x, x_title, x_axis),
        alt.Tooltip("series:N", title=" "),
        _value_tip(alt, y, y_title, percent),
    ]
    smooth = any(row.get("mean") is not None for row in rows)
    layers = []
    if any(row.get("low") is not None for row in rows):
        band = alt.Y("low:Q", title=y_title)
        layers.append(
            chart.mark_area(opacity=0.15, clip=True).encode(x=across, y=band, y2="high:Q", color=colour)
        )
    if reference is not None:
        layers.append(chart.mark_rule(strokeDash=[4, 4], color=MUTED).encode(y=alt.datum(reference)))
    drawn = chart.mark_line(
        strokeWidth=1 if smooth else 2,
        opacity=0.35 if smooth else 1.0,
        clip=True,
        point={"size": 25} if points else False,
    )
    layers.append(drawn.encode(x=across, y=up, color=colour))
    if smooth:
        mean = alt.Y("mean:Q", title=y_title)
        layers.append(chart.mark_line(strokeWidth=2.5, clip=True).encode(x=across, y=mean, color=colour))
    # Wide, invisible targets for the pointer.
    layers.append(
        chart.mark_point(opacity=0, size=120, clip=True).encode(x=across, y=up, color=colour, tooltip=tips)
    )
    if mark is not None:
        layers += [
            chart.mark_rule(strokeDash=[4, 4], color=MUTED).encode(x=alt.datum(mark[0])),
            chart.mark_text(align="left", baseline="top", dx=4, color=MUTED).encode(
                x=alt.datum(mark[0]), y=alt.value(2), text=alt.value(mark[1])
            ),
        ]
    return _finished(alt, layers, height, description or title or f"{y_title} over {x_title}", title)


def intervals(
    rows: Rows,
    *,
    value_title: str,
    series: Sequence[str] = (),
    percent: bool = False,
    reference: float | None = None,
    title: str = "",
    description: str = "",
) -> alt_types.LayerChart:
    """A dot with its interval a row, one under another. Rows: name, value, low and high or None; and series.

    series: all names of series, beside each other within a name; without it every name has a colour of its own.
    reference: a value to compare with, as a line.
    """
    alt = _altair()
    chart = alt.Chart(_data(rows))
    down = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260))
    if series:
        colour, beside = _colour(alt, series), {"yOffset": alt.YOffset("series:N", sort=None)}
    else:
        scale = alt.Scale(range=list(SERIES))
        colour, beside = alt.Color("name:N", legend=None, sort=None, scale=scale), {}
    scale, axis = alt.Scale(zero=False), _numbers(alt, percent)
    tips = [
        alt.Tooltip("name:N", title=" "),
        *([alt.Tooltip("series:N", title=" ")] if series else []),
        _value_tip(alt, "value", value_title, percent),
        _value_tip(alt, "low", "from", percent),
        _value_tip(alt, "high", "to", percent),
    ]
    layers = []
    if any(row.get("low") is not None for row in rows):
        across = alt.X("low:Q", title=value_title, axis=axis, scale=scale)
        bar = chart.mark_rule(strokeWidth=3, clip=True)
        layers.append(bar.encode(y=down, x=across, x2="high:Q", color=colour, tooltip=tips, **beside))
    across = alt.X("value:Q", title=value_title, axis=axis, scale=scale)
    dot = chart.mark_point(filled=True, size=90 if len(series) < 2 else 45, opacity=1)
    layers.append(dot.encode(y=down, x=across, color=colour, tooltip=tips, **beside))
    if reference is not None:
        layers.append(chart.mark_rule(strokeDash=[4, 4], color=MUTED).encode(x=alt.datum(reference)))
    step = {"step": max(BAR + 4, 9 * len(series)) if series else 2 * BAR, "for": "position"}
    return _finished(alt, layers, step, description or title or f"{value_title}, with intervals", title)


def reliability(
    rows: Rows, *, series: Sequence[str], title: str = "", description: str = ""
) -> alt_types.LayerChart:
    """Observed against predicted click rates, with intervals and the diagonal.

    Rows: predicted, observed, low, high, series.
    """
    alt = _altair()
    chart = alt.Chart(_data(rows))
    rates = [row[name] for row in rows for name in ("predicted", "observed") if row[name] is not None]
    bounds = [min([r for r in rates if r > 0.0], default=0.001), max(rates, default=1.0)]
    colour, axis = _colour(alt, series), alt.Axis(format="~p", tickCount=4)
    scale = alt.Scale(type="log", domain=bounds, clamp=True)
    across = alt.X("predicted:Q", title="predicted click rate", axis=axis, scale=scale)
    up = alt.Y("observed:Q", title="observed click rate", axis=axis, scale=scale)
    tips = [
        alt.Tooltip("series:N", title=" "),
        _value_tip(alt, "predicted", "predicted", True),
        _value_tip(alt, "observed", "observed", True),
    ]
    layers = [
        chart.mark_line(strokeDash=[4, 4], color=MUTED, strokeWidth=1).encode(
            x=across, y=alt.Y("predicted:Q", title="observed click rate", axis=axis, scale=scale)
        ),
        chart.mark_rule(opacity=0.5, clip=True).encode(
            x=across, y=alt.Y("low:Q", title="observed click rate"), y2="high:Q", color=colour
        ),
        chart.mark_line(point={"size": 40, "filled": True}, clip=True).encode(
            x=across, y=up, color=colour, tooltip=tips
        ),
    ]
    words = description or title or "Observed against predicted click rates"
    return _finished(alt, layers, 300, words, title)


def bars(
    rows: Rows, *, value_title: str, percent: bool = False, signed: bool = False, description: str = ""
) -> alt_types.LayerChart:
    """A bar a row, in their order. Rows: name, value. signed: two colours, for values above and below 0."""
    alt = _altair()
    chart = alt.Chart(_data(rows))
    colour = (
        alt.condition("datum.value >= 0", alt.value(BETTER), alt.value(WORSE))
        if signed
        else alt.value(SERIES[0])
    )
    layers = [
        chart.mark_bar(cornerRadius=2).encode(
            y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
            x=alt.X("value:Q", title=value_title, axis=_numbers(alt, percent)),
            color=colour,
            tooltip=[alt.Tooltip("name:N", title=" "), _value_tip(alt, "value", value_title, percent)],
        )
    ]
    return _finished(alt, layers, {"step": BAR + 6}, description or f"{value_title} as bars")


def histogram(
    rows: Rows, *, x_title: str, y_title: str, log: bool = False, description: str = ""
) -> alt_types.LayerChart:
    """A bar from `low` to `high` a row. Rows: low, high, value."""
    alt = _altair()
    scale = alt.Scale(type="symlog", constant=0.1) if log else alt.Scale()
    layers = [
        alt.Chart(_data(rows))
        .mark_bar(color=SERIES[0], cornerRadius=1)
        .encode(
            x=alt.X("low:Q", title=x_title, scale=scale),
            x2="high:Q",
            y=alt.Y("value:Q", title=y_title),
            tooltip=[
                _value_tip(alt, "low", "from", False),
                _value_tip(alt, "high", "to", False),
                _value_tip(alt, "value", y_title, False),
            ],
        )
    ]
    return _finished(alt, layers, HEIGHT - 60, description or f"{y_title} by {x_title}")


def grid(
    rows: Rows, *, value_title: str, percent: bool = False, description: str = ""
) -> alt_types.LayerChart:
    """A coloured cell a row: blue is better, red is worse, grey is equal; a cell whose value is None is hatched out.

    Rows: name (down), column (across), value, text (shown in the cell), badness: from -1, best, to 1, worst.
    """
    alt = _altair()
    chart = alt.Chart(_data(rows))
    down = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=300, domain=False, ticks=False))
    across = alt.X(
        "column:N",
        title=None,
        sort=None,
        axis=alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False),
    )
    tips = [
        alt.Tooltip("name:N", title=" "),
        alt.Tooltip("column:N", title=" "),
        _value_tip(alt, "value", value_title, percent),
        alt.Tooltip("rows:Q", title="rows", format=","),
    ]
    layers = [
        chart.mark_rect(stroke=MUTED, strokeOpacity=0.25).encode(
            y=down,
            x=across,
            color=alt.condition(
                "isValid(datum.value)",
                alt.Color(
                    "badness:Q",
                    legend=None,
                    scale=alt.Scale(domain=[-1, 0, 1], range=["#9ecae9", "#f2f2f2", "#f4a6a0"], clamp=True),
                ),
                alt.value("transparent"),
            ),
            tooltip=tips,
        ),
        chart.mark_text(fontSize=12).encode(
            y=down,
            x=across,
            text="text:N",
            color=alt.condition("isValid(datum.value)", alt.value("#111111"), alt.value(EQUAL)),
        ),
    ]
    return _finished(alt, layers, {"step": BAR + 8}, description or f"{value_title} by slice")


def _altair() -> Any:
    try:
        import altair
    except ImportError as error:
        raise UsageError("charts need the extra `charts`: pip install 'ftrie[charts]'") from error
    return altair


def _data(rows: Rows) -> Any:
    if len(rows) > MOST_ROWS:
        raise ValueError(
            f"got {len(rows):,} rows for a chart, expected at most {MOST_ROWS:,}: aggregate them"
        )
    return _altair().InlineData(values=list(rows), name="rows")


def _finished(
    alt: Any, layers: Sequence[Any], height: int | dict[str, Any], description: str, title: str = ""
) -> alt_types.LayerChart:
    more = {"title": title} if title else {}
    chart: alt_types.LayerChart = alt.layer(*layers).properties(
        width="container", height=height, description=description, **more
    )
    return chart


def _across(alt: Any, x: str, title: str, axis: Axis, values: Sequence[Any]) -> Any:
    if axis == "time":
        span = (max(values) - min(values)) / 1000.0 if values else 0.0
        form = next(form for most, form in _TIMES if span < most)
        return alt.X(
            f"{x}:T", title=None, scale=alt.Scale(type="utc"), axis=alt.Axis(format=form, tickCount=6)
        )
    if axis == "category":
        return alt.X(f"{x}:N", title=title, sort=None)
    return alt.X(
        f"{x}:Q",
        title=title,
        scale=alt.Scale(type="log") if axis == "log" else alt.Scale(nice=False, zero=False),
    )


_TIMES = (
    (600.0, "%H:%M:%S"),
    (86_400.0, "%H:%M"),
    (4 * 86_400.0, "%b %d %H:%M"),
    (float("inf"), "%b %d"),
)
"""How moments are written, by the seconds that a chart spans: less than so many."""


def _numbers(alt: Any, percent: bool) -> Any:
    return alt.Axis(format="~p") if percent else alt.Axis()


def _colour(alt: Any, series: Sequence[str]) -> Any:
    colours = [SERIES[number % len(SERIES)] for number in range(len(series))]
    return alt.Color(
        "series:N",
        scale=alt.Scale(domain=list(series), range=colours),
        legend=alt.Legend() if len(series) > 1 else None,
    )


def _tip(alt: Any, x: str, title: str, axis: Axis) -> Any:
    if axis == "time":
        return alt.Tooltip(f"{x}:T", title="time", format="%Y-%m-%d %H:%M:%S", formatType="time")
    return alt.Tooltip(
        f"{x}:Q" if axis != "category" else f"{x}:N", title=title, format="," if axis == "number" else ""
    )


def _value_tip(alt: Any, name: str, title: str, percent: bool) -> Any:
    return alt.Tooltip(f"{name}:Q", title=title, format=".3~p" if percent else ".5~g")
