"""The kinds of chart. Each function takes plain rows and returns an Altair chart whose data are these rows.

The rows are one data set named "rows", which all layers share, so that a page can be given other rows without drawing
the chart again. A row is a dictionary; the names of its members are arguments or in the function's description. Charts
are as wide as what they are in. Names come from logs: they are drawn as they are, without control characters.

series: the names of all series, in the order of their colours; or names with the numbers of their colours, for charts
of one page that lack some of its series, which are then named even where there is only one. Every function raises
UsageError without the extra `charts`, and ValueError for more than MOST_ROWS rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ftrie.charts.theme import BETTER, LIGHT, MUTED, SERIES, WORSE, config
from model_store.errors import UsageError

if TYPE_CHECKING:
    import altair as alt_types

MOST_ROWS = 2_000
HEIGHT = 240
BAR = 18
NOTEBOOK_WIDTH = 560
Rows = Sequence[dict[str, Any]]
Names = Sequence[str] | Mapping[str, int]
Axis = Literal["number", "time", "log", "category"]

_DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufffe\\uffff]")
_LETTER, _SYMBOL = 7, 34
"""Pixels of a letter of a legend, and of what stands beside a name, at most."""


def require_charts() -> Any:
    """Altair, if all that pictures need is installed. Raises UsageError otherwise; call it before a long run."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise UsageError("pictures need the extra `charts`: pip install 'ftrie[charts]'") from error
    return altair


def lines(
    rows: Rows,
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str,
    series: Names,
    x_axis: Axis = "number",
    y_log: bool = False,
    percent: bool = False,
    mean: str | None = None,
    mark: tuple[float, str] | None = None,
    reference: float | None = None,
    points: bool = False,
    zero: bool = False,
    height: int = HEIGHT,
    description: str = "",
) -> alt_types.LayerChart:
    """A line a series, with a band from `low` to `high` where the rows have them.

    Rows: x, y, series, and low and high or None. x of a time: milliseconds since 1970. mean: a member drawn as a thick
    line, while y is a thin one. mark: a dashed line at an x, with its text. reference: a dashed line at a y.
    """
    alt = require_charts()
    chart = alt.Chart(_data(rows))
    across = _across(alt, x, x_title, x_axis, [row[x] for row in rows])
    scale = alt.Scale(type="log") if y_log else alt.Scale(zero=zero)
    axis = alt.Axis(format="~g", tickCount=5) if y_log else _numbers(alt, percent)
    up = alt.Y(f"{y}:Q", title=y_title, axis=axis, scale=scale)
    colour, dashes = _colour(alt, series), _dashes(alt, series)
    tips = [
        _tip(alt, x, x_title, x_axis),
        alt.Tooltip("series:N", title="series"),
        _value_tip(alt, y, y_title, percent),
    ]
    layers = []
    if any(row.get("low") is not None for row in rows):
        layers.append(
            chart.mark_area(opacity=0.15).encode(
                x=across, y=alt.Y("low:Q", title=y_title), y2="high:Q", color=colour
            )
        )
    if mean is not None:
        layers.append(chart.mark_line(strokeWidth=1, opacity=0.35).encode(x=across, y=up, color=colour))
    own = alt.Y(f"{mean or y}:Q", title=y_title, axis=axis, scale=scale)
    layers += [
        chart.mark_line(strokeWidth=2, point={"size": 25} if points else False).encode(
            x=across, y=own, color=colour, **dashes
        ),
        # Wide, invisible targets for the pointer.
        chart.mark_point(opacity=0, size=120).encode(x=across, y=up, color=colour, tooltip=tips),
    ]
    one = chart.transform_aggregate(n="count()")
    if reference is not None:
        layers.append(one.mark_rule(strokeDash=[4, 4], color=MUTED).encode(y=alt.datum(reference)))
    if mark is not None:
        layers += [
            one.mark_rule(strokeDash=[4, 4], color=MUTED).encode(x=alt.datum(mark[0])),
            one.mark_text(align="left", baseline="top", dx=4).encode(
                x=alt.datum(mark[0]), y=alt.value(2), text=alt.value(mark[1])
            ),
        ]
    return _finished(alt, layers, height, description or f"{y_title} over {x_title}")


