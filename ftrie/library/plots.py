"""Plots for notebooks, by matplotlib, the extra `notebook`. Each function returns the Axes, to be changed further.

Names and values come from logs: they are drawn as they are, never read as formulas, and cut if they are long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import UsageError, harmless
from trainer.learn.metrics.records import Bin, SliceMetrics
from trainer.learn.metrics.reliability import ReliabilityBin, wilson
from trainer.runs.diagnostics import SliceValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 7.0, 4.0
_MOST_VALUES = 20
_LONGEST = 60
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
            _floats(rows["rows"]),
            _floats(rows[f"total_{figure}"]),
            color=color,
            linewidth=2,
            label=_plain(variant),
        )
    axes.set(xlabel="rows", ylabel=figure.replace("_", " "), title=f"Progressive {figure.replace('_', ' ')}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(title="thick: all rows so far")
    return axes


def plot_calibration(reliability: Mapping[str, Sequence[Bin | ReliabilityBin]]) -> Axes:
    """Click rate by predicted rate: a point a bin, with its 95 % interval; on the diagonal both are equal."""
    axes = new_axes()
    largest = 0.0
    for variant, bins in reliability.items():
        points = [_point(each) for each in bins if each.weight > 0.0]
        predicted, clicked, low, high = zip(*points, strict=True) if points else ((), (), (), ())
        errors = [
            [rate - bound for rate, bound in zip(clicked, low, strict=True)],
            [bound - rate for rate, bound in zip(clicked, high, strict=True)],
        ]
        axes.errorbar(
            predicted, clicked, yerr=errors, fmt="o-", markersize=4, linewidth=1, label=_plain(variant)
        )
        largest = max([largest, *predicted, *clicked])
    axes.plot([0, largest], [0, largest], color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="predicted click rate", ylabel="click rate", title="Calibration")
    if reliability:
        axes.legend()
    return axes


def plot_slices(name: str, values: Sequence[SliceMetrics | SliceValue]) -> Axes:
    """Calibration of each variant by a slice's values, the 20 with the most rows; 1 is right."""
    groups = [(each.value, each.group if isinstance(each, SliceValue) else each) for each in values]
    most = sorted(groups, key=lambda each: each[1].rows, reverse=True)[:_MOST_VALUES]
    axes = new_axes(height=max(_HEIGHT, 0.3 * len(most)))
    for variant in most[0][1].variants if most else ():
        figures = [group.variants[variant].calibration for _, group in most]
        heights = list(range(len(most)))
        axes.plot([math.nan if x is None else x for x in figures], heights, "o", label=_plain(variant))
    _name_lines(axes, [_REMAINING if value is None else value or _NONE for value, _ in most])
    axes.axvline(1.0, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="calibration: predicted clicks / clicks", title=f"By {_plain(name)}")
    if most:
        axes.legend()
    return axes


def plot_weights(keys: Sequence[str], weights: Sequence[float], title: str) -> Axes:
    """A bar a key: its weight."""
    axes = new_axes(height=max(_HEIGHT, 0.28 * len(keys)))
    colors = ["C0" if weight >= 0 else "C3" for weight in weights]
    axes.barh(list(range(len(keys))), list(weights), color=colors)
    _name_lines(axes, keys)
    axes.axvline(0.0, color="grey", linewidth=1)
    axes.set(xlabel="weight", title=_plain(title))
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


def _point(each: Bin | ReliabilityBin) -> tuple[float, float, float, float]:
    """The mean prediction, the click rate, and the ends of its interval."""
    if isinstance(each, ReliabilityBin):
        return each.predicted, each.click_rate, each.low, each.high
    rate = min(each.clicks / each.weight, 1.0)
    return each.predicted / each.weight, rate, *wilson(rate, each.weight)


def _name_lines(axes: Axes, names: Iterable[str]) -> None:
    """Name the lines 0, 1, … from top to bottom."""
    labels = [_plain(name) for name in names]
    axes.set_yticks(list(range(len(labels))), labels=labels)
    axes.invert_yaxis()


def _plain(text: str) -> str:
    """Text that matplotlib draws as it is, on one line."""
    shown = harmless(text).replace("\n", "\\n").replace("\t", "\\t")
    shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
    return shown.replace("$", r"\$")
