"""Plots for notebooks, by matplotlib, the extra `notebook`. Each function returns the Axes, to be changed further."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import UsageError
from trainer.learn.metrics.records import Bin, SliceMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 7.0, 4.0
_Z95 = 1.96
_MOST_VALUES = 20
_REMAINING = "(all others)"
_NONE = "(none)"


def plot_learning(metrics: pa.Table, figure: str = "logloss") -> Axes:
    """Each variant's `figure` by rows: the windows as thin lines, the mean of all rows so far as a thick one.

    metrics: as in `Run.metrics`. Raises UsageError for a figure that it lacks.
    """
    known = [name.removeprefix("total_") for name in metrics.column_names if name.startswith("total_")]
    if figure not in known:
        raise UsageError(f"no figure {figure!r} in the metrics; expected one of {', '.join(known)}")
    axes = new_axes()
    for number, variant in enumerate(metrics["variant"].unique().to_pylist()):
        rows = metrics.filter(pc.equal(metrics["variant"], variant))
        color = f"C{number}"
        axes.plot(_floats(rows["rows"]), _floats(rows[figure]), color=color, alpha=0.3, linewidth=1)
        axes.plot(
            _floats(rows["rows"]), _floats(rows[f"total_{figure}"]), color=color, linewidth=2, label=variant
        )
    axes.set(xlabel="rows", ylabel=figure.replace("_", " "), title=f"Progressive {figure.replace('_', ' ')}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(title="thick: all rows so far")
    return axes


def plot_calibration(reliability: Mapping[str, Sequence[Bin]]) -> Axes:
    """Click rate by predicted rate: a point a bin, with its 95 % interval; on the diagonal both are equal."""
    axes = new_axes()
    largest = 0.0
    for variant, bins in reliability.items():
        used = [each for each in bins if each.weight > 0.0]
        predicted = [each.predicted / each.weight for each in used]
        clicked = [each.clicks / each.weight for each in used]
        errors = [
            _Z95 * math.sqrt(max(p * (1 - p), 0.0) / each.weight)
            for p, each in zip(clicked, used, strict=True)
        ]
        axes.errorbar(predicted, clicked, yerr=errors, fmt="o-", markersize=4, linewidth=1, label=variant)
        largest = max([largest, *predicted, *clicked])
    axes.plot([0, largest], [0, largest], color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="predicted click rate", ylabel="click rate", title="Calibration")
    if reliability:
        axes.legend()
    return axes


def plot_slices(name: str, values: Sequence[SliceMetrics]) -> Axes:
    """Calibration of each variant by a slice's values, the 20 with the most rows; 1 is right."""
    most = sorted(values, key=lambda each: each.rows, reverse=True)[:_MOST_VALUES]
    labels = [_REMAINING if each.value is None else each.value or _NONE for each in most]
    axes = new_axes(height=max(_HEIGHT, 0.3 * len(most)))
    for variant in most[0].variants if most else ():
        figures = [each.variants[variant].calibration for each in most]
        axes.plot([math.nan if x is None else x for x in figures], labels, "o", label=variant)
    axes.axvline(1.0, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="calibration: predicted clicks / clicks", title=f"By {name}")
    axes.invert_yaxis()
    if most:
        axes.legend()
    return axes


def plot_weights(keys: Sequence[str], weights: Sequence[float], title: str) -> Axes:
    """A bar a key: its weight."""
    axes = new_axes(height=max(_HEIGHT, 0.28 * len(keys)))
    colors = ["C0" if weight >= 0 else "C3" for weight in weights]
    axes.barh(list(range(len(keys))), list(weights), color=colors)
    axes.set_yticks(list(range(len(keys))), labels=[key.replace("$", r"\$") for key in keys])
    axes.invert_yaxis()
    axes.axvline(0.0, color="grey", linewidth=1)
    axes.set(xlabel="weight", title=title)
    return axes


def new_axes(height: float = _HEIGHT) -> Axes:
    """Axes of a figure of its own. Raises UsageError without matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'ftrie[notebook]'") from None
    axes: Axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")[1]
    return axes


def _floats(column: pa.ChunkedArray) -> list[float]:
    return [math.nan if value is None else float(value) for value in column.to_pylist()]
