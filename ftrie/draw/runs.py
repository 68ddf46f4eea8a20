"""The report of training runs: reads metrics files, and draws runs, totals, learning curves and slices as one page.

In: files that `ftrie train --metrics` wrote; an unfinished or truncated file is read as far as it goes. Out: an HTML
document that needs no network and no scripts, or its charts as SVG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from pydantic import TypeAdapter, ValidationError

from ftrie.draw.charts import Row, Spec, curve, dots, drawn, point, reliability, reliability_rows, value_name
from ftrie.draw.pages import document, element, figure, note, quiet, save_page, stacked_svg, table
from model_store.bounded import json_value
from model_store.errors import InputError, counted, shown
from trainer.learn.buckets import Collisions
from trainer.learn.metrics.figures import DRAWN, METRICS
from trainer.learn.metrics.records import (
    FORMAT,
    FORMAT_VERSION,
    Detail,
    End,
    Line,
    MetricsHeader,
    MetricsWindow,
    Regret,
    SliceMetrics,
    VariantMetrics,
)

MOST_POINTS = 300
ENOUGH_CLICKS = 20
FEWEST_SMOOTHED = 20
DRAWN_VALUES = 20
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


# -- metrics files


@dataclass
class RunMetrics:
    """The metrics of one run. `notes` are remarks about the file itself."""

    name: str
    header: MetricsHeader
    windows: list[MetricsWindow] = field(default_factory=list)
    detail: Detail | None = None
    regret: Regret | None = None
    ended: bool = False
    collisions: Collisions | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows in all windows."""
        return self.windows[-1].rows if self.windows else 0

    def add(self, line: Line) -> None:
        """Add a line after the header."""
        match line:
            case MetricsWindow():
                self.windows.append(line)
            case Detail():
                self.detail = line
            case Regret():
                self.regret = line
            case End():
                self.ended, self.collisions = True, line.collisions
            case MetricsHeader():
                self.notes.append("the file has a second header: two runs wrote to it")

    def closed(self) -> RunMetrics:
        """The run after its last line, with a note if that is not its end."""
        if not self.ended:
            self.notes.append(f"the run has not ended, or was interrupted: figures up to row {self.rows:,}")
        return self


def read_runs(paths: Sequence[Path]) -> list[RunMetrics]:
    """Read each file; a run is named by the shortest suffix of its path that is unique. Raises InputError."""
    runs = [_read(path) for path in paths]
    for run, name in zip(runs, _short_names(paths), strict=True):
        run.name = name
    return runs


def run_of(lines: Sequence[Line]) -> RunMetrics:
    """The metrics of a run from the lines that it kept in memory."""
    header, *others = lines
    assert isinstance(header, MetricsHeader)
    run = RunMetrics("metrics", header)
    for line in others:
        run.add(line)
    return run.closed()


def _read(path: Path) -> RunMetrics:
    """Raises InputError if this is not a metrics file, or is damaged before its last line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    run = RunMetrics(path.name, _header(path, lines[0]))
    # A whole line ends in a line feed: what follows the last one is empty, or was being written.
    for number, text in enumerate(lines[1:-1], start=2):
        try:
            line = _LINE.validate_json(text)
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {_first(error)}; the file is damaged") from None
        run.add(line)
    if len(lines) > 1 and lines[-1]:
        run.notes.append(f"line {len(lines)} is not complete and was skipped")
    return run.closed()


def _header(path: Path, line: bytes) -> MetricsHeader:
    try:
        found = json_value(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a metrics file: its first line does not say {FORMAT!r}; "
            "`ftrie train … --metrics FILE` writes one"
        )
    # Before the members are validated: another version may have others.
    if found.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has metrics of version {found.get('version')}; this ftrie reads version {FORMAT_VERSION}"
        )
    try:
        return MetricsHeader.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{path}, line 1: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    return f"{where}: {detail['msg']}" if where else str(detail["msg"])


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest unique suffixes of the paths (a/m.jsonl, b/m.jsonl); a file given twice is numbered."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, start=1)]


# -- figures


Figure = Callable[[VariantMetrics], tuple[float | None, float | None, float | None]]
"""A figure of a variant, with the ends of its interval where it has one."""


def figure_called(name: str) -> Figure:
    """The metric of this name."""
    return lambda metrics: (getattr(metrics, name), None, None)


def difference(metrics: VariantMetrics) -> tuple[float | None, float | None, float | None]:
    """The log-loss minus the base variant's, with its interval."""
    found = metrics.difference
    return (found.logloss, found.low, found.high) if found else (None, None, None)


