"""The page of `ftrie evaluate --report`: where a model is wrong, on what it relies, and what has drifted.

In: a `ModelReport`. Out: one HTML or SVG document that needs neither a network nor scripts.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

from ftrie.draw.charts import (
    Row,
    Spec,
    curve,
    dots,
    drawn,
    point,
    reliability,
    reliability_rows,
    value_name,
)
from ftrie.draw.pages import document, element, figure, folded, quiet, save_page, stacked_svg, table
from model_store.errors import counted, shown
from trainer.learn.metrics.figures import DRAWN, METRICS
from trainer.learn.metrics.reliability import ENOUGH, GroupReliability, Reliability
from trainer.runs.diagnostics import Drift, ModelReport, SliceReport, WrongRow
from trainer.runs.importance import Importance

DRAWN_VALUES = 20
DRAWN_OWNERS = 30
DRAWN_FIELDS, DRAWN_DIAGRAMS = 6, 3
"""Fields of which the page shows the drift as curves, and values of a field of which it shows the reliability."""
OPEN_SLICES = 3
KEYS_OF_ROW = 10

Picture = tuple[Spec, str]


def save_report(path: Path, name: str, report: ModelReport) -> None:
    """Write the page, or with the suffix .svg its charts alone. Raises OutputError."""
    save_page(path, lambda: html_page(name, report), lambda: svg_page(report))


def html_page(name: str, report: ModelReport) -> str:
    """The whole report as one HTML document."""
    return document(
        f"How far to trust {name}",
        *_totals(report),
        *_reliability(report),
        *_importance(report),
        *_worst(report),
        *_drift(report),
    )


def svg_page(report: ModelReport) -> str:
    """The charts alone, one below the other: of slices only those of the worst field."""
    pictures = [*_total_pictures(report), *_importance_pictures(report.importance)]
    for each in _by_excess(report)[:1]:
        pictures += _slice_pictures(report, each)
    pictures += _drift_pictures(report)
    return stacked_svg([picture for picture, _ in pictures])


# --- Where it is wrong ---


_HEADS = (*(each.short or each.label for each in METRICS.values()), "ECE", "by chance")


def _totals(report: ModelReport) -> list[Element]:
    total = report.total
    said = (
        f"{shown(total.rows)} rows; clicks {shown(total.clicks)} of a weight of {shown(total.weight)}, a click rate of "
        f"{_rate(total)}."
    )
    rows = [[name, *_cells(each)] for name, each in total.variants.items()]
    return [quiet(said), table(("variant", *_HEADS), rows, "All rows")]


def _cells(found: Reliability) -> list[str]:
    return [shown(getattr(found, name)) for name in (*METRICS, "ece", "by_chance")]


def _rate(group: GroupReliability) -> str:
    if group.low is None or group.high is None:
        return shown(group.click_rate)
    return f"{shown(group.click_rate)} [{group.low:.5f}, {group.high:.5f}]"


def _reliability(report: ModelReport) -> list[Element]:
    made = [
        element("h2", "Reliability"),
        quiet(
            "Up to 10 bins of equal weight by prediction; bars: 95 % intervals (Wilson) of the click rate. ECE, the "
            "expected calibration error, is the mean distance of a bin's prediction from its click rate; by chance: "
            "what a perfectly calibrated model would have."
        ),
        *(figure(*each) for each in _total_pictures(report)),
    ]
    for number, each in enumerate(_by_excess(report)):
        made.append(_slice(report, each, number < OPEN_SLICES))
    return made


def _by_excess(report: ModelReport) -> list[SliceReport]:
    """The sliced fields, the one with the worst calibrated value first."""
    return sorted(
        report.slices, key=lambda each: -max((value.group.worst for value in each.values), default=0.0)
    )


def _colours(report: ModelReport) -> dict[str, int]:
    """The variants as series, with the numbers of their colours."""
    return {name: number for number, name in enumerate(report.variants)}


def _total_pictures(report: ModelReport) -> list[Picture]:
    variants = report.total.variants
    rows = [row for name, each in variants.items() for row in reliability_rows(name, each.bins)]
    own = drawn(rows, {name: number for number, name in enumerate(variants)})
    return [(reliability(rows, series=own, title="Click rate by prediction"), "All rows.")] if rows else []


def _slice(report: ModelReport, found: SliceReport, is_open: bool) -> Element:
    said = f"{counted(len(found.values), 'value')} with {ENOUGH} clicked and {ENOUGH} unclicked rows or more, the "
    said += f"worst calibrated first; {found.left_out:,} with fewer are left out."
    rows = [
        [value_name(each.value), shown(each.group.rows), _rate(each.group), name, *_cells(own)]
        for each in found.values
        for name, own in each.group.variants.items()
    ]
    worst = f": {value_name(found.values[0].value)} is the worst calibrated" if found.values else ""
    summary = element("summary", "By ", element("code", found.field), worst)
    made = [quiet(said), *(figure(*each) for each in _slice_pictures(report, found))]
    if rows:
        made.append(table(("value", "rows", "click rate", "variant", *_HEADS), rows, f"By {found.field}"))
    return element("details", summary, *made, **({"open": "open"} if is_open else {}))


def _slice_pictures(report: ModelReport, found: SliceReport) -> list[Picture]:
    values = found.values[:DRAWN_VALUES]
    rows = [
        row
        for at, each in enumerate(values)
        for name in report.variants
        for row in _calibration(name, at, each.group, each.group.variants[name])
    ]
    if not rows:
        return []
    called = [value_name(each.value) for each in values]
    calibration = dots(f"{found.field}: calibration", called, rows, _colours(report), 1.0)
    first, worst = report.variants[0], values[:DRAWN_DIAGRAMS]
    rows = [
        row
        for name, each in zip(called, worst, strict=False)
        for row in reliability_rows(name, each.group.variants[first].bins)
    ]
    series = {name: number for number, name in enumerate(called[: len(worst)])}
    bins = reliability(rows, series=series, title=f"{found.field}: click rate by prediction")
    return [
        (
            calibration,
            "Mean prediction / click rate; bars: from the click rate's 95 % interval. Above 1: too high.",
        ),
        (bins, f"The {counted(len(worst), 'value')} with the worst calibration, variant {first}."),
    ]


def _calibration(name: str, at: int, group: GroupReliability, found: Reliability) -> list[Row]:
    mean, rate = found.mean_prediction, found.calibration
    if rate is None or mean is None or not group.low or not group.high:
        return []
    # The interval is that of the click rate, which is in the denominator: its upper end gives the lower one.
    return [point(name, at, rate, mean / group.high, mean / group.low)]


# --- On what it relies ---


def _importance(report: ModelReport) -> list[Element]:
    found = report.importance
    made = [element("h2", "What it relies on"), *(figure(*each) for each in _importance_pictures(found))]
    if found.fields:
        rows = [
            [each.field, each.by, name, f"{rise.logloss:+.6f}", f"{rise.low:+.6f}", f"{rise.high:+.6f}"]
            for each in found.fields
            for name, rise in each.rises.items()
            if rise.low is not None and rise.high is not None
        ]
        heads = ["field", "exchanged by", "variant", "rise of the log-loss", "from", "to"]
        made.append(folded("Permutation importance as figures", table(heads, rows, "Permutation importance")))
    for name, keys in found.keys.items():
        rows = [[each.name, f"{each.means[name]:.5f}"] for each in keys]
        shown_keys = table(("key", "mean |weight · x|"), rows, f"Keys of {name}")
        made.append(folded(f"Keys of {name} by |weight| · frequency", shown_keys))
    return made


def _importance_pictures(found: Importance) -> list[Picture]:
    made = []
    if found.fields:
        fields = found.fields[:DRAWN_OWNERS]
        rows = [
            point(name, at, rise.logloss, rise.low, rise.high)
            for at, each in enumerate(fields)
            for name, rise in each.rises.items()
        ]
        of = "" if found.requests is None else f" of {counted(found.requests, 'request')}"
        caption = (
            f"The rise of the log-loss when {shown(found.rows)} rows{of} get each other's values of a field, with its "
            f"crosses; mean of {counted(found.repeats, 'permutation')}. Bars: 95 % intervals. Fields that say the same "
            "share their importance."
        )
        series = {name: number for number, name in enumerate(fields[0].rises)}
        title = "Rise of the log-loss without a field"
        made.append((dots(title, [each.field for each in fields], rows, series, 0.0), caption))
    if found.weights:
        owners = found.weights[:DRAWN_OWNERS]
        rows = [point(name, at, mean) for at, each in enumerate(owners) for name, mean in each.means.items()]
        series = {name: number for number, name in enumerate(owners[0].means)}
        title = "Mean |weight · x| of a field or cross"
        caption = "Summed over its keys, averaged over all rows: how far it moves scores, right or wrong."
        made.append((dots(title, [each.name for each in owners], rows, series, 0.0), caption))
    return made


# --- The rows it is most wrong about ---


def _worst(report: ModelReport) -> list[Element]:
    made: list[Element] = []
    for name, rows in report.worst.items():
        if rows:
            heading = "Rows with the largest log-loss" + (f", {name}" if len(report.worst) > 1 else "")
            made += [element("h2", heading), *map(_wrong, rows)]
    return made


def _wrong(row: WrongRow) -> Element:
    audit = row.audit
    summary = (
        f"{audit.file}, line {audit.line}: {'clicked' if row.label else 'not clicked'}, predicted {audit.ctr:.5f}, "
        f"log-loss {row.logloss:.3f}"
    )
    keys = sorted(
        (key for field in audit.fields for key in field.keys), key=lambda key: -abs(key.contribution)
    )
    cells = [
        [
            key.key,
            f"{key.contribution:+.4f}",
            "—" if key.weight is None else f"{key.weight:+.4f}",
            f"{key.x:g}",
        ]
        for key in keys[:KEYS_OF_ROW]
    ]
    lacking = sum(key.weight is None for key in keys)
    values = ", ".join(
        f"{field} = {as_text(value)}" for field, value in row.values.items() if value not in (None, b"")
    )
    caption = (
        f"Its score of {audit.score:.4f} by key; {len(keys):,} keys, {lacking:,} of them not in the model"
    )
    return folded(summary, table(("key", "contribution", "weight", "x"), cells, caption), quiet(values))


def as_text(value: object) -> str:
    """A value of a log for a reader."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# --- What has drifted ---


