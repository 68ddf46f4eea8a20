"""How charts look: colours, fonts and grids, on light and on dark backgrounds.

The colours of series have a contrast of at least 3 : 1 on both backgrounds, and are told apart by people with any
common colour-vision deficiency (after Okabe and Ito 2008, darkened); texts have at least 4.5 : 1.
"""

from __future__ import annotations

from typing import Any

SERIES = ("#2b7bba", "#cc5c00", "#00875f", "#a8559b", "#8a7000", "#c2403e", "#4f7f8f", "#7b68c4")
"""The colours of the first series; further ones begin again, with dashes."""
WORSE, BETTER = "#c2403e", "#2b7bba"
MUTED = "#808080"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
LIGHT = {"text": "#1f2937", "soft": "#4b5563", "grid": "#e2e5ea", "background": "#ffffff"}
DARK = {"text": "#e8eaee", "soft": "#b8bfca", "grid": "#3a4250", "background": "#15181d"}


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