def colours(runs: Sequence[RunMetrics]) -> dict[str, int]:
    """The variants of all runs as series, with the numbers of their colours on the whole page."""
    return {name: number for number, (name, _, _) in enumerate(_series(runs))}


def _series(runs: Sequence[RunMetrics]) -> Iterator[tuple[str, RunMetrics, str]]:
    """Name, run and variant of every series."""
    for run in runs:
        for variant in run.header.variants:
            yield f"{run.name} · {variant}" if len(runs) > 1 else variant, run, variant


def curves(runs: Sequence[RunMetrics], figure: Figure) -> list[Row]:
    """A figure of every variant by windows of about equal size, at most 300, with the mean over a tenth of them.

    A last window with fewer than half the rows of the one before is left out: its figures are mostly noise.
    """
    rows = []
    for name, run, variant in _series(runs):
        windows = run.windows
        is_sparse = len(windows) > 1 and windows[-1].window.rows * 2 < windows[-2].window.rows
        own: list[Row] = []
        for some in _joined(windows[:-1] if is_sparse else windows):
            found = [(line.window.weight, *figure(line.window.variants[variant])) for line in some]
            own += _row(name, some[-1].rows, _mean(found))
        if len(own) >= FEWEST_SMOOTHED:
            span = len(own) // 10
            for end, row in enumerate(own, start=1):
                last = own[max(0, end - span) : end]
                row["mean"] = sum(each["value"] for each in last) / len(last)
        rows += own
    return rows


def slice_names(runs: Sequence[RunMetrics]) -> list[str]:
    """The names of all slices of all runs, without duplicates."""
    return list(dict.fromkeys(name for run in runs if run.detail for name in run.detail.slices))


def slice_values(runs: Sequence[RunMetrics], name: str) -> list[str | None]:
    """The values of a slice with 20 clicks or more, most rows first; None is all values counted as one.

    With fewer clicks the figures are mostly noise and would stretch the axes for all others.
    """
    rows: dict[str | None, int] = {}
    for run in runs:
        for each in _values(run, name):
            if each.clicks >= ENOUGH_CLICKS:
                rows[each.value] = rows.get(each.value, 0) + each.rows
    return sorted(rows, key=lambda value: (value is None, -rows[value]))


def _values(run: RunMetrics, name: str) -> Sequence[SliceMetrics]:
    return run.detail.slices.get(name, []) if run.detail else []


def _of_slice(
    runs: Sequence[RunMetrics], name: str, values: Sequence[str | None], figure: Figure
) -> list[Row]:
    """A figure of every variant for each of the values, at x = the value's index."""
    return [
        row
        for at, value in enumerate(values)
        for series, run, variant in _series(runs)
        for each in _values(run, name)
        if each.value == value
        for row in _row(series, at, figure(each.variants[variant]))
    ]


def _joined(windows: Sequence[MetricsWindow]) -> list[list[MetricsWindow]]:
    """Neighbouring windows in groups of about equal rows: as many as the largest window, at least 1/300 of all."""
    joined: list[list[MetricsWindow]] = []
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
    # An interval needs those of all windows.
    if len(halves) < len(known):
        return mean, None, None
    half = math.hypot(*halves) / total
    return mean, mean - half, mean + half


def _row(series: str, x: float, figure: tuple[float | None, float | None, float | None]) -> list[Row]:
    value, low, high = figure
    return [point(series, x, value, low, high)] if value is not None else []


def _reliability(runs: Sequence[RunMetrics]) -> list[Row]:
    """Click rate by prediction of every variant, with the 95 % interval of a rate."""
    return [
        row
        for name, run, variant in _series(runs)
        for row in reliability_rows(name, run.detail.reliability.get(variant, []) if run.detail else [])
    ]


