"""The page of experiments: click rates by variant, how sure one may be of a difference, and shares of the traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nicegui import ui

from ftrie.dashboard.feed import ModelState
from ftrie.dashboard.minutes import Minutes
from ftrie.dashboard.pages.changes import change_button, changed_experiment, changes_table
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    choose,
    duration,
    fields,
    percent,
    said,
    signed,
    tiles,
    warning,
)
from ftrie.dashboard.scrape import ServerState
from ftrie.dashboard.shared import Exposure
from ftrie.draw.charts import intervals, over_time, reliability
from ftrie.draw.notebook import paragraph
from ftrie.outcomes import NAMELESS, NEEDED, POWER, Outcomes, Rate, outcomes
from model_store.errors import ExperimentError, InputError
from model_store.versions.audit import By
from model_store.versions.experiments import PROBABILISTIC, TEAM
from model_store.versions.model_versions import ModelVersions
from model_store.versions.online_metrics import AGREED, CALLER, OWN, OnlineSums

MOST_POINTS = 1_800
MOST_GROUPS = 180
GROUPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1_440)
"""Minutes that are added up to one point of the chart."""
MILLISECONDS = 60_000
FEW_POINTS = 60
TRAFFIC_EVERY = 20
"""Refreshes from one look at the latest traffic to the next."""
MOST_ITEMS, MOST_NEVER = 100, 50
MOST_REMARKS = 4
COLUMNS = [
    "variant", "requests", "shown", "clicks", "CTR", "95 %", "lift", "always valid 95 %", "p", "P(best)",
    "calibration", "conversions", "per click",
]  # fmt: skip
EXPLORED, EXPECTED = "ftrie_explored_total", "ftrie_exploration_clicks_total"
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
        preferred = Table("Credit of interleaved variants")
    with card("Shares of the traffic").classes("half"):
        shares, badge = Table("Planned and observed shares of the traffic"), Text()
    with card(
        "Calibration by bucket",
        "Observed against served click rates in the latest traffic, in twenty groups.",
    ).classes("half"):
        curve = Picture("no clicks in the latest traffic")
    with card(
        "Exploration and apprentice mode",
        "What exploration costs; how often the model agrees with the caller's order, and what its own would earn.",
    ):
        readiness, apprentice = Text(), Table("The model beside the caller's order")
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
        # Variants of older minutes that the active version lacks get further colours; the others keep theirs.
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
        preferred.show(*_preferred(found), "no interleaved answers in this time")
        remarks.show(_remarks(view, found))
        shares.show(*_shares(view, found))
        badge.show(_badge(found))
        readiness.show(_readiness(view, found))
        apprentice.show(*_apprentices(found), "no answers in apprentice mode in this time")
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
    calibrated = found.outcomes.all.calibration.value
    calibration = "" if calibrated is None else f"predicted / observed {calibrated:.3f}"
    chances = found.outcomes.chances
    best = max(chances, key=lambda name: chances[name], default=None)
    experiment = view.state.experiment
    kind = (
        "the spec's shares"
        if experiment is None
        else "interleaved"
        if experiment.interleave
        else "running"
        if experiment.running
        else f"stopped: {experiment.winner}"
    )
    return tiles(
        [
            ("Requests", f"{whole.requests:,}", f"in the {duration(60.0 * view.hours * 60)} chosen"),
            ("Items shown", f"{whole.shown:,}", _seen(whole)),
            ("Clicks", f"{whole.clicks:,}", f"{whole.conversions:,} conversions"),
            ("Click rate", percent(rate.value, 3), calibration),
            (
                "Likely best",
                best or "—",
                f"probability {percent(chances[best], 1)}" if best else "too few clicks",
            ),
            ("Experiment", f"revision {experiment.revision}" if experiment else "none", kind),
        ]
    )


def _seen(sums: OnlineSums) -> str:
    return "" if sums.seen_share is None else f"{percent(sums.seen_share, 1)} seen of those in lists"


def _rates(found: ExperimentFigures) -> list[dict[str, Any]]:
    rates = [(name, each.ctr.value, each.ctr.interval) for name, each in found.outcomes.variants.items()]
    return [
        {"name": name or NAMELESS, "value": value, **interval._asdict()}
        for name, value, interval in rates
        if interval is not None
    ]


def _lifts(found: ExperimentFigures) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "value": each.lift.relative,
            "low": each.lift.interval.low,
            # The end may be infinite, which JSON and an axis do not have.
            "high": min(each.lift.interval.high, 10.0),
        }
        for name, each in found.outcomes.variants.items()
        if each.lift is not None
    ]


def _table(found: ExperimentFigures) -> tuple[list[str], list[list[Any]]]:
    rows: list[list[Any]] = []
    chances = found.outcomes.chances
    for name, each in found.outcomes.variants.items():
        lift = each.lift
        rows.append(
            [
                f"{name or NAMELESS}{' (base)' if name == found.outcomes.base else ''}",
                f"{each.sums.requests:,}",
                f"{each.sums.shown:,}",
                f"{each.sums.clicks:,}",
                *each.ctr.words(partial(percent, digits=3)),
                signed(lift.relative) if lift else "",
                f"{signed(lift.interval.low)} to {signed(lift.interval.high)}" if lift else "",
                f"{lift.p:.4f}" if lift else "",
                percent(chances.get(name), 1),
                each.calibration.words("{:.3f}".format)[0],
                f"{each.sums.conversions:,}",
                percent(each.conversion_rate.value),
            ]
        )
    return COLUMNS, rows


def _preferred(found: ExperimentFigures) -> tuple[list[str], list[list[Any]]]:
    """Each interleaved variant against the base, in one list's clicks."""
    rows: list[list[Any]] = []
    for each in found.outcomes.preferences:
        ends = each.interval
        rows.append(
            [
                each.variant,
                each.base,
                f"{each.requests:,}",
                percent(each.share, 1),
                f"{percent(ends.low, 1)} to {percent(ends.high, 1)}" if ends else "",
                f"{each.p:.4f}" if each.p is not None else "",
                f"{each.needed:,}" if each.needed is not None else "",
            ]
        )
    columns = ["variant", "against", "requests", "share of the credit", "always valid 95 %", "p", "needed"]
    return columns, rows


