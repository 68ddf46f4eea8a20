"""The page of a search: the ranking with its intervals, the effect of each parameter, the pairs tried as crosses.

In: what `trainer.tune.search` found. Out: one HTML document, or its charts as SVG.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from ftrie.draw.charts import Row, Spec, dots, point
from ftrie.draw.pages import document, element, figure, note, save_page, stacked_svg, table
from model_store.errors import shown
from trainer.learn.metrics.figures import METRICS
from trainer.tune.candidates import Candidate
from trainer.tune.crosses import Trial
from trainer.tune.passes import Outcome, PairedDifference
from trainer.tune.search import Judgement, SearchResult

MOST_DRAWN = 40


def save_report(path: Path, model: str, found: SearchResult) -> None:
    """Write the search as one HTML document, or with the suffix .svg its charts alone. Raises OutputError."""
    pictures = list(_pictures(found))
    save_page(
        path,
        lambda: _html(model, found, pictures),
        lambda: stacked_svg([picture for _, picture, _ in pictures]),
    )


def _html(model: str, found: SearchResult, pictures: list[tuple[str, Spec, str]]) -> str:
    parts = [*map(note, found.warnings())]
    for judged in found.judged:
        parts += [element("h2", f"The best on rows that nothing was chosen on, {judged.how}")]
        parts += [_judged(found, judged)]
    for heading, picture, caption in pictures:
        parts += [element("h2", heading)] if heading else []
        parts.append(figure(picture, caption))
    parts += [element("h2", "All candidates"), _ranking(found)]
    if found.crosses is not None:
        parts += [element("h2", "All pairs"), _pairs(found.crosses.tried)]
    return document(f"How {model} was tuned", *parts)


def compared(found: SearchResult) -> str:
    """What differences between candidates are of: the measure of requests they were ranked by, else the log-loss."""
    return found.by if found.has_measure else "log-loss"


def difference_text(difference: PairedDifference | None) -> str:
    """+0.00123 [+0.00012, +0.00234]; empty where there is none."""
    if difference is None:
        return ""
    interval = difference.interval()
    text = f"{difference.mean:+.5f}"
    return f"{text} [{interval[0]:+.5f}, {interval[1]:+.5f}]" if interval else text


def _metrics(found: SearchResult) -> list[str]:
    """The metrics of rows that tables have; what candidates were ranked by is one."""
    return list(dict.fromkeys(["logloss", "auc", *([] if found.has_measure else [found.by])]))


def metrics_head(found: SearchResult) -> list[str]:
    """The heads of `metrics_of`: the measure of requests is one if candidates were ranked by it."""
    return [*(METRICS[name].label for name in _metrics(found)), *([found.by] if found.has_measure else [])]


def metrics_of(found: SearchResult, outcome: Outcome) -> list[Any]:
    """The metrics of an outcome, as cells of a table."""
    measure = [outcome.measure] if found.has_measure else []
    return [*(getattr(outcome.metrics, name) for name in _metrics(found)), *measure]


def ranking_table(found: SearchResult) -> tuple[list[str], list[tuple[Candidate, list[Any]]]]:
    """All candidates, best first, with the cells that follow their parameters, and the heads of these."""
    head = [*metrics_head(found), f"{compared(found)} minus the best's", "non-zeros", "rows judged"]
    return head, [
        (
            each.parameters,
            [
                *metrics_of(found, each.outcome),
                difference_text(each.difference),
                each.outcome.nonzero,
                each.judged_rows,
            ],
        )
        for each in found.tuning.ranking
    ]


def judged_table(found: SearchResult, judged: Judgement) -> tuple[list[str], list[list[Any]]]:
    """The best spec and the spec as given on the last part of the log, and the heads."""
    sides = {"best": judged.best, "as given": judged.given}
    rows = [[name, *metrics_of(found, each), each.nonzero] for name, each in sides.items()]
    return ["", *metrics_head(found), "non-zeros"], rows


def parameters_text(candidate: Candidate) -> str:
    """alpha = 0.1, l1 = 0."""
    return ", ".join(f"{name} = {value_text(value)}" for name, value in candidate.items()) or "as given"


def value_text(value: float | int | str) -> str:
    """A parameter as a user would write it: 1e-06, not 0.00000."""
    return value if isinstance(value, str) else f"{value:g}"


def _pictures(found: SearchResult) -> Iterator[tuple[str, Spec, str]]:
    """Heading ("" within a section), chart, caption."""
    ranking = [each for each in found.tuning.ranking if each.difference is not None][:MOST_DRAWN]
    if ranking:
        names = [", ".join(map(value_text, each.parameters.values())) for each in ranking]
        name = ", ".join(found.best)
        rows = [_row(name, at, each.difference) for at, each in enumerate(ranking) if each.difference]
        chart = dots(f"{compared(found)} minus the best's", names, rows, {name: 0}, 0.0)
        caption = (
            f"The best: {parameters_text(found.best)}. Bars: 95 % intervals of the paired difference on the same rows; "
            "one that reaches 0 is not distinguishable from the best."
        )
        yield "The order of the candidates", chart, caption
    heading = "The effect of each parameter"
    for name in found.best:
        best = _best_by(found, name)
        if len(best) > 1:
            rows = [point("best", at, value) for at, value in enumerate(best.values())]
            chart = dots(f"{found.by} by {name}", list(best), rows, {"best": 0}, None)
            yield (
                heading,
                chart,
                "The best candidate with each value, over all values of the other parameters.",
            )
            heading = ""
    if found.crosses is not None:
        tried = found.crosses.tried[:MOST_DRAWN]
        rows = [_row("pairs", at, each.gain) for at, each in enumerate(tried)]
        names = ["*".join(each.fields) for each in tried]
        chart = dots("Log-loss saved by one cross", names, rows, {"pairs": 0}, 0.0)
        yield (
            "Crosses",
            chart,
            "Each pair alone beside the spec, the largest gain first. Bars: 95 % intervals, not corrected for the "
            f"{len(found.crosses.tried)} tries; a pair is proposed by a stricter test.",
        )


def _best_by(found: SearchResult, name: str) -> dict[str, float]:
    """The best figure with each value of a parameter, of the candidates that learned all rows; values ascending."""
    best: dict[float | int | str, float] = {}
    for each in found.tuning.ranking:  # the first with a value is the best with it
        value, outcome = each.parameters.get(name), each.outcome
        figure = outcome.measure if found.has_measure else getattr(outcome.metrics, found.by)
        if value is not None and figure is not None and each.rows == found.tuning.ranking[0].rows:
            best.setdefault(value, figure)
    # Texts after numbers, with which Python does not compare them.
    ordered = sorted(best, key=lambda value: (isinstance(value, str), value))
    return {f"{name} = {value_text(value)}": best[value] for value in ordered}


def _row(series: str, at: int, difference: PairedDifference) -> Row:
    return point(series, at, difference.mean, *(difference.interval() or ()))


def _judged(found: SearchResult, judged: Judgement) -> Element:
    head, rows = judged_table(found, judged)
    change = difference_text(judged.difference)
    caption = (
        f"The last {judged.rows:,} rows, {judged.how}; {compared(found)} of the best minus the spec's as given: "
        f"{change}"
    )
    return table(head, [[*map(shown, row)] for row in rows], caption)


def _ranking(found: SearchResult) -> Element:
    head, ranking = ranking_table(found)
    rows = [[parameters_text(candidate), *map(shown, cells)] for candidate, cells in ranking]
    return table(("candidate", *head), rows, "Progressive metrics of every candidate, best first")


def _pairs(tried: tuple[Trial, ...]) -> Element:
    rows = [
        [
            "*".join(each.fields),
            difference_text(each.gain),
            shown(each.keys),
            "yes" if each.passes_test else "",
        ]
        for each in tried
    ]
    return table(("pair", "gain", "keys", "passes the test"), rows, "Each pair alone beside the spec")
