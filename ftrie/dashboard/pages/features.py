"""The page of features: a walk through the model's trie by prefix, the strongest weights, and a search."""

from __future__ import annotations

import asyncio
from html import escape
from typing import Any

from nicegui import ui

from ftrie.dashboard.pages.layout import Picture, Refresh, Table, Text, View, card, paragraph, warning
from ftrie.dashboard.queries.features import Explorer, Found
from ftrie.draw.charts import bars
from model_store.artefact.inspection import WeightedKey
from model_store.errors import FtrieError
from model_store.trie.prefixes import PrefixSummary

MOST_BUTTONS = 60
DRAWN = 15


def build(view: View) -> Refresh:
    """Put the page together."""
    explorer = view.shared.of(Explorer, view.model, lambda: Explorer(view.models))
    page = _Walk(view, explorer)
    with card("Walk by prefix", "Choose a branch to go down; keys are field=value, crosses a*b=x*y."):
        page.path = ui.element("div").classes("row-of-fields")
        page.statistics = Table("Keys under this prefix, by variant")
        page.branches = ui.element("div").classes("branches")
    with card("Strongest weights under this prefix").classes("half"):
        page.picture = Picture("no keys")
        page.strongest = Table("Strongest weights")
    with card("Search", "Keys that contain a text.").classes("half"):
        page.text = ui.input("Text").props("dense outlined clearable").on("keydown.enter", page.search)
        ui.button("Search", on_click=page.search).props("no-caps outline")
        page.found_text, page.found = Text("quiet"), Table("Keys found")

    async def refresh() -> None:
        if view.state.active != page.shown:
            await page.go(page.prefix)

    return refresh


class _Walk:
    """Where a viewer is in the trie. The pieces are set by `build`."""

    path: Any
    text: Any
    statistics: Table
    branches: Any
    picture: Picture
    strongest: Table
    found_text: Text
    found: Table

    def __init__(self, view: View, explorer: Explorer) -> None:
        self._view, self._explorer = view, explorer
        self.prefix = ""
        self.shown: int | None = None

    async def go(self, prefix: str) -> None:
        """Show what is under a prefix."""
        state = self._view.state
        summary = await asyncio.to_thread(self._explorer.under, state, prefix)
        self.prefix, self.shown = prefix, state.active
        self._show(summary)

    async def search(self) -> None:
        """Show the keys that contain the text of the field."""
        text = self.text.value
        if not text:
            return
        try:
            found = await asyncio.to_thread(self._explorer.search, self._view.state, text)
        except FtrieError as error:
            self.found_text.show(warning(str(error)))
            return
        self.found_text.show(paragraph(_count(found)))
        self.found.show(*_keys(found.first), "no key")

    def _show(self, summary: PrefixSummary) -> None:
        self.path.clear()
        with self.path:
            ui.button("all keys", on_click=lambda: self.go("")).props("no-caps flat dense")
            if summary.prefix:
                shorter = summary.prefix[:-1]
                ui.button("one character up", on_click=lambda: self.go(shorter)).props("no-caps flat dense")
                ui.html(f"<strong>{escape(summary.prefix)}…</strong>", sanitize=False)
        self.statistics.show(
            ["variant", "keys", "non-zero", "sum w", "sum |w|"],
            [
                [
                    name,
                    f"{each.keys:,}",
                    f"{each.nonzero:,}",
                    round(each.weight_sum, 4),
                    round(each.absolute_sum, 4),
                ]
                for name, each in summary.variants.items()
            ],
        )
        self.branches.clear()
        ordered = sorted(
            summary.branches, key=lambda branch: -max(branch.absolute_sums.values(), default=0.0)
        )
        with self.branches:
            for branch in ordered[:MOST_BUTTONS]:
                weight = max(branch.absolute_sums.values(), default=0.0)
                label = f"{branch.prefix or '(empty)'} · {branch.keys:,} keys · Σ|w| {weight:.3g}"
                ui.button(label, on_click=lambda prefix=branch.prefix: self.go(prefix)).props(
                    "no-caps outline dense"
                ).set_enabled(branch.keys > 1)
            if len(ordered) > MOST_BUTTONS:
                ui.html(
                    paragraph(f"and {len(ordered) - MOST_BUTTONS:,} lighter branches; search for a key"),
                    sanitize=False,
                )
        rows = [{"name": key.key, "value": key.weight} for key in summary.heaviest[:DRAWN]]
        self.picture.show(bars(rows, value_title="weight", signed=True))
        self.strongest.show(*_keys(summary.heaviest), "no keys")


def _count(found: Found) -> str:
    return f"{found.keys:,} keys" + (
        f"; the first {len(found.first)}" if found.keys > len(found.first) else ""
    )


def _keys(keys: tuple[WeightedKey, ...]) -> tuple[list[str], list[list[Any]]]:
    names = list(dict.fromkeys(name for key in keys for name in key.weights))
    return ["key", *names], [[key.key, *(key.weights.get(name) for name in names)] for key in keys]