def intervals(
    rows: Rows,
    *,
    value_title: str,
    series: Names | None = None,
    percent: bool = False,
    reference: float | None = None,
    description: str = "",
) -> alt_types.LayerChart:
    """A dot with its interval a row, one under another. Rows: name, value, and low and high or None.

    series: rows have a member `series` too, and the dots of a name stand side by side, in the series' colours. With one
    series, or without, every row has a line of its own. reference: a value to compare with, as a line.
    """
    alt = require_charts()
    chart = alt.Chart(_data(rows))
    down: dict[str, Any] = {"y": alt.Y("name:N", title=None, sort=_order(rows, "name"))}
    if series is None:
        down["color"] = alt.Color("name:N", legend=None, sort=None, scale=alt.Scale(range=list(SERIES)))
    else:
        down["color"] = _colour(alt, series)
        if len(series) > 1:
            offsets = alt.Scale(domain=[_plain(name) for name in series])
            down["yOffset"] = alt.YOffset("series:N", scale=offsets)
    across = alt.X("low:Q", title=value_title, axis=_numbers(alt, percent), scale=alt.Scale(zero=False))
    value = alt.X("value:Q", title=value_title, axis=_numbers(alt, percent), scale=alt.Scale(zero=False))
    tips = [
        alt.Tooltip("name:N", title="name"),
        *([alt.Tooltip("series:N", title="series")] if series is not None else []),
        *(
            _value_tip(alt, name, title, percent)
            for name, title in (("value", value_title), ("low", "from"), ("high", "to"))
        ),
    ]
    known = chart.transform_filter("isValid(datum.low) && isValid(datum.high)")
    layers = [
        known.mark_rule(strokeWidth=3 if series is None else 2).encode(
            x=across, x2="high:Q", tooltip=tips, **down
        ),
        chart.mark_point(filled=True, size=90 if series is None else 45, opacity=1).encode(
            x=value, tooltip=tips, **down
        ),
    ]
    if reference is not None:
        one = chart.transform_aggregate(n="count()")
        layers.append(one.mark_rule(strokeDash=[4, 4], color=MUTED).encode(x=alt.datum(reference)))
    step = 2 * BAR if series is None else max(BAR + 2, 9 * len(series) + 6)
    size = {"step": step, "for": "position"}
    return _finished(alt, layers, size, description or f"{value_title}, with intervals")


def reliability(rows: Rows, *, series: Names, description: str = "") -> alt_types.LayerChart:
    """Observed against predicted click rates on logarithmic axes, with intervals and the diagonal.

    Rows: predicted, observed, low, high, series. A rate of 0 is drawn at the least of the others.
    """
    alt = require_charts()
    rates = [row[name] for row in rows for name in ("predicted", "observed") if row[name]]
    least, most = min(rates, default=0.001), max(rates, default=1.0)
    least, most = (least, most) if least < most else (0.5 * least, 2.0 * most)
    members = ("predicted", "observed", "low", "high")
    inside = [
        row | {name: min(max(row[name], least), most) for name in members if row[name] is not None}
        for row in rows
    ]
    chart = alt.Chart(_data(inside))
    colour, axis = _colour(alt, series), alt.Axis(format="~p", tickCount=4)
    scale = alt.Scale(type="log", domain=[least, most], nice=False)
    across = alt.X("predicted:Q", title="predicted click rate", axis=axis, scale=scale)
    up = alt.Y("observed:Q", title="observed click rate", axis=axis, scale=scale)
    tips = [
        alt.Tooltip("series:N", title="series"),
        _value_tip(alt, "predicted", "predicted", True),
        _value_tip(alt, "observed", "observed", True),
    ]
    ends = {"x": least, "y": least, "x2": most, "y2": most}
    layers = [
        chart.transform_aggregate(n="count()")
        .mark_rule(strokeDash=[4, 4], color=MUTED)
        .encode(**{name: alt.datum(value) for name, value in ends.items()}),
        chart.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_rule(opacity=0.5)
        .encode(x=across, y=alt.Y("low:Q", title="observed click rate"), y2="high:Q", color=colour),
        chart.mark_line(point={"size": 40, "filled": True}).encode(
            x=across, y=up, color=colour, tooltip=tips, **_dashes(alt, series)
        ),
    ]
    return _finished(alt, layers, 300, description or "Observed against predicted click rates")


def bars(
    rows: Rows, *, value_title: str, percent: bool = False, signed: bool = False, description: str = ""
) -> alt_types.LayerChart:
    """A bar a row, in their order. Rows: name, value. signed: two colours, for values above and below 0."""
    alt = require_charts()
    chart = alt.Chart(_data(rows))
    colour = (
        alt.condition("datum.value >= 0", alt.value(BETTER), alt.value(WORSE))
        if signed
        else alt.value(SERIES[0])
    )
    layers = [
        chart.mark_bar().encode(
            y=alt.Y("name:N", title=None, sort=_order(rows, "name"), axis=alt.Axis(labelLimit=300)),
            x=alt.X("value:Q", title=value_title, axis=_numbers(alt, percent)),
            color=colour,
            tooltip=[alt.Tooltip("name:N", title="name"), _value_tip(alt, "value", value_title, percent)],
        )
    ]
    return _finished(alt, layers, {"step": BAR + 6}, description or f"{value_title} as bars")