def _remarks(view: View, found: ExperimentFigures) -> str:
    texts = []
    for name, each in found.outcomes.variants.items():
        if name == found.outcomes.base:
            continue
        if each.needed is None:
            texts.append(
                f"{name or NAMELESS}: compared once each variant has {NEEDED}; it has those of {each.buckets}."
            )
            continue
        left = found.left_minutes.get(name, 0.0)
        more = f"needs about {duration(60.0 * left)} more at this rate of requests"
        when = "has been reached" if left <= 0.0 else more
        texts.append(
            f"{name}: detecting ±{view.effect:.1%} with {POWER:.0%} power takes {each.needed:,} requests of both, "
            f"which {when}; those there are detect ±{each.detectable or 0.0:.1%}."
        )
    if len(texts) > MOST_REMARKS:
        texts[MOST_REMARKS:] = [f"{len(texts) - MOST_REMARKS:,} further variants are left out here."]
    return "".join(map(paragraph, texts))


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


def _readiness(view: View, found: ExperimentFigures) -> str:
    """Who decides about the order, how ready the model is, and what exploration costs."""
    record = view.state.experiment
    mode = "The caller's order is served." if record and record.apprentice else "The model decides."
    each = found.outcomes.apprentices
    texts = [mode, *(f"{name or NAMELESS}: {of.text}." for name, of in each.items())]
    if record and record.explore:
        texts.append(f"Requests explore: {record.explore}. {exploring(view.feed.servers, view.model)}")
    return paragraph(" ".join(texts))


def exploring(servers: Sequence[ServerState], model: str) -> str:
    """What servers did of an experiment's exploration in the last seconds."""

    def rate(name: str, **labels: str) -> float:
        return sum(server.rate(name, model=model, **labels) for server in servers)

    answers, greedy = rate(EXPLORED), rate(EXPECTED, order="greedy")
    if not answers or not greedy:
        return "No answer has followed that in the last seconds."
    share, cost = rate(EXPLORED, explored="yes") / answers, 1.0 - rate(EXPECTED, order="served") / greedy
    return (
        f"In the last seconds {share:.1%} of the answers did, which cost {cost:.2%} of the expected clicks."
    )


