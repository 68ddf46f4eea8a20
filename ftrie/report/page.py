"""The report page: runs, their totals, learning curves and slices as one HTML or SVG document.

The page needs no network and no scripts: it can be opened from a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element

from ftrie.charts.kinds import Spec
from ftrie.charts.static import document, element, figure, stacked_svg, table
from ftrie.report import series
from ftrie.report.drawing import curve_chart, dot_chart, reliability_chart
from ftrie.report.series import ENOUGH_CLICKS, MOST_POINTS, Figure, RunMetrics
from model_store.errors import counted, shown
from trainer.learn.metrics.records import RegretPoint, VariantMetrics

DRAWN_VALUES = 20
OTHER = "(all others)"
NOTHING = "(none)"


def html_page(runs: Sequence[RunMetrics]) -> str:
    """The whole report as one HTML document."""
    title = f"How {_models(runs)} learned"
    return document(title, *_runs(runs), *_sections(runs))


def svg_page(runs: Sequence[RunMetrics]) -> str:
    """The charts alone, one below the other."""
    pictures = [picture for _, picture, _ in _pictures(runs)]
    for name in series.slice_names(runs):
        pictures += [picture for picture, _ in _slice_pictures(runs, name)]
    return stacked_svg(pictures)


def _windows(run: RunMetrics) -> str:
    count = counted(len(run.windows), "window")
    return f"{count} of {shown(run.header.window)}" if run.header.window else count


def _models(runs: Sequence[RunMetrics]) -> str:
    return " and ".join(dict.fromkeys(run.header.model for run in runs))


def _runs(runs: Sequence[RunMetrics]) -> list[Element]:
    """Each run's size and notes, and the totals of all runs."""
    made = []
    for run in runs:
        total = run.windows[-1].total if run.windows else None
        said = f"{run.name}: {shown(run.rows)} rows in {_windows(run)}"
        if total is not None:
            said += f"; clicks {shown(total.clicks)} of a weight of {shown(total.weight)}, "
            said += f"a click rate of {shown(total.click_rate)}"
        made.append(element("p", said + ".", class_="quiet"))
        if run.collisions is not None:
            made.append(
                element("p", f"{counted(run.collisions.keys, 'key')}: {run.collisions}.", class_="quiet")
            )
        made += [element("p", f"Note: {note}.", role="note") for note in run.notes]
    made.append(table(_HEADS, [row for run in runs for row in _total_rows(run, len(runs) > 1)], "All rows"))
    made.append(
        element(
            "p",
            "Every example was predicted before it was learned from."
            + (_DIFFERENCES if any(len(run.header.variants) > 1 for run in runs) else ""),
            class_="quiet",
        )
    )
    return made


_DIFFERENCES = (
    " Differences are to the first variant on the same rows, with 95 % intervals; AUC loss is the relative change of "
    "1 − AUC."
)
_HEADS = (
    "variant",
    "log-loss",
    "difference",
    "AUC",
    "AUC loss",
    "calibration",
    "normalized entropy",
    "mean p",
)


def _total_rows(run: RunMetrics, several: bool) -> list[list[str]]:
    if not run.windows:
        return []
    variants = run.windows[-1].total.variants
    return [
        [f"{run.name} · {name}" if several else name, *_cells(metrics)] for name, metrics in variants.items()
    ]


def _cells(metrics: VariantMetrics) -> list[str]:
    found = metrics.difference
    change = percent = ""
    if found is not None and found.logloss is not None:
        change = f"{found.logloss:+.5f}"
        if found.low is not None and found.high is not None:
            change += f" [{found.low:+.5f}, {found.high:+.5f}]"
    if found is not None and found.auc_loss_percent is not None:
        percent = f"{found.auc_loss_percent:+.2f} %"
    own = (metrics.calibration, metrics.normalized_entropy, metrics.mean_prediction)
    return [shown(metrics.logloss), change, shown(metrics.auc), percent, *map(shown, own)]


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
        made.append(
            element(
                "p", f"Windows are joined to about equal size, at most {MOST_POINTS} points.", class_="quiet"
            )
        )
    for heading, picture, caption in _pictures(runs):
        if heading:
            made.append(element("h2", heading))
        made.append(figure(picture, caption))
    for name in series.slice_names(runs):
        made += _slice(runs, name)
    return made


