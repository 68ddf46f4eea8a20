"""The slice grid: how variants do on parts of the traffic, in the manner of GridViz (McMahan et al., 2013, §5.1).

All variants of a model score the same rows, so that the differences between them are paired. The rows are the latest
traffic of the store, or a log. A grid has a row a value of a field, or of two fields crossed, and a column a variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

from ftrie.dashboard.feed import ModelState
from ftrie.dashboard.queries.models import Models
from ftrie.dashboard.queries.recent import Recent
from model_store.errors import UsageError, listed
from model_store.spec.keys import escape
from model_store.spec.spec import ModelSpec
from trainer.examples.open_log import Log
from trainer.learn.metrics.records import Bin, SliceMetrics, VariantMetrics
from trainer.logs.rejects import RejectLog
from trainer.runs.evaluate import Evaluation, evaluate

MOST_CELLS = 600
LEAST_ROWS = 100
NONE, OTHERS = "(none)", "(all others)"

Metric = Literal["logloss", "normalized_entropy", "auc", "calibration", "click_rate"]
METRICS: dict[str, str] = {
    "logloss": "log-loss, change against the base",
    "normalized_entropy": "normalized entropy",
    "auc": "AUC",
    "calibration": "calibration: predicted / observed clicks",
    "click_rate": "click rate",
}


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
class Cell:
    """One slice and variant. value: None if masked or not defined; badness: from -1, best, to 1, worst, 0 neutral."""

    name: str
    variant: str
    rows: int
    clicks: float
    value: float | None
    badness: float
    text: str


@dataclass(frozen=True)
class Grid:
    """The cells, worst slice first. source: which rows they are of; left_out: slices that are not shown."""

    cells: tuple[Cell, ...]
    source: str
    rows: int
    left_out: int
    whole: dict[str, VariantMetrics]
    bins: dict[str, list[Bin]]


class Slices:
    """Grids of one model. Thread-safe. An evaluation may take seconds; the latest few are kept."""

    def __init__(self, models: Models, recent: Recent, logs: Sequence[str]) -> None:
        self._models, self._recent, self._logs, self._lock = models, recent, tuple(logs), Lock()
        self._kept: dict[tuple[Any, ...], Evaluation] = {}

    def grid(self, state: ModelState, query: SliceQuery, metric: str) -> Grid:
        """The grid of the active version. Raises FtrieError."""
        if metric not in METRICS:
            raise UsageError(f"got the metric {metric!r}, expected one of {listed(METRICS, metric)}")
        found, source = self._evaluated(state, query.slice)
        return grid_of(found, query, metric, source)

    def _evaluated(self, state: ModelState, name: str) -> tuple[Evaluation, str]:
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
    return [name for name, each in spec.fields.items() if not each.is_number and each.kind != "raw"]


def grid_of(found: Evaluation, query: SliceQuery, metric: str, source: str) -> Grid:
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
    return Grid(tuple(cells), source, found.rows, max(0, len(ordered) - most), found.variants, found.bins)


def _cell(each: SliceMetrics, variant: str, number: int, metric: str, query: SliceQuery) -> Cell:
    value, badness = _value(each, variant, number, metric)
    if each.rows < query.least:
        value, badness = None, 0.0
    name = OTHERS if each.value is None else each.value or NONE
    text = "too few" if each.rows < query.least else "—" if value is None else _text(value, metric, number)
    return Cell(name, variant, each.rows, each.clicks, value, badness, text)


def _worst(each: SliceMetrics, metric: str, least: int) -> float:
    if each.rows < least:
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
        return change, max(-1.0, min(1.0, change / 0.05))
    value: float | None = getattr(own, metric)
    if value is None:
        return None, 0.0
    if metric == "calibration":
        return value, min(1.0, abs(math.log(value)) / math.log(2.0)) if value > 0.0 else 1.0
    if metric == "auc":
        return value, max(-1.0, min(1.0, (0.6 - value) / 0.2))
    return value, max(-1.0, min(1.0, (value - 0.95) / 0.1))


def _text(value: float, metric: str, number: int) -> str:
    if metric == "logloss" and number:
        return f"{100.0 * value:+.2f} %"
    return f"{100.0 * value:.2f} %" if metric == "click_rate" else f"{value:.4f}"