# -- the page


def save_report(path: Path, runs: Sequence[RunMetrics]) -> None:
    """Write the page, or with the suffix .svg its charts alone. Raises OutputError."""
    save_page(path, lambda: html_page(runs), lambda: svg_page(runs))


def html_page(runs: Sequence[RunMetrics]) -> str:
    """The whole report as one HTML document."""
    models = " and ".join(dict.fromkeys(run.header.model for run in runs))
    return document(f"How {models} learned", *_runs(runs), *_sections(runs))


def svg_page(runs: Sequence[RunMetrics]) -> str:
    """The charts alone, one below the other."""
    pictures = [picture for _, picture, _ in _pictures(runs)]
    for name in slice_names(runs):
        pictures += [picture for picture, _ in _slice_pictures(runs, name)]
    return stacked_svg(pictures)


def _runs(runs: Sequence[RunMetrics]) -> list[Element]:
    """Each run's size and notes, and the totals of all runs."""
    made = []
    for run in runs:
        total = run.windows[-1].total if run.windows else None
        size = f" of {shown(run.header.window)}" if run.header.window else ""
        said = f"{run.name}: {shown(run.rows)} rows in {counted(len(run.windows), 'window')}{size}"
        if total is not None:
            said += f"; clicks {shown(total.clicks)} of a weight of {shown(total.weight)}, "
            said += f"a click rate of {shown(total.click_rate)}"
        made.append(quiet(said + "."))
        if run.collisions is not None:
            made.append(quiet(f"{counted(run.collisions.keys, 'key')}: {run.collisions}."))
        made += map(note, run.notes)
    rows = [
        [f"{run.name} · {name}" if len(runs) > 1 else name, *_cells(metrics)]
        for run in runs
        for name, metrics in (run.windows[-1].total.variants.items() if run.windows else ())
    ]
    made.append(table(_HEADS, rows, "All rows"))
    several = any(len(run.header.variants) > 1 for run in runs)
    made.append(quiet("Every example was predicted before it was learned from." + _DIFFERENCES * several))
    return made


_DIFFERENCES = (
    " Differences are to the first variant on the same rows, with 95 % intervals; AUC loss is the relative change of "
    "1 − AUC."
)
_AGAINST_BASE = {"logloss": "difference", "auc": "AUC loss"}
"""Columns that compare a variant with the first one, by the metric that they follow."""
_HEADS = (
    "variant",
    *(
        head
        for name, each in METRICS.items()
        for head in (each.short or each.label, *([_AGAINST_BASE[name]] if name in _AGAINST_BASE else []))
    ),
)


def _cells(metrics: VariantMetrics) -> list[str]:
    found = metrics.difference
    change = percent = ""
    if found is not None and found.logloss is not None:
        change = f"{found.logloss:+.5f}"
        if found.low is not None and found.high is not None:
            change += f" [{found.low:+.5f}, {found.high:+.5f}]"
    if found is not None and found.auc_loss_percent is not None:
        percent = f"{found.auc_loss_percent:+.2f} %"
    against = {"logloss": [change], "auc": [percent]}
    return [cell for name in METRICS for cell in (shown(getattr(metrics, name)), *against.get(name, []))]


def _chosen(runs: Sequence[RunMetrics]) -> list[Element]:
    """How `ftrie init` chose the specs of the runs."""
    made = list[Element]()
    for name, found in {run.header.model: run.header.chosen for run in runs}.items():
        if found is None:
            continue
        has_mrr = any(each.mrr is not None for each in found.steps)
        figures = [
            [each.logloss, each.auc, *([each.mrr] if has_mrr else []), each.weights] for each in found.steps
        ]
        rows = [[each.step, *map(shown, own)] for each, own in zip(found.steps, figures, strict=True)]
        heads = ("", "log-loss", "AUC", *(["MRR"] if has_mrr else []), "weights")
        caption = (
            f"{name}: chosen on {shown(found.rows)} rows, each step judged on the {shown(found.judged_rows)} after "
            "them, which chose nothing"
        )
        made += [element("h2", "How the spec was chosen")] if not made else []
        made.append(table(heads, rows, caption))
    return made


