"""Every picture of ftrie, in reports, notebooks, benchmarks and the dashboard: rows in, a Vega-Lite chart out.

The rows are one data set named ROWS, which all layers share, so that a page can be given other rows without drawing
the chart again. A row is a dictionary; the names of its members are arguments or in the function's description, and
`point` makes the usual one. Charts are as wide as their container. Names come from logs: they are drawn as they are,
without control characters.

series: the names of all series, in the order of their colours; or names with the numbers of their colours, for charts
of one page that lack some of its series, which are then named even where there is only one. Every kind of chart raises
ValueError for more than MOST_ROWS rows; `thinned` makes them fewer.

The colours of series have a contrast of at least 3 : 1 on light and dark backgrounds, and are distinguishable with any
common colour-vision deficiency (after Okabe and Ito 2008, darkened); texts have at least 4.5 : 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from model_store.errors import UsageError, installing
from model_store.ratios import wilson

if TYPE_CHECKING:
    import altair as alt

    from trainer.learn.metrics.records import Bin
    from trainer.learn.metrics.reliability import ReliabilityBin

SERIES = ("#2b7bba", "#cc5c00", "#00875f", "#a8559b", "#8a7000", "#c2403e", "#4f7f8f", "#7b68c4")
"""The colours of the first series; further ones begin again, with dashes."""
WORSE, BETTER = "#c2403e", "#2b7bba"
MUTED = "#808080"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
LIGHT = {"text": "#1f2937", "soft": "#4b5563", "grid": "#e2e5ea", "background": "#ffffff"}
DARK = {"text": "#e8eaee", "soft": "#b8bfca", "grid": "#3a4250", "background": "#15181d"}
MOST_ROWS = 2_000
ROWS = "rows"
"""The name of the data set."""
PLOT_WIDTH = "plotWidth"
"""The parameter by which a legend breaks its lines: the width of the plot, unless another is given."""
HEIGHT = 240
BAR = 18
NOTEBOOK_WIDTH = 560
NONE, OTHERS = "(none)", "(all others)"
"""For an empty value, or a row without a variant; for all values without a slice of their own."""
Row = dict[str, Any]
Rows = Sequence[Row]
Names = Sequence[str] | Mapping[str, int]
Axis = Literal["number", "time", "log", "category"]
Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

_DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])
_TEXTS = ("name", "series", "column", "text")
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufffe\\uffff]")
_LABEL = 26
_SHORTENED = f"slice(datum.label, 0, {_LABEL // 2 - 1}) + '…' + slice(datum.label, {-_LABEL // 2})"
_LETTER, _SYMBOL = 7, 34
"""Pixels of a letter of a legend, and of what is beside a name, at most."""
_ONCE: list[Spec] = [{"aggregate": [{"op": "count", "as": "n"}]}]
_KNOWN: list[Spec] = [{"filter": "isValid(datum.low) && isValid(datum.high)"}]
"""Transforms: one row instead of all, for what is drawn once; rows with an interval."""


def config(dark: bool = False) -> dict[str, Any]:
    """The configuration of a Vega-Lite chart."""
    colours = DARK if dark else LIGHT
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        # The chart as a whole has a description, its figures are in tables beside it.
        "mark": {"aria": False},
        "axis": {
            "labelColor": colours["soft"],
            "titleColor": colours["soft"],
            "gridColor": colours["grid"],
            "domainColor": colours["grid"],
            "tickColor": colours["grid"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 220,
        },
        "legend": {
            "orient": "top",
            "title": None,
            "labelColor": colours["text"],
            "titleColor": colours["text"],
            "labelFontSize": 12,
            "symbolStrokeWidth": 3,
            "symbolOpacity": 1,
            "symbolType": "stroke",
            "labelLimit": 260,
        },
        "title": {
            "color": colours["text"],
            "subtitleColor": colours["soft"],
            "anchor": "start",
            "fontSize": 14,
        },
        "range": {"category": list(SERIES)},
        "text": {"color": colours["text"]},
        "rule": {"color": colours["soft"]},
        "axisQuantitative": {"tickCount": 6},
    }


def require_charts() -> None:
    """Check that static pictures can be made. Raises UsageError; call it before a long run."""
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise UsageError(f"pictures need the extra `charts`: {installing('charts')}") from error


# -- rows


def point(series: str, x: float, value: float, low: float | None = None, high: float | None = None) -> Row:
    """A row of `curve`: a value of a series, with the ends of its interval if it has one."""
    return {"series": series, "x": x, "value": value, "low": low, "high": high}


def reliability_rows(series: str, bins: Iterable[Bin | ReliabilityBin]) -> list[Row]:
    """Rows of `reliability`: of each bin the mean prediction, and the click rate with its 95 % interval (Wilson)."""
    from trainer.learn.metrics.records import Bin

    rows: list[Row] = []
    for each in bins:
        if each.weight > 0.0:
            if isinstance(each, Bin):
                rate = min(each.clicks / each.weight, 1.0)  # by rounding, one sum may exceed the other
                figures = (each.predicted / each.weight, rate, *wilson(rate, each.weight))
            else:
                figures = each.predicted, each.click_rate, each.low, each.high
            members = zip(("predicted", "observed", "low", "high"), figures, strict=True)
            rows.append({"series": series, **dict(members)})
    return rows


def value_name(value: str | None) -> str:
    """The value of a slice for a reader; None is all values without a slice of their own."""
    return OTHERS if value is None else value or NONE


def thinned(rows: Rows, most: int = MOST_ROWS) -> Rows:
    """At most `most` of the rows: evenly fewer of every series, the last one of each among them."""
    counts = Counter(row["series"] for row in rows)
    step = -(-max(counts.values(), default=0) // max(1, most // max(1, len(counts))))
    if step <= 1:
        return rows
    left = counts.copy()
    kept = []
    for row in rows:
        left[row["series"]] -= 1
        if left[row["series"]] % step == 0:
            # What is left of a series is 0 at its last row, which is therefore kept.
            kept.append(row)
    return kept


# -- kinds


def over_time(rows: Rows, y_title: str, series: Names, **options: Any) -> Spec:
    """`lines` by the time. Rows: time (milliseconds since 1970), series, value, and low and high or None."""
    return lines(rows, x="time", x_title="time", x_axis="time", y_title=y_title, series=series, **options)


def curve(title: str, rows: Rows, series: Mapping[str, int], *, across: str = "rows", **options: Any) -> Spec:
    """`lines` of rows of `point`, with a thick running mean where rows have a member `mean`; series: as in `drawn`."""
    ends: dict[str, tuple[float, float]] = {}
    for row in rows:
        ends[row["series"]] = ends.get(row["series"], (row["value"],))[0], row["value"]
    words = "; ".join(f"{name} from {first:.5g} to {last:.5g}" for name, (first, last) in ends.items())
    has_mean = any("mean" in row for row in rows)
    # `lines` refuses more than MOST_ROWS; the description is of all rows.
    few = thinned([{"mean": row["value"]} | row for row in rows] if has_mean else rows)
    return lines(
        few,
        x_title=across,
        y_title=title,
        series=drawn(rows, series),
        mean="mean" if has_mean else None,
        title=title,
        description=f"{title}. {words}.",
        **options,
    )


def dots(
    title: str, values: Sequence[str], rows: Rows, series: Mapping[str, int], reference: float | None
) -> Spec:
    """`intervals` of several values. Rows: as of `point`, x is the number of the value, ascending."""
    named = [row | {"name": values[row["x"]]} for row in rows[:MOST_ROWS]]
    words = f"{title} of {len(values)} values: " + ", ".join(values[:12])
    own = drawn(rows, series)
    return intervals(
        named, value_title=title, series=own, reference=reference, title=title, description=words
    )


def drawn(rows: Rows, series: Mapping[str, int]) -> dict[str, int]:
    """The series that have rows, with the numbers of their colours."""
    present = {row["series"] for row in rows}
    return {name: number for name, number in series.items() if name in present}


def lines(
    rows: Rows,
    *,
    x: str = "x",
    y: str = "value",
    x_title: str,
    y_title: str,
    series: Names,
    x_axis: Axis = "number",
    y_log: bool = False,
    percent: bool = False,
    mean: str | None = None,
    marks: Sequence[tuple[float, str]] = (),
    reference: float | None = None,
    points: bool = False,
    zero: bool = False,
    within: tuple[float, float] | None = None,
    height: int = HEIGHT,
    title: str = "",
    description: str = "",
) -> Spec:
    """A line a series, with a band from `low` to `high` where the rows have them.

    Rows: x, y, series, and low and high or None. x of a time: milliseconds since 1970. mean: a member drawn as a thick
    line, while y is a thin one. marks: dashed lines at an x, each with its text. reference: a dashed line at a y.
    within: the ends of the y axis; what is beyond is drawn at its edge.
    """
    across = _across(x, x_title, x_axis, [row[x] for row in rows])
    scale: Spec = {"type": "log"} if y_log else {"zero": zero}
    if within is None and len({row[y] for row in rows}) == 1 and not (y_log or zero):
        # An axis without an extent has ticks of whole numbers.
        within = _around(rows[0][y])
    if within is not None:
        scale |= {"domain": list(within), "clamp": True}
    axis = {"format": "~g", "tickCount": 5} if y_log else _numbers(percent)
    up, own = (_number(member, y_title, axis=axis, scale=scale) for member in (y, mean or y))
    place: Spec = {"x": across, "color": _colour(series)}
    tips = [_tip(x, x_title, x_axis), _name("series"), _value_tip(y, y_title, percent)]
    layers = []
    if any(row.get("low") is not None for row in rows):
        band = {"y": _number("low", y_title), "y2": {"field": "high"}}
        layers.append(_layer({"type": "area", "opacity": 0.15}, place | band))
    if mean is not None:
        layers.append(_layer({"type": "line", "strokeWidth": 1, "opacity": 0.35}, place | {"y": up}))
    # A line of one point is not seen.
    lonely = 1 in Counter(row["series"] for row in rows).values()
    line = {"type": "line", "strokeWidth": 2, "point": {"size": 25} if points or lonely else False}
    layers += [
        _layer(line, place | {"y": own} | _dashes(series)),
        # Wide, invisible targets for the pointer.
        _layer({"type": "point", "opacity": 0, "size": 120}, place | {"y": up, "tooltip": tips}),
    ]
    if reference is not None:
        layers.append(_reference({"y": {"datum": reference}}))
    for number, (where, told) in enumerate(marks):
        at = {"x": {"datum": where}}
        words = {"y": {"value": 2 + 12 * (number % 4)}, "text": {"value": told}}
        text = {"type": "text", "align": "left", "baseline": "top", "dx": 4}
        layers += [_reference(at), _layer(text, at | words, _ONCE)]
    return _finished(rows, layers, height, description or f"{y_title} over {x_title}", title)


def intervals(
    rows: Rows,
    *,
    value_title: str,
    series: Names | None = None,
    percent: bool = False,
    reference: float | None = None,
    colours: Names = (),
    title: str = "",
    description: str = "",
) -> Spec:
    """A dot with its interval a row, one under another. Rows: name, value, and low and high or None.

    series: rows have a member `series` too, and the dots of a name are side by side, in the series' colours. With one
    series, or without, every row has a line of its own. reference: a value to compare with, as a line. colours: as
    `series` of other kinds, of the rows' names where there are no series.
    """
    place: Spec = {"y": _listed(rows, "name")}
    if series is None:
        numbers = _numbered(colours or list(dict.fromkeys(row["name"] for row in rows)))
        range_ = [SERIES[number % len(SERIES)] for number in numbers.values()]
        place["color"] = _text("name", legend=None, scale={"domain": list(numbers), "range": range_})
    else:
        place["color"] = _colour(series)
        if len(series) > 1:
            place["yOffset"] = _text("series", scale={"domain": [_plain(name) for name in series]})
    place["tooltip"] = [
        _name("name"),
        *([_name("series")] if series is not None else []),
        _value_tip("value", value_title, percent),
        _value_tip("low", "from", percent),
        _value_tip("high", "to", percent),
    ]
    low, value = (
        _number(member, value_title, axis=_numbers(percent), scale={"zero": False})
        for member in ("low", "value")
    )
    thin = series is not None
    layers = [
        _layer(
            {"type": "rule", "strokeWidth": 2 if thin else 3},
            place | {"x": low, "x2": {"field": "high"}},
            _KNOWN,
        ),
        _layer(
            {"type": "point", "filled": True, "size": 45 if thin else 90, "opacity": 1}, place | {"x": value}
        ),
    ]
    if reference is not None:
        layers.append(_reference({"x": {"datum": reference}}))
    step = 2 * BAR if series is None else max(BAR + 2, 9 * len(series) + 6)
    size = {"step": step, "for": "position"}
    return _finished(rows, layers, size, description or f"{value_title}, with intervals", title)


def reliability(rows: Rows, *, series: Names, title: str = "") -> Spec:
    """Observed against predicted click rates on logarithmic axes, with intervals and the diagonal.

    Rows: predicted, observed, low, high, series. A rate of 0 is drawn at the least of the others.
    """
    rates = [row[name] for row in rows for name in ("predicted", "observed") if row[name]]
    least, most = min(rates, default=0.001), max(rates, default=1.0)
    least, most = (least, most) if least < most else (0.5 * least, 2.0 * most)
    members = ("predicted", "observed", "low", "high")
    inside = [
        row | {name: min(max(row[name], least), most) for name in members if row[name] is not None}
        for row in rows
    ]
    # One domain for both axes, not rounded to nice ends: else the diagonal would not be where both rates are equal.
    axis, scale = {"format": "~p", "tickCount": 4}, {"type": "log", "domain": [least, most], "nice": False}
    across = _number("predicted", "predicted click rate", axis=axis, scale=scale)
    place: Spec = {"x": across, "color": _colour(series)}
    between = {"y": _number("low", "observed click rate"), "y2": {"field": "high"}}
    points = {
        "y": _number("observed", "observed click rate", axis=axis, scale=scale),
        "tooltip": [
            _name("series"),
            _value_tip("predicted", "predicted", True),
            _value_tip("observed", "observed", True),
        ],
    }
    diagonal = {"x": least, "y": least, "x2": most, "y2": most}
    layers = [
        _reference({name: {"datum": value} for name, value in diagonal.items()}),
        _layer({"type": "rule", "opacity": 0.5}, place | between, _KNOWN),
        _layer({"type": "line", "point": {"size": 40, "filled": True}}, place | points | _dashes(series)),
    ]
    ends = [f"{end(row['predicted'] for row in rows):.4g}" for end in (min, max)] if title else []
    words = f"{title}: click rate against prediction, from {' to '.join(ends)}."
    return _finished(inside, layers, 300, words if title else "Observed against predicted click rates", title)


def bars(rows: Rows, *, value_title: str, signed: bool = False) -> Spec:
    """A bar a row, in their order. Rows: name, value. signed: two colours, for values above and below 0."""
    above = {"condition": {"test": "datum.value >= 0", "value": BETTER}, "value": WORSE}
    encoding = {
        "y": _listed(rows, "name", axis={"labelLimit": 300}),
        "x": _number("value", value_title, axis={}),
        "color": above if signed else {"value": SERIES[0]},
        "tooltip": [_name("name"), _value_tip("value", value_title, False)],
    }
    return _finished(rows, [_layer({"type": "bar"}, encoding)], {"step": BAR + 6}, f"{value_title} as bars")


def histogram(rows: Rows, *, x_title: str, y_title: str, log: bool = False) -> Spec:
    """A bar from `low` to `high` a row. Rows: low, high, value. log: of the x axis, which may hold 0."""
    # Linear up to the constant, so that 0 has a place on it.
    scale: Spec = {"type": "symlog", "constant": 0.1} if log else {}
    encoding = {
        "x": _number("low", x_title, scale=scale),
        "x2": {"field": "high"},
        "y": _number("value", y_title),
        "y2": {"datum": 0},
        "tooltip": [
            _value_tip("low", "from", False),
            _value_tip("high", "to", False),
            _value_tip("value", y_title, False),
        ],
    }
    layers = [_layer({"type": "bar", "color": SERIES[0]}, encoding)]
    return _finished(rows, layers, HEIGHT - 60, f"{y_title} by {x_title}")


def grid(rows: Rows, *, value_title: str) -> Spec:
    """A coloured cell a row: blue is better, red is worse, grey is equal; one whose value is None has its text alone.

    Rows: name (down), column (across), value, text (shown in the cell), badness: from -1, best, to 1, worst.
    """
    bare = {"domain": False, "ticks": False}
    place = {
        "y": _listed(rows, "name", axis={"labelLimit": 300, "labelPadding": 6} | bare),
        "x": _listed(rows, "column", axis={"orient": "top", "labelAngle": 0} | bare),
    }
    colours = {"domain": [-1, 0, 1], "range": ["#9ecae9", "#f2f2f2", "#f4a6a0"], "clamp": True}
    filled = {
        "color": {
            "condition": {
                "test": "isValid(datum.value)",
                "field": "badness",
                "type": "quantitative",
                "legend": None,
                "scale": colours,
            },
            "value": "transparent",
        },
        "tooltip": [
            _name("name"),
            _name("column"),
            _value_tip("value", value_title, False),
            {"field": "rows", "type": "quantitative", "title": "rows", "format": ","},
        ],
    }
    words = {"text": {"field": "text", "type": "nominal"}}
    layers = [
        _layer({"type": "rect", "stroke": MUTED, "strokeOpacity": 0.25}, place | filled),
        # A text on a colour is black; one alone has the colour of the page's texts.
        _layer(
            {"type": "text", "fontSize": 12, "color": "#111111"},
            place | words,
            [{"filter": "isValid(datum.value)"}],
        ),
        _layer({"type": "text", "fontSize": 12}, place | words, [{"filter": "!isValid(datum.value)"}]),
    ]
    return _finished(rows, layers, {"step": BAR + 8}, f"{value_title} by slice")


def for_notebook(spec: Spec, title: str) -> alt.LayerChart:
    """The chart as Altair's, with a title, ftrie's colours on white and a fixed width, as notebooks show it.

    Raises UsageError without the extra `notebook`.
    """
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise UsageError(f"plots need the extra `notebook`: {installing('notebook')}") from error

    def mimebundle(chart: alt.LayerChart, *given: Any, **named: Any) -> Any:
        """A picture, unless a renderer was chosen: Altair's default fetches its scripts from a network."""
        if altair.renderers.active != "default":
            return altair.LayerChart._repr_mimebundle_(chart, *given, **named)
        return {"image/png": vl_convert.vegalite_to_png(chart.to_json(), scale=2.0)}

    own = config() | {"background": LIGHT["background"]}
    whole = spec | {"width": NOTEBOOK_WIDTH, "title": _plain(title), "config": own}
    picture: Any = type("Picture", (altair.LayerChart,), {"_repr_mimebundle_": mimebundle})
    chart: alt.LayerChart = picture.from_dict(whole)
    return chart


