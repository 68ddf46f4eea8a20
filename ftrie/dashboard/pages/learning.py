"""The page of learning: the course of each variant's metrics, a grid of slices, and calibration.

The slice grid shows how variants do on parts of the traffic, in the manner of GridViz (McMahan et al., 2013, §5.1). All
variants of a model score the same rows, so that the differences between them are paired. The rows are the latest
traffic of the store, or a log. A grid has a row a value of a field, or of two fields crossed, and a column a variant.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from nicegui import ui

from ftrie.dashboard.feed import ModelState
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Table,
    Text,
    View,
    card,
    choose,
    fields,
    warning,
)
from ftrie.dashboard.shared import Models, Recent
from ftrie.draw.charts import (
    NONE,
    OTHERS,
    Rows,
    grid,
    over_time,
    reliability,
    reliability_rows,
    thinned,
    value_name,
)
from ftrie.draw.notebook import paragraph
from model_store.errors import FtrieError, UsageError, listed
from model_store.spec.keys import escape
from model_store.spec.kinds import KINDS
from model_store.spec.spec import ModelSpec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.figures import IN_TABLES
from trainer.learn.metrics.figures import METRICS as FIGURES
from trainer.learn.metrics.records import Bin, SliceMetrics
from trainer.runs.evaluate import Evaluation, evaluate

MOST_POINTS = 1_500
LEAST_SETTLED = 10
RENEWED_S = 20.0
"""How often slices are computed again while a page is open."""
ANY = ""
DRAWN_CELLS, MOST_CELLS = 120, 600
LEAST_ROWS = 100
METRICS = {**IN_TABLES, "logloss": "log-loss, change against the base", "click_rate": "click rate"}


class _Learning:
    """The page of one viewer, and what they have chosen."""

    def __init__(self, view: View) -> None:
        """Put the page together."""
        self._view = view
        self._slices = view.shared.of(Slices, view.model, lambda: Slices(view.models, view.recent, view.logs))
        self._at = 0.0
        self._busy = False
        with card("Active version"):
            self._summary = Table("Metrics of the active version by variant")
        with card(
            "Progressive metrics",
            "Each row is predicted before it is learned; by version, over all rows learned so far. The axis is that "
            "of the later versions: what the first ones had beyond it is at its edge.",
        ).classes("two-thirds"):
            with fields():
                self._course_of = choose("Metric", IN_TABLES, "logloss")
            self._course = Picture("No version has training metrics.")
        with card(
            "Calibration", "Observed against predicted click rates of the same rows, in twenty groups."
        ).classes("third"):
            self._curve = Picture("no rows yet")
        with card(
            "Slices",
            "Every variant on parts of the traffic; blue is better, red worse, the worst first. Click one to look "
            "into it.",
        ):
            spec = view.state.spec
            names = self._fields = fields_of(spec) if spec is not None else []
            with fields():
                self._field = choose("Slice by", names, names[0] if names else None, self.now)
                self._crossed = choose("crossed with", [ANY, *names], ANY, self.now)
                self._within = choose("within field", [ANY, *names], ANY, self.now)
                self._value = ui.input("value").props("dense outlined").on("change", self.now)
                self._metric = choose("Metric", METRICS, "logloss", self.now)
                self._least = ui.number("at least rows", value=LEAST_ROWS, min=1, on_change=self.now).props(
                    "dense outlined"
                )
            self._source = Text("quiet")
            self._grid, self._table = Picture("no slices yet", self.drill), Table("Slices")

    async def refresh(self) -> None:
        """Show the present state."""
        state, metric = self._view.state, self._course_of.value
        rows = metric_rows(state, metric, MOST_POINTS)
        self._course.show(
            over_time(
                rows,
                IN_TABLES[metric],
                self._view.colours or sorted({row["series"] for row in rows}),
                points=len(rows) < 100,
                within=settled_range([row["value"] for row in rows]),
            )
        )
        manifest = state.manifests.get(state.active or 0)
        self._summary.show(*_metrics(state, manifest.metrics if manifest is not None else {}))
        await self.renew()

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
            self._source.show(warning(str(error)))
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

    def _show(self, found: Slicing) -> None:
        left = f"; {found.left_out:,} further slices are not shown" if found.left_out else ""
        self._source.show(paragraph(f"{found.source}, {found.rows:,} rows{left}"))
        title = METRICS[self._metric.value]
        cells = [vars(cell) | {"column": cell.variant} for cell in found.cells[:DRAWN_CELLS]]
        self._grid.show(grid(cells, value_title=title))
        self._table.show(
            ["slice", "variant", "rows", "clicks", title],
            [[c.name, c.variant, f"{c.rows:,}", f"{c.clicks:,.0f}", c.text] for c in found.cells],
        )
        rows = [row for name, bins in found.bins.items() for row in reliability_rows(name, bins)]
        self._curve.show(
            reliability(
                [row for row in rows if row["observed"]],
                series={name: self._view.colours.get(name, 0) for name in found.bins},
            )
        )


def _metrics(
    state: ModelState, metrics: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], list[list[Any]]]:
    """The active version's metrics, a line a variant."""
    rows = [
        [name, *("—" if (value := metrics[name].get(each)) is None else f"{value:.5f}" for each in IN_TABLES)]
        for name in dict.fromkeys((*state.variants, *metrics))
        if name in metrics
    ]
    return ["variant", *IN_TABLES.values()], rows


