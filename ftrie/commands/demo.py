"""`ftrie demo`: the flags. ftrie.demo.demo plays the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftrie.terminal import JsonOption


def register(app: typer.Typer) -> None:
    """Add `ftrie demo`."""
    app.command("demo", epilog="Example: ftrie demo")(demo)


def demo(
    as_json: JsonOption = False,
    rows: Annotated[int, typer.Option(min=1_000, help="Impressions on each of the two days.")] = 500_000,
    seed: Annotated[int, typer.Option(help="Seed of the shop.")] = 1,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Work in DIR and keep the spec, the logs, the records and the store."
        ),
    ] = None,
) -> None:
    """Run the whole loop on a simulated shop: train two variants, publish, serve, rank; then tastes change.

    Works in a temporary folder and leaves nothing behind; with --keep the files stay, for use with any command.
    """
    from ftrie.demo.demo import run

    run(rows, seed, keep)