# -- parts


def _around(value: float) -> tuple[float, float]:
    return value - max(0.05 * abs(value), 1e-3), value + max(0.05 * abs(value), 1e-3)


def _finished(rows: Rows, layers: list[Spec], height: int | Spec, description: str, title: str = "") -> Spec:
    if len(rows) > MOST_ROWS:
        raise ValueError(
            f"got {len(rows):,} rows for a chart, expected at most {MOST_ROWS:,}: aggregate them"
        )
    plain = [
        row | {name: _plain(row[name]) for name in _TEXTS if isinstance(row.get(name), str)} for row in rows
    ]
    return {
        "data": {"name": ROWS},
        "datasets": {ROWS: plain},
        "params": [{"name": PLOT_WIDTH, "expr": "width"}],
        "layer": layers,
        "width": "container",
        "height": height,
        "description": _plain(description),
    } | ({"title": title} if title else {})


def _layer(mark: Spec, encoding: Spec, transform: list[Spec] | None = None) -> Spec:
    return {"mark": mark, "encoding": encoding} | ({"transform": transform} if transform else {})


def _reference(at: Spec) -> Spec:
    """A dashed line that is drawn once."""
    return _layer({"type": "rule", "strokeDash": [4, 4], "color": MUTED}, at, _ONCE)


