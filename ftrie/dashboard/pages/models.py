"""The page of models: the published versions, who serves them, how two of them differ, and what the guard said."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.pages.changes import change_button, changes_table
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Refresh,
    Table,
    Text,
    View,
    button,
    card,
    choose,
    duration,
    fields,
    size,
    tiles,
    warning,
)
from ftrie.draw.charts import bars
from ftrie.draw.notebook import paragraph
from model_store.errors import FtrieError
from model_store.versions.audit import By
from model_store.versions.manifest import RecentFigures, chain_of, parents_of
from model_store.versions.model_versions import ModelVersions
from trainer.learn.metrics.figures import IN_TABLES

CHOICES_EVERY = 10
"""Refreshes from one renewal of the versions to choose from to the next."""
MOST_LISTED = 100
MOST_CHANGED = 30


def build(view: View) -> Refresh:
    """Put the page together."""
    summary = Text()
    with card(
        "Versions",
        "The latest first. Keys of a delta are those that have changed; metrics are the base variant's in training.",
    ):
        chain, table = Text("quiet"), Table("Published versions")
    choices: list[Any] = []
    with card("Difference of two versions").classes("half"):
        choices += _difference(view)
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
        active = state.active
        if active is not None and active not in nonzero:
            nonzero.clear()
            found = await asyncio.to_thread(view.models.nonzero, state, active)
            nonzero[active] = ", ".join(f"{name} {count:,}" for name, count in found.items())
        summary.show(_tiles(view, nonzero.get(active or 0, "")))
        chain.show(paragraph(chain_text(state, active)) if active is not None else "")
        table.show(
            ["version", "age", "kind", "keys", "size", *IN_TABLES.values(), "served by", "refused"],
            version_lines(view.feed, state),
        )
        kept = state.guard
        rolled = f"Rolled back automatically from version {kept.origin} to {kept.target}: {kept.reason}"
        verdicts.show(paragraph(rolled) if kept.when_us else "")
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


def _difference(view: View) -> list[tuple[Any, int]]:
    """Put the comparison on the page; returns its choices of a version."""
    state, listed = view.state, _listed(view)

    async def compare() -> None:
        text.show(paragraph("Comparing…"))
        start.disable()
        try:
            found = await asyncio.to_thread(
                view.models.difference, view.state, older.value, newer.value, variant.value
            )
        except FtrieError as error:
            text.show(warning(str(error)))
            return
        finally:
            start.enable()
        text.show(paragraph(str(found)))
        rows = [
            [line["key"], _weight(line["before"], "came"), _weight(line["after"], "went"), line["change"]]
            for line in found.table.slice(0, MOST_CHANGED).to_pylist()
        ]
        moved.show(
            bars(
                [{"name": row[0], "value": row[3]} for row in rows[:12]],
                value_title="change of the weight",
                signed=True,
            )
        )
        table.show(["key", "before", "after", "change"], rows, "The versions have the same weights.")

    with fields():
        older = choose("Older", listed, _at(listed, 1))
        newer = choose("Newer", listed, _at(listed, 0))
        variant = choose("Variant", list(state.variants), state.base)
        start = button("Compare", compare)
    text = Text("quiet")
    moved = Picture("")
    table = Table("Keys that differ most")
    return [(older, 1), (newer, 0)]


def _weight(value: float | None, otherwise: str) -> Any:
    return otherwise if value is None else round(value, 6)


def _controls(view: View) -> list[tuple[Any, int]]:
    """Put the changes on the page; returns their choice of a version."""

    def activate(versions: ModelVersions, by: By) -> str:
        versions.activate(version.value, by=by)
        return f"Version {version.value} is active."

    def resume(versions: ModelVersions, by: By) -> str:
        versions.resume(by)
        return "The trainer activates what it publishes."

    with fields():
        version = choose("Version", _listed(view), view.state.active)
        change_button(
            view,
            "Activate",
            "Activate this version?",
            lambda: f"Servers serve version {version.value}; a trainer activates none until it is resumed.",
            activate,
        )
        change_button(
            view,
            "Roll back",
            "Roll back?",
            lambda: "Servers serve the version that was active before.",
            lambda versions, by: f"Version {versions.rollback(by=by)} is active again.",
        )
        change_button(
            view,
            "Resume",
            "Let the trainer activate again?",
            lambda: "This removes an operator's pin.",
            resume,
        )
    return [(version, 0)]


# -- what it shows


def version_lines(feed: Feed, state: ModelState) -> list[list[Any]]:
    """A line a version, newest first: version, age, kind, keys, size, metrics of the base, its servers, refused.

    keys: of a delta those that changed.
    """
    now = time.time()
    served: dict[int, list[str]] = {}
    for server in feed.servers:
        for model in server.models:
            if model.get("name") == state.name and isinstance(model.get("version"), int):
                served.setdefault(model["version"], []).append(server.address)
    lines = []
    for info in reversed(state.versions[-MOST_LISTED:]):
        manifest = state.manifests.get(info.version)
        metrics = manifest.metrics.get(state.base or "", {}) if manifest is not None else {}
        lines.append(
            [
                f"{info.version}{' ●' if info.version == state.active else ''}",
                # The clock of the publisher may be ahead of this one.
                duration(max(0.0, now - info.published.timestamp())),
                info.kind,
                f"{info.rows:,}",
                size(info.size),
                *(f"{metrics[name]:.5f}" if name in metrics else "—" for name in IN_TABLES),
                ", ".join(served.get(info.version, ())),
                info.refused,
            ]
        )
    return lines


def chain_text(state: ModelState, version: int) -> str:
    """The versions that make up this one: its snapshot, then its deltas."""
    try:
        chain = chain_of(version, parents_of(state.versions))
    except (FtrieError, KeyError) as error:
        return str(error)
    if len(chain) == 1:
        return f"version {version} is a snapshot"
    middle = f", {len(chain) - 1:,} deltas" if len(chain) > 6 else ""
    listed = chain if len(chain) <= 6 else [chain[0], "…", *chain[-3:]]
    return f"snapshot {' → '.join(map(str, listed))}{middle}"


def guard_lines(state: ModelState) -> list[list[Any]]:
    """A line for every version that a guard judged, newest first, by variant."""
    rows: list[list[Any]] = []
    for info in reversed(state.versions[-MOST_LISTED:]):
        manifest = state.manifests.get(info.version)
        if manifest is None or not (manifest.recent or info.refused):
            continue
        verdict = info.refused or "passed"
        try:
            recent = RecentFigures.from_json(manifest.recent) if manifest.recent else None
        except (ValueError, json.JSONDecodeError):
            recent = None
        if recent is None:
            rows.append([info.version, verdict, "", None, None, None])
            continue
        for name, figures in recent.variants.items():
            calibration = figures.predicted / recent.clicks if recent.clicks else None
            rows.append([info.version, verdict, name, f"{recent.examples:,}", figures.logloss, calibration])
    return rows


PAGE = Page("/models", "Models", build)
