"""Reads metrics files, and turns them into the series of points that charts draw.

In: files that `ftrie train --metrics` wrote; an unfinished or truncated file is read as far as it goes. Out: a
`RunMetrics` per file, and `Series` of its variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from model_store.bounded import json_value
from model_store.errors import InputError
from trainer.learn.collisions import Collisions
from trainer.learn.metrics.records import (
    FORMAT,
    FORMAT_VERSION,
    Detail,
    End,
    Header,
    Line,
    Regret,
    RegretPoint,
    SliceMetrics,
    VariantMetrics,
    Window,
)

MOST_POINTS = 300
ENOUGH_CLICKS = 20
FEWEST_SMOOTHED = 20
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


@dataclass
class RunMetrics:
    """The metrics of one run. `notes` are remarks about the file itself."""

    name: str
    header: Header
    windows: list[Window] = field(default_factory=list)
    detail: Detail | None = None
    regret: Regret | None = None
    ended: bool = False
    collisions: Collisions | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows in all windows."""
        return self.windows[-1].rows if self.windows else 0


def read_runs(paths: Sequence[Path]) -> list[RunMetrics]:
    """Read each file; a run is named by the shortest suffix of its path that is unique. Raises InputError."""
    runs = [_read(path) for path in paths]
    for run, name in zip(runs, _short_names(paths), strict=True):
        run.name = name
    return runs


def _read(path: Path) -> RunMetrics:
    """Raises InputError if this is not a metrics file, or is damaged before its last line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    run = RunMetrics(path.name, _header(path, lines[0]))
    whole, rest = lines[1:-1], lines[-1] if len(lines) > 1 else b""
    for number, line in enumerate(whole, start=2):
        _add(run, _line(path, number, line))
    if rest:
        run.notes.append(f"line {len(lines)} is not complete and was skipped")
    if not run.ended:
        run.notes.append(f"the run has not ended, or was interrupted: figures up to row {run.rows:,}")
    return run


def _header(path: Path, line: bytes) -> Header:
    try:
        found = json_value(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a metrics file: its first line does not say {FORMAT!r}; "
            "`ftrie train … --metrics FILE` writes one"
        )
    if found.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has metrics of version {found.get('version')}; this ftrie reads version {FORMAT_VERSION}"
        )
    try:
        return Header.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{path}, line 1: {_first(error)}") from None


def _line(path: Path, number: int, line: bytes) -> Line:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        raise InputError(f"{path}, line {number}: {_first(error)}; the file is damaged") from None


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    return f"{where}: {detail['msg']}" if where else str(detail["msg"])


def _add(run: RunMetrics, line: Line) -> None:
    match line:
        case Window():
            run.windows.append(line)
        case Detail():
            run.detail = line
        case Regret():
            run.regret = line
        case End():
            run.ended = True
            run.collisions = line.collisions
        case Header():
            run.notes.append("the file has a second header: two runs wrote to it")


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest unique suffixes of the paths (a/m.jsonl, b/m.jsonl); a file given twice is numbered."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, start=1)]


@dataclass(frozen=True)
class Point:
    """A point of a curve, with the ends of its confidence interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """The points of one variant of one run; `number` chooses its colour on the whole page; mean: their running mean."""

    name: str
    number: int
    points: tuple[Point, ...]
    mean: tuple[Point, ...] = ()


Figure = Callable[[VariantMetrics], tuple[float | None, float | None, float | None]]


def logloss(metrics: VariantMetrics) -> tuple[float | None, float | None, float | None]:
    """The log-loss, without an interval."""
    return metrics.logloss, None, None


def auc(metrics: VariantMetrics) -> tuple[float | None, float | None, float | None]:
    """The AUC, without an interval."""
    return metrics.auc, None, None


def calibration(metrics: VariantMetrics) -> tuple[float | None, float | None, float | None]:
    """Σp / Σy, without an interval."""
    return metrics.calibration, None, None


def difference(metrics: VariantMetrics) -> tuple[float | None, float | None, float | None]:
    """The log-loss minus the base variant's, with its interval."""
    found = metrics.difference
    return (found.logloss, found.low, found.high) if found else (None, None, None)


def curves(runs: Sequence[RunMetrics], figure: Figure) -> list[Series]:
    """A figure of every variant by windows of about equal size, at most 300, with the mean over a tenth of them.

    A last window with fewer than half the rows of the one before is left out: its figures are mostly noise.
    """
    series = _by_variant(runs, lambda run, name: _curve(_drawn(run), name, figure))
    return [replace(each, mean=_running_mean(each.points)) for each in series]


def reliability(runs: Sequence[RunMetrics]) -> list[Series]:
    """Click rate by prediction of every variant, with the 95 % interval of a rate."""
    return _by_variant(runs, _reliability)