def _drift(report: ModelReport) -> list[Element]:
    drift = report.drift
    if not drift.periods:
        return []
    said = f"{counted(len(drift.periods), 'period')} of {_length(drift)}, from {drift.periods[0].begin} on."
    if drift.by == "rows":
        said += " The spec names no input.timestamp, so periods are blocks of rows in the log's order."
    if drift.untimed:
        said += f" {counted(drift.untimed, 'row')} without a time are left out."
    made = [element("h2", "Drift"), quiet(said)]
    made += [figure(*each) for each in _drift_pictures(report)]
    rows = [
        [str(each.begin), shown(each.group.rows), _rate(each.group), shown(each.lacking), name, *_cells(own)]
        for each in drift.periods
        for name, own in each.group.variants.items()
    ]
    heads = ("begin", "rows", "click rate", "keys lacking", "variant", *_HEADS)
    made.append(folded("Periods as figures", table(heads, rows, "Periods")))
    if drift.fields:
        cells = [[each.field, f"{each.psi[-1]:.4f}", f"{each.by_chance:.4f}"] for each in drift.fields]
        moved = table(
            ("field", "PSI, last period against the first", "by chance"), cells, "Population stability index"
        )
        made.append(folded("Drift of fields as figures", moved))
    return made


def _length(drift: Drift) -> str:
    if drift.by == "rows":
        return counted(drift.length, "row")
    hours = drift.length // 3600
    return counted(hours // 24, "day") if hours % 24 == 0 else counted(hours, "hour")


def _drift_pictures(report: ModelReport) -> list[Picture]:
    drift = report.drift
    if len(drift.periods) < 2:
        return []
    across = f"periods of {_length(drift)}, the first from {drift.periods[0].begin}"
    names = _colours(report)
    series = {f"mean prediction, {name}": number for name, number in names.items()}
    rate = [
        point("click rate", at, each.group.click_rate, each.group.low, each.group.high)
        for at, each in enumerate(drift.periods, start=1)
        if each.group.click_rate is not None
    ]
    lacking = [
        point("keys", at, each.lacking)
        for at, each in enumerate(drift.periods, start=1)
        if each.lacking is not None
    ]
    moved = drift.fields[:DRAWN_FIELDS]
    stability = [point(each.field, at, psi) for each in moved for at, psi in enumerate(each.psi, start=1)]
    kinds: list[tuple[str, list[Row], dict[str, int], float | None, str]] = [
        (
            "Click rate and mean prediction",
            [*rate, *_by_period(report, "mean_prediction", "mean prediction, ")],
            {"click rate": 0} | {name: 1 + number for name, number in series.items()},
            None,
            "Band: 95 % interval of the click rate.",
        ),
        *(
            (f"{each.title} by period", _by_period(report, name), names, each.reference, each.caption)
            for name, each in DRAWN.items()
        ),
        (
            "Keys that the model lacks",
            lacking,
            {"keys": 0},
            0.0,
            "Of all keys of the rows: keys never seen, or of weight 0.",
        ),
        (
            "Population stability index",
            stability,
            {each.field: number for number, each in enumerate(moved)},
            0.0,
            "Of the fields that moved most: each period's values against the first period's. A rule of thumb: above "
            "0.25 a field has changed.",
        ),
    ]
    return [
        (curve(title, rows, series, across=across, reference=reference), caption)
        for title, rows, series, reference, caption in kinds
        if rows
    ]


def _by_period(report: ModelReport, figure: str, prefix: str = "") -> list[Row]:
    """A figure of every variant by period."""
    return [
        point(f"{prefix}{name}", at, value)
        for name in report.variants
        for at, each in enumerate(report.drift.periods, start=1)
        if (value := getattr(each.group.variants[name], figure)) is not None
    ]
