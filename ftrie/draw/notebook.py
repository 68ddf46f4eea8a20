"""What notebooks show: small pieces of HTML, and plots as Altair charts, to change further (the extra `notebook`).

Every text is escaped: values come from logs. Colours of HTML are the notebook's own, so that light and dark themes both
read well. A plot raises UsageError without the extra.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ftrie.draw.charts import (
    bars,
    for_notebook,
    intervals,
    lines,
    reliability,
    reliability_rows,
    thinned,
    value_name,
)
from model_store.errors import UsageError, listed, shown

if TYPE_CHECKING:
    import altair as alt

    from trainer.learn.metrics.records import Bin, SliceMetrics
    from trainer.learn.metrics.reliability import ReliabilityBin
    from trainer.runs.diagnostics import SliceValue

SHOWN = 10
"""Rows of a table that a notebook shows."""
_CELL = "padding:0.15em 0.8em;font-variant-numeric:tabular-nums"
_MOST_VALUES = 20


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; numbers are right-aligned and shown with a few digits, None is empty."""
    columns_right = [
        bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        for number in range(len(columns))
    ]

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = (
            f'<{tag} style="{_CELL};text-align:{"right" if right else "left"}">{escape(text)}</{tag}>'
            for text, right in zip(texts, columns_right, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", [_text(value) for value in row]) for row in rows)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def arrow_html(table: pa.Table) -> str:
    """An Arrow table."""
    return html_table(table.column_names, [list(row.values()) for row in table.to_pylist()])


def details(summary: str, *parts: str) -> str:
    """Parts of HTML that are folded until a reader opens them."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else shown(value)


def show_tables() -> None:
    """Have a notebook show Arrow tables, the type of many answers, as tables; where nothing else shows them already."""
    # Not imported: where it is not loaded yet, this is no notebook.
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        if html.for_type(pa.Table) is None:
            html.for_type(
                pa.Table,
                lambda table: arrow_html(table.slice(0, SHOWN)) + paragraph(f"{table.num_rows:,} rows"),
            )


show_tables()


# -- plots


def plot_learning(metrics: pa.Table, figure: str = "logloss") -> alt.LayerChart:
    """Each variant's `figure` by rows: the windows as thin lines, the mean of all rows so far as a thick one.

    metrics: as in `Run.metrics`. Raises UsageError for a figure that it lacks.
    """
    from trainer.learn.metrics.figures import METRICS

    known = [name.removeprefix("total_") for name in metrics.column_names if name.startswith("total_")]
    if figure not in known:
        raise UsageError(f"no figure {figure!r} in the metrics; expected one of {listed(known, figure)}")
    columns = metrics.select(["variant", "rows", figure, f"total_{figure}"])
    rows = thinned(columns.rename_columns(["series", "rows", "value", "mean"]).to_pylist())
    words = METRICS[figure].label
    variants = metrics["variant"].unique().to_pylist()
    chart = lines(rows, x="rows", x_title="rows", y_title=words, series=variants, mean="mean")
    return for_notebook(chart, f"Progressive {words}; thick: all rows so far")


def plot_calibration(figures: Mapping[str, Sequence[Bin | ReliabilityBin]]) -> alt.LayerChart:
    """Click rate by predicted rate: a point a bin, with its 95 % interval; on the diagonal both are equal."""
    rows = [row for variant, bins in figures.items() for row in reliability_rows(variant, bins)]
    return for_notebook(reliability(rows, series=list(figures)), "Calibration")


def plot_slices(name: str, values: Sequence[SliceMetrics | SliceValue]) -> alt.LayerChart:
    """Calibration of each variant by a slice's values, the 20 with the most rows; 1 is right."""
    from trainer.learn.metrics.records import SliceMetrics

    groups = [(each.value, each if isinstance(each, SliceMetrics) else each.group) for each in values]
    most = sorted(groups, key=lambda each: each[1].rows, reverse=True)[:_MOST_VALUES]
    rows = [
        {
            "name": value_name(value),
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