def _apprentices(found: ExperimentFigures) -> tuple[list[str], list[list[Any]]]:
    rows = [[name or NAMELESS, *row] for name, of in found.outcomes.apprentices.items() for row in of.rows]
    return ["variant", "figure", "value", "95 %"], rows


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
    """Fields for shares, interleaving, a pin, and an end of the experiment; each change is asked for once."""

    def divide(versions: ModelVersions, by: By) -> str:
        given = {name: (field.value or 0.0) / 100.0 for name, field in shares.items()}
        return changed_experiment(versions, by, lambda before: before.divided(given), "Shares changed")

    def interleave(versions: ModelVersions, by: By) -> str:
        names = [name.strip() for name in together.value.split(",") if name.strip()]
        done = f"{' and '.join(names)} answer together" if names else "The shares divide"
        return changed_experiment(versions, by, lambda e: e.interleaved(names, draft.value), done)

    def pin(versions: ModelVersions, by: By) -> str:
        if not cookie.value:
            raise ExperimentError("pin: the cookie is empty; give a user's cookie")
        pinned = {cookie.value: variant.value}
        done = f"{cookie.value} pinned to {variant.value}"
        return changed_experiment(versions, by, lambda before: before.pinned(pinned), done)

    def promote(versions: ModelVersions, by: By) -> str:
        done = f"{variant.value} answers every request"
        return changed_experiment(versions, by, lambda before: before.stopped(variant.value), done)

    def decide(versions: ModelVersions, by: By) -> str:
        before = versions.experiment()
        after = not (before and before.apprentice)
        done = "The caller's order is served" if after else "The model decides"
        return changed_experiment(versions, by, lambda e: replace(e, apprentice=after), done)

    with fields():
        change_button(
            view,
            "Apprentice mode on or off",
            "Change who decides?",
            lambda: (
                "The model decides from now on."
                if view.state.experiment and view.state.experiment.apprentice
                else "Requests are answered in the caller's order from now on, and the model's is only logged."
            ),
            decide,
        )
    shares: dict[str, ui.number] = {}
    with fields():
        for name, share in view.state.shares.items():
            shares[name] = ui.number(
                f"{name}, %", value=round(100.0 * share, 3), step=1, validation={"0 to 100": _is_percentage}
            ).props("dense outlined")
        change_button(
            view,
            "Change shares",
            "Change the shares of the traffic?",
            lambda: ", ".join(f"{name} {field.value or 0:g} %" for name, field in shares.items()),
            divide,
        )
    with fields():
        record = view.state.experiment
        together = ui.input("Interleaved variants", value=",".join(record.interleave if record else ()))
        together.props("dense outlined")
        draft = choose("Draft", [TEAM, PROBABILISTIC], record.draft if record else TEAM)
        change_button(
            view,
            "Interleave",
            "Change who answers?",
            lambda: (
                f"{together.value} answer each request together, in one list."
                if together.value
                else "One variant answers each request, by the shares."
            ),
            interleave,
        )
    with fields():
        cookie = ui.input("Cookie").props("dense outlined")
        variant = choose("Variant", list(view.state.variants), view.state.base)
        change_button(
            view,
            "Pin",
            "Pin this cookie?",
            lambda: f"{cookie.value} gets {variant.value}, whatever the shares say.",
            pin,
        )
        change_button(
            view,
            "Promote",
            "End the experiment?",
            lambda: f"{variant.value} answers every request from now on.",
            promote,
        )


def _is_percentage(value: float | None) -> bool:
    return value is not None and 0.0 <= value <= 100.0


# -- the figures


@dataclass(frozen=True)
class ExperimentFigures:
    """The outcomes of a time.

    left_minutes: how long until a difference of the effect is detected at the present rate of requests, by variant;
    0 if it is already, absent if unknown. rows: a point a group of minutes and variant, with members time
    (milliseconds since 1970), series, value, low and high.
    """

    outcomes: Outcomes
    left_minutes: dict[str, float]
    rows: list[dict[str, Any]]
    group_minutes: int


def experiment_figures(
    state: ModelState, minutes: Minutes, begin: int, stop: int, effect: float
) -> ExperimentFigures:
    """The figures of the minutes from `begin` to before `stop`. effect: the relative change to detect."""
    cells = minutes.cells(begin, stop)
    together = state.experiment.together if state.experiment is not None else ""
    found = outcomes(cells, state.shares, state.base, effect, state.divided_since, state.guard, together)
    span = max(1, stop - (cells[0][0].minute if cells else begin))
    group = group_of(span, max(1, len(found.variants)))
    return ExperimentFigures(
        outcomes=found,
        left_minutes=_left(found, span),
        # Groups are counted back from the end: the latest point has as many minutes as the others.
        rows=_course(minutes, stop - -(-span // group) * group, stop, group),
        group_minutes=group,
    )


def group_of(minutes: int, series: int) -> int:
    """How many minutes are one point, so that a chart has at most MOST_POINTS of all series."""
    most = min(MOST_GROUPS, MOST_POINTS // series)
    return next((group for group in GROUPS if minutes <= group * most), -(-minutes // most))


def _left(found: Outcomes, span: int) -> dict[str, float]:
    base = found.variants.get(found.base or "")
    left = {}
    for name, each in found.variants.items():
        if base is None or each.needed is None:
            continue
        have = base.sums.requests + each.sums.requests
        left[name] = max(0.0, (each.needed - have) / (have / span))
    return left


def _course(minutes: Minutes, begin: int, stop: int, group: int) -> list[dict[str, Any]]:
    rows = []
    for minute, name, cell in minutes.groups(begin, stop, group):
        if name.endswith((CALLER, AGREED, OWN)):
            continue
        rate = Rate.of(cell.click_rate)
        if rate.value is not None:
            rows.append(
                {
                    "time": (minute + group / 2) * MILLISECONDS,
                    "series": name or NAMELESS,
                    "value": rate.value,
                    "low": rate.interval.low if rate.interval else None,
                    "high": rate.interval.high if rate.interval else None,
                }
            )
    return rows[-MOST_POINTS:]


PAGE = Page("/", "Experiments", build)
