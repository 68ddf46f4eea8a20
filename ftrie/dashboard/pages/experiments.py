"""The page of experiments: click rates by variant, how sure one may be of a difference, and shares of the traffic."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from ftrie.dashboard.pages.changes import Changes, asking_button, changes_table
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    duration,
    percent,
    said,
    signed,
    tiles,
    warning,
)
from ftrie.dashboard.queries.experiments import ExperimentFigures, experiment_figures
from ftrie.dashboard.shared import Exposure
from ftrie.draw.charts import intervals, over_time, reliability
from ftrie.draw.notebook import paragraph
from ftrie.outcomes import POWER, TINY
from model_store.errors import InputError
from model_store.ratios import BUCKETS, Ratio

NAMELESS = "(none)"
FEW_POINTS = 60
TRAFFIC_EVERY = 20
"""Refreshes from one look at the latest traffic to the next."""
MOST_ITEMS, MOST_NEVER = 100, 50
MOST_REMARKS = 4
VERSIONS, DIVISIONS = ("activate", "rollback"), ("start", "stop", "shares", "clear", "settings")
"""Actions of the audit that change what answers."""


def build(view: View) -> Refresh:
    """Put the page together: the verdict first."""
    summary = Text()
    with card(
        "Click rate over time", "Clicks per item shown, with 95 % intervals between groups of cookies."
    ):
        course = Picture("No request is counted in this time. A request is counted once its window is over.")
    with card("Click rate by variant").classes("half"):
        rates = Picture("no requests yet")
    with card(
        "Lift against the base",
        "These intervals stay valid however often you look: one that leaves 0 decides.",
    ).classes("half"):
        lifts = Picture("There is no other variant with enough clicks yet.")
    with card("Outcomes"):
        table, remarks = Table("Outcomes by variant"), Text("quiet")
    with card("Shares of the traffic").classes("half"):
        shares, badge = Table("Planned and observed shares of the traffic"), Text()
    with card(
        "Calibration by bucket",
        "Observed against served click rates in the latest traffic, in twenty groups.",
    ).classes("half"):
        curve = Picture("no clicks in the latest traffic")
    with card("Exposure by item", "How often items were shown in the latest traffic, and which never were."):
        exposure_text, exposure = Text("quiet"), Table("Items by impressions")
    with card("Changes"):
        if view.allow_changes:
            _controls(view)
        else:
            ui.html(
                paragraph("Read only. Started with --allow-changes, this page changes shares."),
                sanitize=False,
            )
        audit = Table("Changes by operators")

    turns = 0

    async def refresh() -> None:
        nonlocal turns
        begin, stop = view.minutes()
        found = await asyncio.to_thread(
            experiment_figures, view.state, view.feed.minutes(view.model), begin, stop, view.effect
        )
        verdict = found.outcomes.verdict
        summary.show((warning if verdict.is_problem else said)(verdict.text) + _tiles(view, found))
        names = [name or NAMELESS for name in found.outcomes.variants]
        colours = view.colours | {
            name: len(view.colours) + at for at, name in enumerate(names) if name not in view.colours
        }
        colours = {name: number for name, number in colours.items() if name in names}
        course.show(
            over_time(
                found.rows,
                "click rate",
                colours,
                percent=True,
                points=len(found.rows) <= FEW_POINTS,
                marks=_marks(view, begin, stop),
                description=f"Click rate of {', '.join(names)} over time",
            )
        )
        rates.show(intervals(_rates(found), value_title="click rate", percent=True, colours=colours))
        lifts.show(intervals(_lifts(found), value_title="lift", percent=True, reference=0.0, colours=colours))
        table.show(*_table(found))
        remarks.show(_remarks(view, found))
        shares.show(*_shares(view, found))
        badge.show(_badge(found))
        audit.show(*changes_table(view), "no changes yet")
        if turns % TRAFFIC_EVERY == 0:
            try:
                served = await asyncio.to_thread(view.recent.served)
                curve.show(reliability(served.calibration, series=colours))
                exposure_text.show(_exposed(served.exposure))
                exposure.show(*_items(served.exposure))
            except InputError as error:
                exposure_text.show(paragraph(str(error)))
        turns += 1

    return refresh


def _exposed(found: Exposure) -> str:
    never = ", ".join(found.never[:MOST_NEVER]) + ("…" if len(found.never) > MOST_NEVER else "")
    return paragraph(
        f"{found.impressions:,} items shown; the most shown tenth has {percent(found.concentration, 1)} of them. "
        f"{len(found.never):,} of {found.catalogue:,} items were never shown{f': {never}' if never else ''}."
    )


def _items(found: Exposure) -> tuple[list[str], list[list[Any]]]:
    variants = list(found.items[0].variants) if found.items else []
    columns = ["item", "shown", "clicks", "CTR", "95 %", *(name or NAMELESS for name in variants)]
    rows: list[list[Any]] = [
        [
            each.item,
            f"{each.shown:,}",
            f"{each.clicks:,}",
            percent(each.clicks / each.shown),
            f"{percent(each.low)} to {percent(each.high)}",
            *(f"{each.variants[name]:,}" for name in variants),
        ]
        for each in found.items[:MOST_ITEMS]
    ]
    return columns, rows


def _tiles(view: View, found: ExperimentFigures) -> str:
    whole, rate = found.outcomes.all.sums, found.outcomes.all.ctr
    best = max(found.chances, key=lambda name: found.chances[name], default=None)
    experiment = view.state.experiment
    kind = (
        "the spec's shares"
        if experiment is None
        else "running"
        if experiment.running
        else f"stopped: {experiment.winner}"
    )
    return tiles(
        [
            ("Requests", f"{whole.requests:,}", f"in the {duration(60.0 * view.hours * 60)} chosen"),
            ("Items shown", f"{whole.shown:,}", ""),
            ("Clicks", f"{whole.clicks:,}", f"{whole.conversions:,} conversions"),
            ("Click rate", percent(_value(rate), 3), _calibration(_value(found.outcomes.all.calibration))),
            (
                "Likely best",
                best or "—",
                f"probability {percent(found.chances[best], 1)}" if best else "too few clicks",
            ),
            ("Experiment", f"revision {experiment.revision}" if experiment else "none", kind),
        ]
    )


def _calibration(value: float | None) -> str:
    return "" if value is None else f"predicted / observed {value:.3f}"


def _value(ratio: Ratio | None) -> float | None:
    return ratio.value if ratio is not None else None


def _rates(found: ExperimentFigures) -> list[dict[str, Any]]:
    rows = []
    for name, each in found.outcomes.variants.items():
        interval = each.ctr.interval() if each.ctr is not None else None
        if each.ctr is not None and interval is not None:
            rows.append({"name": name or NAMELESS, "value": each.ctr.value, **interval._asdict()})
    return rows


def _lifts(found: ExperimentFigures) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "value": each.lift.relative,
            "low": each.lift.interval.low,
            "high": min(each.lift.interval.high, 10.0),
        }
        for name, each in found.outcomes.variants.items()
        if each.lift is not None
    ]


def _table(found: ExperimentFigures) -> tuple[list[str], list[list[Any]]]:
    columns = [
        "variant",
        "requests",
        "shown",
        "clicks",
        "CTR",
        "95 %",
        "lift",
        "always valid 95 %",
        "p",
        "P(best)",
        "calibration",
        "conversions",
        "per click",
    ]
    rows: list[list[Any]] = []
    for name, each in found.outcomes.variants.items():
        interval, lift = each.ctr.interval() if each.ctr is not None else None, each.lift
        is_base = name == found.outcomes.base
        rows.append(
            [
                f"{name or NAMELESS}{' (base)' if is_base else ''}",
                f"{each.sums.requests:,}",
                f"{each.sums.shown:,}",
                f"{each.sums.clicks:,}",
                percent(_value(each.ctr), 3),
                "—" if interval is None else f"{percent(interval.low, 3)} to {percent(interval.high, 3)}",
                signed(lift.relative) if lift else "",
                f"{signed(lift.interval.low)} to {signed(lift.interval.high)}" if lift else "",
                f"{lift.p:.4f}" if lift else "",
                percent(found.chances.get(name), 1),
                "—" if each.calibration is None else f"{each.calibration.value:.3f}",
                f"{each.sums.conversions:,}",
                percent(_value(each.conversion_rate), 2),
            ]
        )
    return columns, rows


def _remarks(view: View, found: ExperimentFigures) -> str:
    texts = []
    for name, each in found.outcomes.variants.items():
        if name == found.outcomes.base:
            continue
        if each.needed is None:
            texts.append(
                f"{name or NAMELESS}: compared once each variant has {TINY} clicks, {TINY} shows without one, and "
                f"requests of all {BUCKETS} groups of cookies; it has those of {each.buckets}."
            )
            continue
        left = found.left_minutes.get(name, 0.0)
        when = (
            "has been reached"
            if left <= 0.0
            else f"needs about {duration(60.0 * left)} more at this rate of requests"
        )
        texts.append(
            f"{name}: detecting ±{view.effect:.1%} with {POWER:.0%} power takes {each.needed:,} requests of both, "
            f"which {when}; those there are detect ±{each.detectable or 0.0:.1%}."
        )
    more = (
        f"{len(texts) - MOST_REMARKS:,} further variants are left out here."
        if len(texts) > MOST_REMARKS
        else ""
    )
    return "".join(paragraph(text) for text in [*texts[:MOST_REMARKS], *filter(None, [more])])


def _shares(view: View, found: ExperimentFigures) -> tuple[list[str], list[list[Any]]]:
    planned, total = view.state.shares, found.outcomes.all.sums.requests
    names = list(dict.fromkeys([*planned, *found.outcomes.variants]))
    rows: list[list[Any]] = []
    for name in names:
        each = found.outcomes.variants.get(name)
        requests = each.sums.requests if each else 0
        rows.append(
            [
                name or NAMELESS,
                percent(planned.get(name, 0.0), 1),
                percent(requests / total if total else None, 1),
                f"{requests:,}",
            ]
        )
    return ["variant", "planned", "observed", "requests"], rows


def _badge(found: ExperimentFigures) -> str:
    p = found.outcomes.mismatch_p
    if p is None:
        return ""
    if found.outcomes.is_mismatched:
        return warning(
            f"Sample ratio mismatch: the observed shares do not come from the planned ones (p {p:.2g})."
        )
    return paragraph(
        f"Requests since the last change of the shares fall as planned (p {p:.2f}, however often you look)."
    )


# -- changes


def _marks(view: View, begin: int, stop: int) -> list[tuple[float, str]]:
    """Changes of who answers, within the chosen time: milliseconds since 1970, and what changed."""
    found = [
        (each.at.timestamp(), f"version {each.after}" if each.action in VERSIONS else each.action)
        for each in view.state.changes
        if each.action in (*VERSIONS, *DIVISIONS)
    ]
    guard = view.state.guard
    if guard.when_us:
        found.append((guard.when_us / 1e6, f"guard: version {guard.target}"))
    return [(1000.0 * at, text) for at, text in sorted(found) if begin <= at // 60 < stop]


def _controls(view: View) -> None:
    """Fields for shares, a pin, and an end of the experiment; each change is asked for once."""
    changes = Changes(view.feed, view.model)
    fields: dict[str, ui.number] = {}
    with ui.element("div").classes("row-of-fields"):
        for name, share in view.state.shares.items():
            fields[name] = ui.number(
                f"{name}, %", value=round(100.0 * share, 3), step=1, validation={"0 to 100": _is_percentage}
            ).props("dense outlined")
        asking_button(
            "Change shares",
            "Change the shares of the traffic?",
            lambda: ", ".join(f"{name} {field.value or 0:g} %" for name, field in fields.items()),
            lambda: changes.set_shares(
                view.viewer, {name: (field.value or 0.0) / 100.0 for name, field in fields.items()}
            ),
        )
    with ui.element("div").classes("row-of-fields"):
        cookie = ui.input("Cookie").props("dense outlined")
        variant = (
            ui.select(list(view.state.variants), value=view.state.base, label="Variant")
            .props("dense outlined")
            .classes("choice")
        )
        asking_button(
            "Pin",
            "Pin this cookie?",
            lambda: f"{cookie.value} gets {variant.value}, whatever the shares say.",
            lambda: changes.pin(view.viewer, cookie.value or "", variant.value),
        )
        asking_button(
            "Promote",
            "End the experiment?",
            lambda: f"{variant.value} answers every request from now on.",
            lambda: changes.promote(view.viewer, variant.value),
        )


def _is_percentage(value: float | None) -> bool:
    return value is not None and 0.0 <= value <= 100.0


PAGE = Page("/", "Experiments", build)
