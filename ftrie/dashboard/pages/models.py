"""The page of models: the published versions, who serves them, how two of them differ, and what the guard said."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from ftrie.dashboard.changes import Changes
from ftrie.dashboard.pages.experiments import changes_table, confirmed
from ftrie.dashboard.pages.layout import (
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    duration,
    paragraph,
    size,
    tiles,
    warning,
)
from ftrie.dashboard.queries.models import MOST_CHANGED, Models, chain_text, guard_lines, version_lines
from ftrie.draw.charts import bars
from ftrie.library.weights import ModelDiff
from model_store.errors import FtrieError

METRICS = ("logloss", "auc", "calibration")
CHOICES_EVERY = 10
"""Refreshes from one renewal of the versions to choose from to the next."""


def build(view: View) -> Refresh:
    """Put the page together."""
    models = view.models
    summary = Text()
    with card(
        "Versions",
        "The latest first. Keys of a delta are those that have changed; metrics are the base variant's in training.",
    ):
        chain, table = Text("quiet"), Table("Published versions")
    choices: list[Any] = []
    with card("Difference of two versions").classes("half"):
        choices += _difference(view, models)
    with card("Guard").classes("half"):
        verdicts, guard = Text("quiet"), Table("Versions that the guard judged")
    if view.allow_changes:
        with card("Serve another version").classes("half"):
            choices += _controls(view)
    with card("Changes by operators").classes("half" if view.allow_changes else ""):
        audit = Table("Changes by operators")
    nonzero: dict[int, str] = {}
    turns = 0

    async def refresh() -> None:
        nonlocal turns
        state = view.state
        if turns % CHOICES_EVERY == 0:
            _offer(view, choices)
        turns += 1
        lines = version_lines(view.feed, state)
        active = state.active
        if active is not None and active not in nonzero:
            nonzero.clear()
            found = await asyncio.to_thread(models.nonzero, state, active)
            nonzero[active] = ", ".join(f"{name} {count:,}" for name, count in found.items())
        summary.show(_tiles(view, nonzero.get(active or 0, "")))
        chain.show(paragraph(chain_text(state, active)) if active is not None else "")
        table.show(*_versions(view, lines))
        verdicts.show(_verdicts(view))
        guard.show(
            ["version", "verdict", "variant", "examples", "log-loss", "calibration"],
            guard_lines(state),
            "No version was judged by a guard.",
        )
        audit.show(*changes_table(view), "no changes yet")

    return refresh


def _tiles(view: View, nonzero: str) -> str:
    state = view.state
    active = next((info for info in state.versions if info.active), None)
    pinned = f"!pinned by an operator: {state.pinned}" if state.pinned else ""
    return tiles(
        [
            ("Active version", str(state.active or "none"), pinned),
            (
                "Published",
                duration(view.state.at - active.published.timestamp()) + " ago" if active else "—",
                "",
            ),
            (
                "Versions in the store",
                f"{len(state.versions):,}",
                size(sum(info.size for info in state.versions)),
            ),
            ("Keys with a weight", nonzero or "—", "of the active version, by variant"),
            ("Refused by the guard", f"{state.guard.refused:,}", f"{state.guard.rolled_back:,} rollbacks"),
        ]
    )


def _versions(view: View, lines: list[Any]) -> tuple[list[str], list[list[Any]]]:
    base = view.state.base or ""
    rows: list[list[Any]] = []
    for line in lines:
        metrics = line.metrics.get(base, {})
        rows.append(
            [
                f"{line.version}{' ●' if line.active else ''}",
                duration(line.age_s),
                line.kind,
                f"{line.keys:,}",
                size(line.size),
                *(f"{metrics[name]:.5f}" if name in metrics else "—" for name in METRICS),
                ", ".join(line.servers),
                line.refused,
            ]
        )
    return [
        "version",
        "age",
        "kind",
        "keys",
        "size",
        "log-loss",
        "AUC",
        "calibration",
        "served by",
        "refused",
    ], rows


def _verdicts(view: View) -> str:
    guard = view.state.guard
    if not guard.when_us:
        return ""
    return paragraph(
        f"Rolled back automatically from version {guard.origin} to {guard.target}: {guard.reason}"
    )


def _listed(view: View) -> list[int]:
    return [info.version for info in view.state.versions if not info.damaged][::-1]


def _offer(view: View, choices: list[tuple[Any, int]]) -> None:
    """Offer the versions that there are now. choices: each with the place, from the newest, of its substitute."""
    listed = _listed(view)
    for choice, place in choices:
        if choice.options != listed:
            kept = choice.value if choice.value in listed else _at(listed, place)
            choice.set_options(listed, value=kept)


def _at(listed: list[int], place: int) -> int | None:
    return listed[min(place, len(listed) - 1)] if listed else None


def _difference(view: View, models: Models) -> list[tuple[Any, int]]:
    """Put the comparison on the page; returns its choices of a version."""
    state, listed = view.state, _listed(view)
    with ui.element("div").classes("row-of-fields"):
        older = (
            ui.select(listed, value=_at(listed, 1), label="Older").props("dense outlined").classes("choice")
        )
        newer = (
            ui.select(listed, value=_at(listed, 0), label="Newer").props("dense outlined").classes("choice")
        )
        variant = (
            ui.select(list(state.variants), value=state.base, label="Variant")
            .props("dense outlined")
            .classes("choice")
        )
        button = ui.button("Compare").props("no-caps outline")
    text = Text("quiet")
    moved = Picture("")
    table = Table("Keys that differ most")

    async def compare() -> None:
        text.show(paragraph("Comparing…"))
        button.disable()
        try:
            found = await asyncio.to_thread(
                models.difference, view.state, older.value, newer.value, variant.value
            )
        except FtrieError as error:
            text.show(warning(str(error)))
            return
        finally:
            button.enable()
        text.show(paragraph(str(found)))
        rows = _largest(found)
        moved.show(
            bars(
                [{"name": row[0], "value": row[3]} for row in rows[:12]],
                value_title="change of the weight",
                signed=True,
            )
        )
        table.show(["key", "before", "after", "change"], rows, "The versions have the same weights.")

    button.on_click(compare)
    return [(older, 1), (newer, 0)]


def _largest(found: ModelDiff) -> list[list[Any]]:
    return [
        [line["key"], _weight(line["before"], "came"), _weight(line["after"], "went"), line["change"]]
        for line in found.table.slice(0, MOST_CHANGED).to_pylist()
    ]


def _weight(value: float | None, otherwise: str) -> Any:
    return otherwise if value is None else round(value, 6)


def _controls(view: View) -> list[tuple[Any, int]]:
    """Put the changes on the page; returns their choice of a version."""
    changes = Changes(view.feed, view.model)
    listed = _listed(view)
    with ui.element("div").classes("row-of-fields"):
        version = (
            ui.select(listed, value=view.state.active, label="Version")
            .props("dense outlined")
            .classes("choice")
        )
        ui.button(
            "Activate",
            on_click=lambda: confirmed(
                "Activate this version?",
                f"Servers serve version {version.value}; a trainer activates none until it is resumed.",
                lambda: changes.activate(view.viewer, version.value),
            ),
        ).props("no-caps outline")
        ui.button(
            "Roll back",
            on_click=lambda: confirmed(
                "Roll back?",
                "Servers serve the version that was active before.",
                lambda: changes.roll_back(view.viewer),
            ),
        ).props("no-caps outline")
        ui.button(
            "Resume",
            on_click=lambda: confirmed(
                "Let the trainer activate again?",
                "This removes an operator's pin.",
                lambda: changes.resume(view.viewer),
            ),
        ).props("no-caps outline")
    return [(version, 0)]