def _sections(runs: Sequence[RunMetrics]) -> list[Element]:
    made = [*_chosen(runs), element("h2", "Learning curves")]
    if any(run.windows and run.windows[0].window.rows * MOST_POINTS < run.rows for run in runs):
        made.append(quiet(f"Windows are joined to about equal size, at most {MOST_POINTS} points."))
    for heading, picture, caption in _pictures(runs):
        if heading:
            made.append(element("h2", heading))
        made.append(figure(picture, caption))
    for name in slice_names(runs):
        made += _slice(runs, name)
    return made


def _pictures(runs: Sequence[RunMetrics]) -> list[tuple[str, Spec, str]]:
    """The charts over all rows: heading ("" within a section), chart, caption."""
    kinds: list[tuple[str, Figure, float | None, str]] = [
        (
            each.title,
            figure_called(name),
            each.reference,
            f"{each.caption} Thin: of each window; thick: the running mean.",
        )
        for name, each in DRAWN.items()
    ]
    change = (
        "Mean over each window of the difference on the same rows; below 0 is better. Bands: 95 % intervals."
    )
    kinds.insert(1, (f"{kinds[0][0]} minus the first variant's", difference, 0.0, change))
    made, names = [], colours(runs)
    for name, of, reference, caption in kinds:
        if rows := curves(runs, of):
            made.append(("", curve(name, rows, names, reference=reference), caption))
    if rows := _reliability(runs):
        caption = (
            "Bins of equal weight by prediction, all rows so far; bars: 95 % intervals of the click rate."
        )
        chart = reliability(rows, series=drawn(rows, names), title="Click rate by prediction")
        made.append(("Reliability", chart, caption))
    for name, member, caption in (
        ("Mean regret", "mean", "The regret per row; it goes to 0 where the learner converges."),
        (
            "Regret",
            "regret",
            "The learner's loss minus the least that fixed weights, without a penalty, have on the same rows.",
        ),
    ):
        rows = [
            point(series, each.rows, getattr(each, member))
            for series, run, variant in _series(runs)
            if run.regret
            for each in run.regret.variants[variant]
        ]
        if rows:
            made.append(("", curve(name, rows, names, reference=0.0, x_axis="log"), caption))
    return made


def _slice(runs: Sequence[RunMetrics], name: str) -> list[Element]:
    said = f"The {DRAWN_VALUES} values with the most rows, of those with {ENOUGH_CLICKS} clicks or more."
    made = [element("h2", "By ", element("code", name)), quiet(said)]
    made += [figure(picture, caption) for picture, caption in _slice_pictures(runs, name)]
    rows = [
        [
            value_name(each.value),
            run.name,
            shown(each.rows),
            shown(each.click_rate),
            variant,
            *_cells(metrics),
        ]
        for run in runs
        if run.detail
        for each in run.detail.slices.get(name, [])
        for variant, metrics in each.variants.items()
    ]
    heads = ("value", "run", "rows", "click rate", *_HEADS)
    made.append(element("details", element("summary", "All figures"), table(heads, rows, f"By {name}")))
    return made


def _slice_pictures(runs: Sequence[RunMetrics], name: str) -> list[tuple[Spec, str]]:
    values, names = slice_values(runs, name)[:DRAWN_VALUES], colours(runs)
    # A loss follows the click rate of the rows with a value: its difference alone can be compared.
    kinds: list[tuple[str, Figure, float | None, str]] = [
        ("log-loss minus the first variant's", difference, 0.0, "Bars: 95 % intervals."),
        *(
            (each.label, figure_called(name), each.reference, f"{each.caption} Of the rows with each value.")
            for name, each in DRAWN.items()
            if each.better != "lower"
        ),
    ]
    made = []
    for what, of, reference, caption in kinds:
        if rows := _of_slice(runs, name, values, of):
            made.append(
                (dots(f"{name}: {what}", [*map(value_name, values)], rows, names, reference), caption)
            )
    return made