def histogram(
    rows: Rows, *, x_title: str, y_title: str, log: bool = False, description: str = ""
) -> alt_types.LayerChart:
    """A bar from `low` to `high` a row. Rows: low, high, value. log: of the x axis, which may hold 0."""
    alt = require_charts()
    zero = alt.datum(0)
    scale = alt.Scale(type="symlog", constant=0.1) if log else alt.Scale()
    layers = [
        alt.Chart(_data(rows))
        .mark_bar(color=SERIES[0])
        .encode(
            x=alt.X("low:Q", title=x_title, scale=scale),
            x2="high:Q",
            y=alt.Y("value:Q", title=y_title),
            y2=zero,
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
    """A coloured cell a row: blue is better, red is worse, grey is equal; one whose value is None has its text alone.

    Rows: name (down), column (across), value, text (shown in the cell), badness: from -1, best, to 1, worst.
    """
    alt = require_charts()
    chart = alt.Chart(_data(rows))
    down = alt.Y(
        "name:N",
        title=None,
        sort=_order(rows, "name"),
        axis=alt.Axis(labelLimit=300, domain=False, ticks=False, labelPadding=6),
    )
    across = alt.X(
        "column:N",
        title=None,
        sort=_order(rows, "column"),
        axis=alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False),
    )
    tips = [
        alt.Tooltip("name:N", title="name"),
        alt.Tooltip("column:N", title="column"),
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
        # A text on a colour is black; one alone has the colour of the page's texts.
        chart.transform_filter("isValid(datum.value)")
        .mark_text(fontSize=12, color="#111111")
        .encode(y=down, x=across, text="text:N"),
        chart.transform_filter("!isValid(datum.value)")
        .mark_text(fontSize=12)
        .encode(y=down, x=across, text="text:N"),
    ]
    return _finished(alt, layers, {"step": BAR + 8}, description or f"{value_title} by slice")


def for_notebook(chart: alt_types.LayerChart, title: str) -> alt_types.LayerChart:
    """The chart with a title, ftrie's colours on white and a fixed width, as notebooks show it."""
    own = config() | {"background": LIGHT["background"]}
    made: alt_types.LayerChart = chart.properties(width=NOTEBOOK_WIDTH, title=_plain(title)).configure(**own)
    return made


def _data(rows: Rows) -> Any:
    if len(rows) > MOST_ROWS:
        raise ValueError(
            f"got {len(rows):,} rows for a chart, expected at most {MOST_ROWS:,}: aggregate them"
        )
    names = ("name", "series", "column", "text")
    plain = [
        row | {name: _plain(row[name]) for name in names if isinstance(row.get(name), str)} for row in rows
    ]
    return require_charts().InlineData(values=plain, name="rows")


def _order(rows: Rows, member: str) -> list[str]:
    """The values of a member in the order of the rows; named, so that it holds when a page is given other rows."""
    return list(dict.fromkeys(_plain(row[member]) for row in rows))


def _plain(text: str) -> str:
    """Text on one line, without characters that SVG does not allow."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _finished(
    alt: Any, layers: Sequence[Any], height: int | dict[str, Any], description: str
) -> alt_types.LayerChart:
    chart: alt_types.LayerChart = alt.layer(*layers).properties(
        width="container",
        height=height,
        description=_plain(description),
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
        scale=alt.Scale(type="log", nice=False) if axis == "log" else alt.Scale(nice=False, zero=False),
        axis=alt.Axis(format="~s", tickCount=6) if max(values, default=0) >= 1_000 else alt.Axis(tickCount=6),
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


def _numbered(series: Names) -> dict[str, int]:
    """Names as they are drawn, with the numbers of their colours."""
    numbers = series if isinstance(series, Mapping) else {name: at for at, name in enumerate(series)}
    return {_plain(name): number for name, number in numbers.items()}


def _colour(alt: Any, series: Names) -> Any:
    numbers = _numbered(series)
    colours = [SERIES[number % len(SERIES)] for number in numbers.values()]
    wide = _SYMBOL + _LETTER * max(map(len, numbers), default=0)
    columns = alt.ExprRef(f"max(1, floor(width / {wide}))")
    return alt.Color(
        "series:N",
        title=None,
        scale=alt.Scale(domain=list(numbers), range=colours),
        legend=alt.Legend(columns=columns) if len(series) > 1 or isinstance(series, Mapping) else None,
    )


def _dashes(alt: Any, series: Names) -> dict[str, Any]:
    """Dashes for series whose colour another has."""
    numbers = _numbered(series)
    if max(numbers.values(), default=0) < len(SERIES):
        return {}
    dashes = [_DASHES[number // len(SERIES) % len(_DASHES)] for number in numbers.values()]
    scale = alt.Scale(domain=list(numbers), range=dashes)
    return {"strokeDash": alt.StrokeDash("series:N", title=None, scale=scale)}


def _tip(alt: Any, x: str, title: str, axis: Axis) -> Any:
    if axis == "time":
        return alt.Tooltip(f"{x}:T", title="time", format="%Y-%m-%d %H:%M:%S", formatType="time")
    return alt.Tooltip(
        f"{x}:Q" if axis != "category" else f"{x}:N", title=title, format="," if axis == "number" else ""
    )


def _value_tip(alt: Any, name: str, title: str, percent: bool) -> Any:
    return alt.Tooltip(f"{name}:Q", title=title, format=".3~p" if percent else ".5~g")
