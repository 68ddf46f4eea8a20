"""What the dashboard changes in the store for a viewer: asked for once, checked as by the command line, recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from typing import Any

from nicegui import ui

from ftrie.dashboard.feed import Feed
from ftrie.dashboard.pages.layout import View, button
from ftrie.draw.notebook import paragraph
from model_store.errors import ExperimentError, FtrieError
from model_store.versions.audit import By
from model_store.versions.experiments import Experiment
from model_store.versions.model_versions import ModelVersions
from server.sync.experiment_sync import change_experiment

TOOL = "dashboard"
REFRESHED_S = 2.0


class Changes:
    """The changes of one model. Every method raises an FtrieError if nothing was changed, and returns what was done."""

    def __init__(self, feed: Feed, model: str) -> None:
        self._feed, self._model = feed, model

    def set_shares(self, who: str, shares: dict[str, float]) -> str:
        """Divide the traffic by these shares."""
        return self._experiment(who, lambda before: before.divided(shares), "Shares changed")

    def pin(self, who: str, cookie: str, variant: str) -> str:
        """Have one cookie get this variant."""
        if not cookie:
            raise ExperimentError("pin: the cookie is empty; give a user's cookie")
        return self._experiment(
            who, lambda before: before.pinned({cookie: variant}), f"{cookie} pinned to {variant}"
        )

    def promote(self, who: str, variant: str) -> str:
        """End the experiment: one variant answers everything."""
        return self._experiment(
            who, lambda before: before.stopped(variant), f"{variant} answers every request"
        )

    def activate(self, who: str, version: int) -> str:
        """Have servers serve a version."""
        self._versions().activate(version, by=By(TOOL, who))
        self._feed.refreshed(REFRESHED_S)
        return f"Version {version} is active."

    def roll_back(self, who: str) -> str:
        """Have servers serve the version that was active before."""
        active = self._versions().rollback(by=By(TOOL, who))
        self._feed.refreshed(REFRESHED_S)
        return f"Version {active} is active again."

    def resume(self, who: str) -> str:
        """Let the trainer activate versions again."""
        self._versions().resume(By(TOOL, who))
        self._feed.refreshed(REFRESHED_S)
        return "The trainer activates what it publishes."

    def _experiment(self, who: str, edit: Callable[[Experiment], Experiment], done: str) -> str:
        changed = change_experiment(self._versions(), edit, by=By(TOOL, who))
        self._feed.refreshed(REFRESHED_S)
        moves = "" if changed.moves is None else f"; {changed.moves:.1%} of the cookies get another variant"
        return f"{done}{moves}."

    def _versions(self) -> ModelVersions:
        return self._feed.store.model(self._model)


def changes_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """What operators changed, latest first."""
    rows = [[f"{each.at:%Y-%m-%d %H:%M:%S}", each.who, each.tool, each.words] for each in view.state.changes]
    return ["when", "who", "with", "what"], rows


def asking_button(label: str, title: str, text: Callable[[], str], change: Callable[[], str]) -> Any:
    """A button that asks once, with the text of that moment, then changes, and shows what was done."""
    return button(label, lambda: _ask(title, text(), change))


def _ask(title: str, text: str, change: Callable[[], str]) -> None:

    async def do() -> None:
        dialog.close()
        try:
            ui.notify(await asyncio.to_thread(change), type="positive", close_button="Close", timeout=10_000)
        except FtrieError as error:
            ui.notify(f"Nothing was changed: {error}", type="negative", close_button="Close", timeout=0)

    with ui.dialog() as dialog, ui.card():
        ui.html(f"<h2>{escape(title)}</h2>{paragraph(text)}", sanitize=False)
        with ui.row():
            ui.button("Cancel", on_click=dialog.close).props("no-caps flat")
            button("Yes", do)
    dialog.open()
