"""What the dashboard changes in the store for a viewer: asked for once, checked as by the command line, recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from typing import Any

from nicegui import ui

from ftrie.dashboard.pages.layout import View, button
from ftrie.draw.notebook import paragraph
from model_store.errors import FtrieError
from model_store.versions.audit import By
from model_store.versions.experiments import Experiment
from model_store.versions.model_versions import ModelVersions
from server.ranking.experiments import change_experiment

TOOL = "dashboard"
REFRESHED_S = 2.0


def changes_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """What operators changed, latest first."""
    rows = [[f"{each.at:%Y-%m-%d %H:%M:%S}", each.who, each.tool, each.words] for each in view.state.changes]
    return ["when", "who", "with", "what"], rows


def change_button(
    view: View, label: str, title: str, text: Callable[[], str], change: Callable[[ModelVersions, By], str]
) -> Any:
    """A button that asks once, with the text of that moment, then changes the store, and shows what was done.

    change: returns what was done; raises an FtrieError if nothing was changed.
    """

    def changed() -> str:
        done = change(view.feed.store.model(view.model), By(TOOL, view.viewer))
        # So that the page shows the change when the message says that it was made.
        view.feed.refreshed(REFRESHED_S)
        return done

    def ask() -> None:
        async def confirmed() -> None:
            dialog.close()
            try:
                done = await asyncio.to_thread(changed)
                ui.notify(done, type="positive", close_button="Close", timeout=10_000)
            except FtrieError as error:
                ui.notify(f"Nothing was changed: {error}", type="negative", close_button="Close", timeout=0)

        with ui.dialog() as dialog, ui.card():
            ui.html(f"<h2>{escape(title)}</h2>{paragraph(text())}", sanitize=False)
            with ui.row():
                ui.button("Cancel", on_click=dialog.close).props("no-caps flat")
                button("Yes", confirmed)
        dialog.open()

    return button(label, ask)


def changed_experiment(
    versions: ModelVersions, by: By, edit: Callable[[Experiment], Experiment], done: str
) -> str:
    """Change the experiment; returns what was done, and how many cookies it moves."""
    changed = change_experiment(versions, edit, by=by)
    moves = "" if changed.moves is None else f"; {changed.moves:.1%} of the cookies get another variant"
    return f"{done}{moves}."
