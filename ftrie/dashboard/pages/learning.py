"""The page of learning: the course of each variant's metrics, a grid of slices, and calibration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from ftrie.dashboard.pages.layout import (
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    paragraph,
    warning,
)
from ftrie.dashboard.queries.models import metric_rows, settled_range
from ftrie.dashboard.queries.slices import (
    LEAST_ROWS,
    METRICS,
    NONE,
    OTHERS,
    Grid,
    SliceQuery,
    Slices,
    fields_of,
)
from ftrie.draw.charts import grid, lines, reliability
from model_store.errors import FtrieError
from model_store.ratios import wilson

COURSES = {
    "logloss": "log-loss",
    "normalized_entropy": "normalized entropy",
    "auc": "AUC",
    "calibration": "calibration",
}
MOST_POINTS = 1_500
RENEWED_S = 20.0
"""How often slices are computed again while a page is open."""
ANY = ""


def build(view: View) -> Refresh:
    """Put the page together."""
    page = _Learning(view)
    with card("Active version"):
        summary = Table("Metrics of the active version by variant")
    with card(
        "Progressive metrics",
        "Each row is predicted before it is learned; by version, over all rows learned so far. The axis is that of the "
        "later versions: what the first ones had beyond it is at its edge.",
    ).classes("two-thirds"):
        with ui.element("div").classes("row-of-fields"):
            metric = (
                ui.select(COURSES, value="logloss", label="Metric").props("dense outlined").classes("choice")
            )
        course = Picture("No version has training metrics.")
    with card(
        "Calibration", "Observed against predicted click rates of the same rows, in twenty groups."
    ).classes("third"):
        page.curve = Picture("no rows yet")
    with card(
        "Slices",
        "Every variant on parts of the traffic; blue is better, red worse, the worst first. Click one to look into it.",
    ):
        page.controls()
        page.source, page.grid, page.table = (
            Text("quiet"),
            Picture("no slices yet", page.drill),
            Table("Slices"),
        )

    async def refresh() -> None:
        state = view.state
        rows = metric_rows(state, metric.value, MOST_POINTS)
        names = view.colours or sorted({row["series"] for row in rows})
        course.show(
            lines(
                rows,
                x="time",
                y="value",
                x_title="time",
                y_title=COURSES[metric.value],
                series=names,
                x_axis="time",
                points=len(rows) < 100,
                within=settled_range([row["value"] for row in rows]),
            )
        )
        manifest = state.manifests.get(state.active or 0)
        summary.show(*_metrics(view, manifest.metrics if manifest is not None else {}))
        await page.renew()

    return refresh


class _Learning:
    """What one viewer has chosen. The pieces are set by `build`."""

    source: Text
    grid: Picture
    table: Table
    curve: Picture

    def __init__(self, view: View) -> None:
        self._view = view
        self._slices = view.shared.of(Slices, view.model, lambda: Slices(view.models, view.recent, view.logs))
        self._at = 0.0
        self._busy = False

    def controls(self) -> None:
        """The fields that choose what is sliced."""
        spec = self._view.state.spec
        fields = self._fields = fields_of(spec) if spec is not None else []
        with ui.element("div").classes("row-of-fields"):
            self._field = _choice("Slice by", fields, fields[0] if fields else None, self.now)
            self._crossed = _choice("crossed with", [ANY, *fields], ANY, self.now)
            self._within = _choice("within field", [ANY, *fields], ANY, self.now)
            self._value = ui.input("value").props("dense outlined").on("change", self.now)
            self._metric = _choice("Metric", METRICS, "logloss", self.now)
            self._least = ui.number("at least rows", value=LEAST_ROWS, min=1, on_change=self.now).props(
                "dense outlined"
            )

    async def now(self) -> None:
        """Compute again at once."""
        self._at = 0.0
        await self.renew()

    async def drill(self, row: dict[str, Any]) -> None:
        """Look into the slice that was clicked: its rows by another field."""
        field, name = self._field.value, row.get("name")
        if self._crossed.value or self._within.value or name in (None, NONE, OTHERS):
            return
        others = [each for each in self._fields if each != field]
        if others:
            self._within.value, self._value.value, self._field.value = field, name, others[0]
            await self.now()

    async def renew(self) -> None:
        """Compute the slices and the calibration, if they are old."""
        if self._busy or time.monotonic() - self._at < RENEWED_S or not self._field.value:
            return
        self._busy, self._at = True, time.monotonic()
        try:
            query = self._query()
            found = await asyncio.to_thread(self._slices.grid, self._view.state, query, self._metric.value)
            self._show(found)
        except FtrieError as error:
            self.source.show(warning(str(error)))
        finally:
            self._busy = False

    def _query(self) -> SliceQuery:
        within, value = self._within.value, (self._value.value or "").strip()
        crossed = self._crossed.value
        return SliceQuery(
            field=self._field.value,
            crossed=crossed if crossed not in (self._field.value, within) else "",
            within=(within, value) if within and value and within != self._field.value else None,
            least=int(self._least.value or 1),
        )

    def _show(self, found: Grid) -> None:
        left = f"; {found.left_out:,} further slices are not shown" if found.left_out else ""
        self.source.show(paragraph(f"{found.source}, {found.rows:,} rows{left}"))
        title = METRICS[self._metric.value]
        cells = [
            {
                "name": c.name,
                "column": c.variant,
                "value": c.value,
                "badness": c.badness,
                "text": c.text,
                "rows": c.rows,
            }
            for c in found.cells[:120]
        ]
        self.grid.show(grid(cells, value_title=title))
        self.table.show(
            ["slice", "variant", "rows", "clicks", title],
            [[c.name, c.variant, f"{c.rows:,}", f"{c.clicks:,.0f}", c.text] for c in found.cells],
        )
        rows = []
        for name, bins in found.bins.items():
            for each in bins:
                interval = wilson(each.clicks / each.weight, each.weight)
                rows.append(
                    {
                        "series": name,
                        "predicted": each.predicted / each.weight,
                        "observed": each.clicks / each.weight or None,
                        "low": interval.low,
                        "high": interval.high,
                    }
                )
        self.curve.show(
            reliability(
                [row for row in rows if row["observed"]],
                series={name: self._view.colours.get(name, 0) for name in found.bins},
            )
        )


def _choice(label: str, options: Any, value: Any, on_change: Any) -> Any:
    return (
        ui.select(options, value=value, label=label, on_change=on_change)
        .props("dense outlined")
        .classes("choice")
    )


def _metrics(view: View, metrics: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[Any]]]:
    """The active version's metrics, a line a variant."""
    rows = [
        [name, *("—" if (value := metrics[name].get(each)) is None else f"{value:.5f}" for each in COURSES)]
        for name in dict.fromkeys((*view.state.variants, *metrics))
        if name in metrics
    ]
    return ["variant", *COURSES.values()], rows