def _pictures(runs: Sequence[RunMetrics]) -> list[tuple[str, Spec, str]]:
    """The charts over all rows: heading ("" within a section), chart, caption."""
    kinds: tuple[tuple[str, Figure, float | None, str], ...] = (
        ("Log-loss", series.logloss, None, "Mean log-loss: thin of each window, thick the running mean."),
        (
            "Log-loss minus the first variant's",
            series.difference,
            0.0,
            "Mean over each window of the difference on the same rows; below 0 is better. Bands: 95 % intervals.",
        ),
        ("AUC", series.auc, None, "Area under the ROC curve: thin of each window, thick the running mean."),
        (
            "Calibration",
            series.calibration,
            1.0,
            "Σ p / Σ y of each window; above 1 predictions are too high.",
        ),
    )
    made = []
    for name, figure_of, reference, caption in kinds:
        if curves := series.curves(runs, figure_of):
            made.append(("", curve_chart(name, curves, reference=reference), caption))
    if points := series.reliability(runs):
        caption = (
            "Bins of equal weight by prediction, all rows so far; bars: 95 % intervals of the click rate."
        )
        made.append(("Reliability", reliability_chart("Click rate by prediction", points), caption))
    regrets: tuple[tuple[str, Callable[[RegretPoint], float], str], ...] = (
        (
            "Mean regret",
            lambda point: point.mean,
            "The regret per row; it goes to 0 where the learner converges.",
        ),
        (
            "Regret",
            lambda point: point.regret,
            "The learner's loss minus the least that fixed weights, without a penalty, have on the same rows.",
        ),
    )
    for name, of_point, caption in regrets:
        if curves := series.regret(runs, of_point):
            made.append(("", curve_chart(name, curves, reference=0.0, logarithmic=True), caption))
    return made


def _slice(runs: Sequence[RunMetrics], name: str) -> list[Element]:
    said = f"The {DRAWN_VALUES} values with the most rows, of those with {ENOUGH_CLICKS} clicks or more."
    made = [element("h2", "By ", element("code", name)), element("p", said, class_="quiet")]
    made += [figure(picture, caption) for picture, caption in _slice_pictures(runs, name)]
    rows = [
        [_called(each.value), run.name, shown(each.rows), shown(each.click_rate), variant, *_cells(metrics)]
        for run in runs
        if run.detail
        for each in run.detail.slices.get(name, [])
        for variant, metrics in each.variants.items()
    ]
    heads = ("value", "run", "rows", "click rate", *_HEADS)
    made.append(element("details", element("summary", "All figures"), table(heads, rows, f"By {name}")))
    return made


def _slice_pictures(runs: Sequence[RunMetrics], name: str) -> list[tuple[Spec, str]]:
    values = series.slice_values(runs, name)[:DRAWN_VALUES]
    called = [_called(value) for value in values]
    kinds: tuple[tuple[str, Figure, float | None, str], ...] = (
        ("log-loss minus the first variant's", series.difference, 0.0, "Bars: 95 % intervals."),
        ("calibration", series.calibration, 1.0, "Σ p / Σ y of the rows with each value."),
        ("AUC", series.auc, None, "Within the rows with each value."),
    )
    made = []
    for what, figure_of, reference, caption in kinds:
        if found := series.of_slice(runs, name, values, figure_of):
            made.append((dot_chart(f"{name}: {what}", called, found, reference), caption))
    return made


def _called(value: str | None) -> str:
    return OTHER if value is None else value or NOTHING