# -- what it shows


def metric_rows(state: ModelState, metric: str, most: int) -> Rows:
    """A metric of every variant by the time of publication, at most `most` rows: time, series, value, version."""
    rows = [
        {"time": learned.at * 1000.0, "series": name, "value": metrics[metric], "version": learned.version}
        for learned in state.learned
        for name, metrics in learned.metrics.items()
        if math.isfinite(metrics.get(metric, math.nan))
    ]
    return thinned(rows, most)


def settled_range(values: Sequence[float]) -> tuple[float, float] | None:
    """The axis of values that begin far from where they stay: that of the later half, with room on both sides.

    None where no value is beyond it, or too few are there. Rounded, so that it seldom changes.
    """
    later = values[len(values) // 2 :]
    if len(later) < LEAST_SETTLED:
        return None
    least, most = min(later), max(later)
    # At least 1 % of the value, so that the noise of a settled metric does not fill the axis.
    room = max(most - least, 0.01 * abs(most), 1e-9)
    step = 10.0 ** math.floor(math.log10(room))
    axis = step * math.floor((least - 0.5 * room) / step), step * math.ceil((most + 0.5 * room) / step)
    return axis if min(values) < axis[0] or max(values) > axis[1] else None


@dataclass(frozen=True)
class SliceQuery:
    """What to slice by: a field, crossed with another if there is one, and within one value of a third if there is one.

    `within` is a field and a value; least: slices of fewer rows are masked.
    """

    field: str
    crossed: str = ""
    within: tuple[str, str] | None = None
    least: int = LEAST_ROWS

    @property
    def slice(self) -> str:
        """The name of the slice, as of `ftrie train --slice`."""
        fields = [
            *([self.within[0]] if self.within else []),
            self.field,
            *([self.crossed] if self.crossed else []),
        ]
        if len(fields) == 1:
            return self.field
        names = "*".join(escape(each.encode()).decode() for each in fields)
        if self.within is None:
            return f"{names}="
        return f"{names}={escape(self.within[1].encode()).decode()}*"


@dataclass(frozen=True)
class SliceCell:
    """One slice and variant. value: None if masked or not defined; badness: from -1, best, to 1, worst, 0 neutral."""

    name: str
    variant: str
    rows: int
    clicks: float
    value: float | None
    badness: float
    text: str


@dataclass(frozen=True)
class Slicing:
    """The cells, worst slice first. source: which rows they are of; left_out: slices that are not shown."""

    cells: tuple[SliceCell, ...]
    source: str
    rows: int
    left_out: int
    bins: dict[str, list[Bin]]


class Slices:
    """Grids of one model. Thread-safe. An evaluation may take seconds; the latest few are kept."""

    def __init__(self, models: Models, recent: Recent, logs: Sequence[str]) -> None:
        self._models, self._recent, self._logs, self._lock = models, recent, tuple(logs), Lock()
        self._kept: dict[tuple[Any, ...], Evaluation] = {}

    def grid(self, state: ModelState, query: SliceQuery, metric: str) -> Slicing:
        """The grid of the active version. Raises FtrieError."""
        if metric not in METRICS:
            raise UsageError(f"got the metric {metric!r}, expected one of {listed(METRICS, metric)}")
        found, source = self._evaluated(state, query.slice)
        return grid_of(found, query, metric, source)

    def _evaluated(self, state: ModelState, name: str) -> tuple[Evaluation, str]:
        # Held during the evaluation: viewers who ask for the same slices wait for one result.
        with self._lock:
            if state.active is None:
                raise UsageError(f"no version of {state.name} is active")
            if self._logs:
                files, stamp, source = self._logs, 0.0, ", ".join(self._logs)
            else:
                traffic = self._recent.traffic()  # held until its files are read
                files, stamp = traffic.files, traffic.at
                source = f"the latest {len(traffic.impressions):,} impressions"
            key = (state.active, stamp, name)
            if key not in self._kept:
                # Results of another version or of older traffic are not asked for again.
                if any(old[:2] != key[:2] for old in self._kept):
                    self._kept.clear()
                artefact = self._models.artefact(state, state.active)
                with RejectLog() as rejects:
                    self._kept[key] = evaluate(
                        artefact,
                        Log(files, format=None if self._logs else "events"),
                        rejects=rejects,
                        sliced=(name,),
                    )
            return self._kept[key], f"version {state.active} on {source}"


def fields_of(spec: ModelSpec) -> list[str]:
    """The fields by which one can slice: those whose values are keys."""
    return [
        name for name, each in spec.fields.items() if not each.is_number and not KINDS[each.kind].whole_keys
    ]


def grid_of(found: Evaluation, query: SliceQuery, metric: str, source: str) -> Slicing:
    """The grid of an evaluation with this slice."""
    slices = found.slices.get(query.slice, [])
    variants = list(found.variants)
    ordered = sorted(slices, key=lambda each: -_worst(each, metric, query.least))
    most = max(1, MOST_CELLS // max(1, len(variants)))
    cells = [
        _cell(each, variant, number, metric, query)
        for each in ordered[:most]
        for number, variant in enumerate(variants)
    ]
    return Slicing(tuple(cells), source, found.rows, max(0, len(ordered) - most), found.bins)


def _cell(each: SliceMetrics, variant: str, number: int, metric: str, query: SliceQuery) -> SliceCell:
    value, badness = _value(each, variant, number, metric)
    if each.rows < query.least:
        value, badness = None, 0.0
    text = "too few" if each.rows < query.least else "—" if value is None else _text(value, metric, number)
    return SliceCell(value_name(each.value), variant, each.rows, each.clicks, value, badness, text)


def _worst(each: SliceMetrics, metric: str, least: int) -> float:
    if each.rows < least:
        # Masked slices come last.
        return -math.inf
    return max((_value(each, name, n, metric)[1] for n, name in enumerate(each.variants)), default=0.0)


def _value(each: SliceMetrics, variant: str, number: int, metric: str) -> tuple[float | None, float]:
    """The metric of a slice, and how bad it is; of the log-loss the relative change against the base."""
    own = each.variants[variant]
    if metric == "click_rate":
        return each.click_rate, 0.0
    if metric == "logloss":
        if number == 0 or own.difference is None:
            return own.logloss, 0.0
        base = next(iter(each.variants.values())).logloss
        if own.difference.logloss is None or not base:
            return None, 0.0
        change = own.difference.logloss / base
        # Full colour at a change of 5 %.
        return change, max(-1.0, min(1.0, change / 0.05))
    value: float | None = getattr(own, metric)
    if value is None:
        return None, 0.0
    shown = FIGURES[metric]
    if shown.better == "near 1":
        # Full colour at twice or half, as of predicted clicks for each observed one.
        return value, min(1.0, abs(math.log(value)) / math.log(2.0)) if value > 0.0 else 1.0
    neutral, worst = shown.colours or (value, math.inf)
    return value, max(-1.0, min(1.0, (value - neutral) / (worst - neutral)))


def _text(value: float, metric: str, number: int) -> str:
    if metric == "logloss" and number:
        return f"{100.0 * value:+.2f} %"
    return f"{100.0 * value:.2f} %" if metric == "click_rate" else f"{value:.4f}"


PAGE = Page("/learning", "Learning", lambda view: _Learning(view).refresh)
