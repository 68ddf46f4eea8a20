"""The page of features: a walk through the model's trie by prefix, the strongest weights, and a search."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from html import escape
from threading import Lock
from typing import Any

import numpy as np
from nicegui import ui

from ftrie.dashboard.feed import ModelState
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Table,
    Text,
    View,
    button,
    card,
    fields,
    warning,
)
from ftrie.dashboard.shared import Models
from ftrie.draw.charts import bars
from ftrie.draw.notebook import paragraph
from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import Prefixes, PrefixSummary, WeightedKey, weighted_key
from model_store.errors import FtrieError, VersionNotFound

MOST_BUTTONS = 60
DRAWN = 15
MOST_FOUND = 100
TOP = 25


class _Walk:
    """The page of one viewer: where they are in the trie."""

    def __init__(self, view: View) -> None:
        """Put the page together."""
        self._view = view
        self._explorer = view.shared.of(Explorer, view.model, lambda: Explorer(view.models))
        self._prefix = ""
        self._shown: int | None = None
        with card("Walk by prefix", "Choose a branch to go down; keys are field=value, crosses a*b=x*y."):
            self._path = fields()
            self._statistics = Table("Keys under this prefix, by variant")
            self._branches = ui.element("div").classes("branches")
        with card("Strongest weights under this prefix").classes("half"):
            self._picture = Picture("no keys")
            self._strongest = Table("Strongest weights")
        with card("Search", "Keys that contain a text.").classes("half"):
            self._text = ui.input("Text").props("dense outlined clearable").on("keydown.enter", self.search)
            button("Search", self.search)
            self._found_text, self._found = Text("quiet"), Table("Keys found")

    async def refresh(self) -> None:
        """Show the same prefix of another version, once it is active."""
        if self._view.state.active != self._shown:
            await self.go(self._prefix)

    async def go(self, prefix: str) -> None:
        """Show what is under a prefix."""
        state = self._view.state
        summary = await asyncio.to_thread(self._explorer.under, state, prefix)
        self._prefix, self._shown = prefix, state.active
        self._show(summary)

    async def search(self) -> None:
        """Show the keys that contain the text of the field."""
        text = self._text.value
        if not text:
            return
        try:
            found = await asyncio.to_thread(self._explorer.search, self._view.state, text)
        except FtrieError as error:
            self._found_text.show(warning(str(error)))
            return
        first = f"; the first {len(found.first)}" if found.keys > len(found.first) else ""
        self._found_text.show(paragraph(f"{found.keys:,} keys{first}"))
        self._found.show(*_keys(found.first), "no key")

    def _show(self, summary: PrefixSummary) -> None:
        self._path.clear()
        with self._path:
            ui.button("all keys", on_click=lambda: self.go("")).props("no-caps flat dense")
            if summary.prefix:
                shorter = summary.prefix[:-1]
                ui.button("one character up", on_click=lambda: self.go(shorter)).props("no-caps flat dense")
                ui.html(f"<strong>{escape(summary.prefix)}…</strong>", sanitize=False)
        self._statistics.show(
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
        self._branches.clear()
        ordered = sorted(
            summary.branches, key=lambda branch: -max(branch.absolute_sums.values(), default=0.0)
        )
        with self._branches:
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
        self._picture.show(bars(rows, value_title="weight", signed=True))
        self._strongest.show(*_keys(summary.heaviest), "no keys")


def _keys(keys: tuple[WeightedKey, ...]) -> tuple[list[str], list[list[Any]]]:
    names = list(dict.fromkeys(name for key in keys for name in key.weights))
    return ["key", *names], [[key.key, *(key.weights.get(name) for name in names)] for key in keys]


# -- what it shows


@dataclass(frozen=True)
class FoundKeys:
    """Keys that contain a text: how many, and the first of them."""

    keys: int
    first: tuple[WeightedKey, ...]


class Explorer:
    """The trie of one model's active version. Thread-safe. O(keys) once a version, then O(what is looked at)."""

    def __init__(self, models: Models) -> None:
        self._models, self._lock = models, Lock()
        self._version: int | None = None
        self._prefixes: Prefixes | None = None

    def under(self, state: ModelState, prefix: str) -> PrefixSummary:
        """What is below a prefix. Raises FtrieError."""
        return self._of(state).under(prefix, TOP)

    def search(self, state: ModelState, text: str) -> FoundKeys:
        """The keys that contain a text, in the order of the keys. O(key bytes). Raises FtrieError."""
        return containing(self._of(state).artefact, text, MOST_FOUND)

    def _of(self, state: ModelState) -> Prefixes:
        # Held while the trie is made: other viewers wait for the same one.
        with self._lock:
            if state.active is None:
                raise VersionNotFound(f"no version of {state.name} is active")
            if self._prefixes is None or self._version != state.active:
                self._prefixes = Prefixes(self._models.artefact(state, state.active))
                self._version = state.active
            return self._prefixes


def containing(artefact: Artefact, text: str, most: int) -> FoundKeys:
    """The keys of a model that contain a text. O(key bytes)."""
    wanted = text.encode("utf-8", "surrogateescape")
    # One search over the bytes of all keys, in C: a loop in Python over millions of keys would take seconds.
    data, offsets = artefact.key_data.tobytes(), artefact.key_offsets
    rows: list[int] = []
    count, at = 0, data.find(wanted) if wanted else -1
    while at >= 0:
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        if at + len(wanted) <= offsets[row + 1]:
            count += 1
            if len(rows) < most:
                rows.append(row)
            # On with the next key: each is counted once.
            at = data.find(wanted, int(offsets[row + 1]))
        else:  # across two keys
            at = data.find(wanted, at + 1)
    return FoundKeys(count, tuple(weighted_key(artefact, row) for row in rows))


PAGE = Page("/features", "Features", lambda view: _Walk(view).refresh)
