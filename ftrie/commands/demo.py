"""`ftrie demo`: the flags. ftrie.demo.demo plays the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ftrie.command import command
from ftrie.terminal import JsonOption, note
from model_store.flags import Flag


@command("Try it", 1, "Example: ftrie demo")
def demo(
    as_json: JsonOption = False,
    rows: Annotated[int, Flag("Impressions on each of the two days.", min=1_000)] = 500_000,
    seed: Annotated[int, Flag("Seed of the shop.")] = 1,
    keep: Annotated[
        Path | None,
        Flag("Work in DIR and keep the spec, the logs, the records and the store.", "DIR", file="writes"),
    ] = None,
    open_browser: Annotated[
        bool, Flag("At the end show the dashboard in a browser, until Ctrl-C.", names="--open")
    ] = False,
) -> None:
    """Run the whole loop on a simulated shop: train two variants, publish, serve, rank; then tastes change.

    Works in a temporary folder and leaves nothing behind; with --keep the files stay, for use with any command.
    """
    from ftrie.commands.dashboard import dashboard_run, ended_by_signals
    from ftrie.dashboard import DashboardOptions
    from ftrie.demo.demo import run

    # Before the demo: an extra that is missing is an error now.
    show = dashboard_run() if open_browser else None

    def watch(store: str, metrics: str) -> None:
        assert show is not None
        options = DashboardOptions(
            "shop", store, port=0, servers=(metrics,), allow_changes=True, open_browser=True
        )
        with ended_by_signals():
            show(options, lambda url: note(f"the dashboard is at {url}; Ctrl-C ends it and the demo"))

    run(rows, seed, keep, watch if open_browser else None)
