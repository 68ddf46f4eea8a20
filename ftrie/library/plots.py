"""Plots for notebooks, by ftrie.charts, the extra `notebook`. Each function returns an Altair chart, to change further.

Raises UsageError without the extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ftrie.charts.kinds import MOST_ROWS, bars, for_notebook, intervals, lines, reliability
from model_store.errors import UsageError, listed
from model_store.ratios import wilson
from trainer.learn.metrics.records import Bin, SliceMetrics
from trainer.learn.metrics.reliability import ReliabilityBin
from trainer.runs.diagnostics import SliceValue

if TYPE_CHECKING:
    import altair as alt

_MOST_VALUES = 20
_REMAINING = "(all others)"
_NONE = "(none)"


def plot_learning(metrics: pa.Table, figure: str = "logloss") -> alt.LayerChart:
    """Each variant's `figure` by rows: the windows as thin lines, the mean of all rows so far as a thick one.

    metrics: as in `Run.metrics`. Raises UsageError for a figure that it lacks.
    """
    known = [name.removeprefix("total_") for name in metrics.column_names if name.startswith("total_")]
    if figure not in known:
        raise UsageError(f"no figure {figure!r} in the metrics; expected one of {listed(known, figure)}")
    variants = metrics["variant"].unique().to_pylist()
    columns = metrics.select(["variant", "rows", figure, f"total_{figure}"])
    names = ["series", "rows", "value", "mean"]
    windows = len(metrics) // max(len(variants), 1)
    step = max(1, -(-len(metrics) // MOST_ROWS))  # every so many windows, the last among them
    kept = [
        row
        for number, row in enumerate(columns.rename_columns(names).to_pylist())
        if (windows - 1 - number // len(variants)) % step == 0
    ]
    words = figure.replace("_", " ").replace("logloss", "log-loss")
    chart = lines(kept, x="rows", y="value", x_title="rows", y_title=words, series=variants, mean="mean")
    return for_notebook(chart, f"Progressive {words}; thick: all rows so far")


def plot_calibration(figures: Mapping[str, Sequence[Bin | ReliabilityBin]]) -> alt.LayerChart:
    """Click rate by predicted rate: a point a bin, with its 95 % interval; on the diagonal both are equal."""
    rows = [
        dict(zip(("predicted", "observed", "low", "high"), _point(each), strict=True)) | {"series": variant}
        for variant, bins in figures.items()
        for each in bins
        if each.weight > 0.0
    ]
    return for_notebook(reliability(rows, series=list(figures)), "Calibration")


def plot_slices(name: str, values: Sequence[SliceMetrics | SliceValue]) -> alt.LayerChart:
    """Calibration of each variant by a slice's values, the 20 with the most rows; 1 is right."""
    groups = [(each.value, each.group if isinstance(each, SliceValue) else each) for each in values]
    most = sorted(groups, key=lambda each: each[1].rows, reverse=True)[:_MOST_VALUES]
    rows = [
        {
            "name": _REMAINING if value is None else value or _NONE,
            "series": variant,
            "value": figures.calibration,
            "low": None,
            "high": None,
        }
        for value, group in most
        for variant, figures in group.variants.items()
    ]
    title = "calibration: predicted clicks / clicks"
    variants = list(most[0][1].variants) if most else []
    return for_notebook(intervals(rows, value_title=title, series=variants, reference=1.0), f"By {name}")


def plot_weights(keys: Sequence[str], weights: Sequence[float], title: str) -> alt.LayerChart:
    """A bar a key: its weight."""
    rows = [{"name": key, "value": weight} for key, weight in zip(keys, weights, strict=True)]
    return for_notebook(bars(rows, value_title="weight", signed=True), title)


def _point(each: Bin | ReliabilityBin) -> tuple[float, float, float, float]:
    """The mean prediction, the click rate, and the ends of its interval."""
    if isinstance(each, ReliabilityBin):
        return each.predicted, each.click_rate, each.low, each.high
    rate = min(each.clicks / each.weight, 1.0)
    return each.predicted / each.weight, rate, *wilson(rate, each.weight)