def _number(member: str, title: str, **more: Any) -> Spec:
    return {"field": member, "type": "quantitative", "title": title} | more


def _text(member: str, **more: Any) -> Spec:
    return {"field": member, "type": "nominal"} | more


def _listed(rows: Rows, member: str, **more: Any) -> Spec:
    """An axis of names in the order of the rows; named, so that it holds when a page is given other rows."""
    names = list(dict.fromkeys(_plain(row[member]) for row in rows))
    # Long names of a kind often differ at their ends only.
    short = {"labelExpr": f"length(datum.label) > {_LABEL} ? {_SHORTENED} : datum.label"}
    return _text(member, title=None, sort=names, **more | {"axis": short | more.get("axis", {})})


def _plain(text: str) -> str:
    """Text on one line, without characters that SVG does not allow."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _across(x: str, title: str, axis: Axis, values: Sequence[Any]) -> Spec:
    if axis == "time":
        span = (max(values) - min(values)) / 1000.0 if values else 0.0
        form = next(form for most, form in _TIMES if span < most)
        return {
            "field": x,
            "type": "temporal",
            "title": None,
            # UTC, as all times that ftrie prints; a browser would show its own zone.
            "scale": {"type": "utc"},
            "axis": {"format": form, "tickCount": 6, "labelFlush": _FLUSH},
        }
    if axis == "category":
        return _text(x, title=title, sort=None)
    short = {"format": "~s"} if max(values, default=0) >= 1_000 else {}
    scale = {"type": "log", "nice": False} if axis == "log" else {"nice": False, "zero": False}
    return _number(x, title, scale=scale, axis=short | {"tickCount": 6, "labelFlush": _FLUSH})


_FLUSH = 24
"""Pixels: an axis label so near to the end of the axis does not extend beyond it, where a narrow picture ends."""
_TIMES = (
    (600.0, "%H:%M:%S"),
    (86_400.0, "%H:%M"),
    (4 * 86_400.0, "%b %d %H:%M"),
    (float("inf"), "%b %d"),
)
"""How moments are written, by the seconds that a chart spans, each form below its limit."""


def _numbers(percent: bool) -> Spec:
    return {"format": "~p"} if percent else {}


def _numbered(series: Names) -> dict[str, int]:
    """Names as they are drawn, with the numbers of their colours."""
    numbers = series if isinstance(series, Mapping) else {name: at for at, name in enumerate(series)}
    return {_plain(name): number for name, number in numbers.items()}


def _colour(series: Names) -> Spec:
    numbers = _numbered(series)
    colours = [SERIES[number % len(SERIES)] for number in numbers.values()]
    wide = _SYMBOL + _LETTER * max(map(len, numbers), default=0)
    legend = {
        "columns": {"expr": f"max(1, floor({PLOT_WIDTH} / {wide}))"},
        "symbolLimit": len(numbers),
        "labelLimit": {"expr": f"max({PLOT_WIDTH} - {_SYMBOL}, {_SYMBOL})"},
    }
    return _text(
        "series",
        title=None,
        scale={"domain": list(numbers), "range": colours},
        legend=legend if len(series) > 1 or isinstance(series, Mapping) else None,
    )


def _dashes(series: Names) -> Spec:
    """Dashes for series whose colour another has."""
    numbers = _numbered(series)
    if max(numbers.values(), default=0) < len(SERIES):
        return {}
    dashes = [_DASHES[number // len(SERIES) % len(_DASHES)] for number in numbers.values()]
    return {"strokeDash": _text("series", title=None, scale={"domain": list(numbers), "range": dashes})}


def _name(member: str) -> Spec:
    """A name in a tooltip."""
    return _text(member, title=member)


def _tip(x: str, title: str, axis: Axis) -> Spec:
    if axis == "time":
        return {
            "field": x,
            "type": "temporal",
            "title": "time",
            "format": "%Y-%m-%d %H:%M:%S",
            "formatType": "time",
        }
    if axis == "category":
        return _text(x, title=title, format="")
    return _number(x, title, format="," if axis == "number" else "")


def _value_tip(member: str, title: str, percent: bool) -> Spec:
    return _number(member, title, format=".3~p" if percent else ".5~g")