def regret(runs: Sequence[RunMetrics], figure: Callable[[RegretPoint], float]) -> list[Series]:
    """A figure of the regret of every variant, by rows."""
    return _by_variant(
        runs,
        lambda run, name: (
            [Point(each.rows, figure(each)) for each in run.regret.variants[name]] if run.regret else []
        ),
    )


def slice_names(runs: Sequence[RunMetrics]) -> list[str]:
    """The names of all slices of all runs, without duplicates."""
    return list(dict.fromkeys(name for run in runs if run.detail for name in run.detail.slices))


def slice_values(runs: Sequence[RunMetrics], name: str) -> list[str | None]:
    """The values of a slice with 20 clicks or more, most rows first; None stands for all values counted as one.

    With fewer clicks the figures are mostly noise and would stretch the axes for all others.
    """
    rows: dict[str | None, int] = {}
    for run in runs:
        for each in _values(run, name):
            if each.clicks >= ENOUGH_CLICKS:
                rows[each.value] = rows.get(each.value, 0) + each.rows
    return sorted(rows, key=lambda value: (value is None, -rows[value]))


def of_slice(
    runs: Sequence[RunMetrics], name: str, values: Sequence[str | None], figure: Figure
) -> list[Series]:
    """A figure of every variant for each of the values, at x = the value's index."""
    index = {value: number for number, value in enumerate(values)}
    return _by_variant(
        runs,
        lambda run, variant: [
            point
            for each in _values(run, name)
            if each.value in index
            for point in _points(index[each.value], figure(each.variants[variant]))
        ],
    )


def _values(run: RunMetrics, name: str) -> Sequence[SliceMetrics]:
    return run.detail.slices.get(name, []) if run.detail else []


def _by_variant(
    runs: Sequence[RunMetrics], points: Callable[[RunMetrics, str], Sequence[Point]]
) -> list[Series]:
    """A series for each variant of each run, those without points left out."""
    named = [(run, variant) for run in runs for variant in run.header.variants]
    series = [
        Series(f"{run.name} · {variant}" if len(runs) > 1 else variant, number, tuple(points(run, variant)))
        for number, (run, variant) in enumerate(named)
    ]
    return [each for each in series if each.points]


def _drawn(run: RunMetrics) -> Sequence[Window]:
    windows = run.windows
    sparse = len(windows) > 1 and windows[-1].window.rows * 2 < windows[-2].window.rows
    return windows[:-1] if sparse else windows


def _curve(windows: Sequence[Window], variant: str, figure: Figure) -> list[Point]:
    points = []
    for some in _joined(windows):
        found = [(line.window.weight, *figure(line.window.variants[variant])) for line in some]
        points += _points(some[-1].rows, _mean(found))
    return points


def _running_mean(points: Sequence[Point]) -> tuple[Point, ...]:
    """At each point the mean of the last tenth of all points; empty where there are too few to have noise."""
    if len(points) < FEWEST_SMOOTHED:
        return ()
    span = len(points) // 10
    last = [points[max(0, end - span) : end] for end in range(1, len(points) + 1)]
    return tuple(Point(some[-1].x, sum(each.y for each in some) / len(some), None, None) for some in last)


def _joined(windows: Sequence[Window]) -> list[list[Window]]:
    """Neighbouring windows in groups of about equal rows: as many as the largest window, at least 1/300 of all."""
    joined: list[list[Window]] = []
    rows, largest = 0, max((window.window.rows for window in windows), default=0)
    for window in windows:
        if rows == 0:
            joined.append([])
        joined[-1].append(window)
        rows += window.window.rows
        if rows >= largest and rows * MOST_POINTS >= windows[-1].rows:
            rows = 0
    return joined


def _mean(
    found: Sequence[tuple[float, float | None, float | None, float | None]],
) -> tuple[float | None, float | None, float | None]:
    """The weighted mean of the windows' figures; errors are independent, so squared half-intervals add up."""
    if len(found) == 1:
        return found[0][1:]
    known = [(weight, y, low, high) for weight, y, low, high in found if y is not None and weight > 0]
    total = sum(weight for weight, *_ in known)
    if not total:
        return None, None, None
    mean = sum(weight * y for weight, y, _, _ in known) / total
    halves = [
        weight * (high - low) / 2 for weight, _, low, high in known if low is not None and high is not None
    ]
    if len(halves) < len(known):
        return mean, None, None
    half = math.hypot(*halves) / total
    return mean, mean - half, mean + half


def _points(x: float, figure: tuple[float | None, float | None, float | None]) -> list[Point]:
    y, low, high = figure
    return [Point(x, y, low, high)] if y is not None else []


def _reliability(run: RunMetrics, variant: str) -> list[Point]:
    points = []
    for each in run.detail.reliability.get(variant, []) if run.detail else []:
        rate = each.clicks / each.weight
        half = 1.96 * math.sqrt(max(rate * (1 - rate), 0.0) / each.weight)
        points.append(Point(each.predicted / each.weight, rate, max(rate - half, 0.0), rate + half))
    return points
