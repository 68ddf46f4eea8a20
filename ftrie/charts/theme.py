"""How charts look: colours, fonts and grids, on light and on dark backgrounds, and their static form as SVG.

The colours of series have a contrast of at least 3 : 1 on both backgrounds, and are told apart by people with any
common colour-vision deficiency (after Okabe and Ito 2008, darkened); texts have at least 4.5 : 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from model_store.errors import UsageError

if TYPE_CHECKING:
    import altair as alt

SERIES = ("#2b7bba", "#cc5c00", "#00875f", "#a8559b", "#8a7000", "#c2403e", "#4f7f8f", "#7b68c4")
"""The colours of the first variants; further ones begin again."""
WORSE, EQUAL, BETTER = "#c2403e", "#8d8d8d", "#2b7bba"
MUTED = "#808080"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
LIGHT = {"text": "#1f2937", "soft": "#4b5563", "grid": "#e2e5ea", "background": "#ffffff"}
DARK = {"text": "#e8eaee", "soft": "#b8bfca", "grid": "#3a4250", "background": "#15181d"}
WIDTH = 720


def config(dark: bool = False) -> dict[str, Any]:
    """The configuration of a Vega-Lite chart."""
    colours = DARK if dark else LIGHT
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "mark": {
            "aria": False
        },  # the chart as a whole has a description, its figures are in tables beside it
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


def svg(chart: alt.TopLevelMixin, width: int = WIDTH) -> str:
    """A chart as SVG, readable on light and on dark pages. Needs the extra `charts`."""
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError("pictures need the extra `charts`: pip install 'ftrie[charts]'") from error
    spec = chart.to_dict()
    _set_width(spec, width)
    spec["config"] = config() | {"font": "sans-serif"}
    text: str = vl_convert.vegalite_to_svg(spec)
    head, end, rest = text.partition(">")
    return f"{head}{end}<style>{_DARK_STYLE}</style>{rest}"


def _set_width(spec: dict[str, Any], width: int) -> None:
    if spec.get("width") == "container":
        spec["width"] = width
    for part in spec.get("vconcat", ()):
        _set_width(part, width)


_DARK_STYLE = (
    "@media (prefers-color-scheme: dark) {"
    + "".join(
        f'[fill="{LIGHT[name]}"] {{ fill: {DARK[name]} }} [stroke="{LIGHT[name]}"] {{ stroke: {DARK[name]} }}'
        for name in ("text", "soft", "grid")
    )
    + "}"
)
"""Static pictures follow the page: colours that depend on the background become those of the dark theme."""
