"""`ftrie live`: flags and output. What it runs is in `ftrie.simulation.live`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftrie.terminal import JsonOption


def register(app: typer.Typer) -> None:
    """Add `ftrie live`."""
    app.command("live", epilog="Example: ftrie live --seconds 240 --picture loop.svg")(live)


def live(
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="How long; without it until Ctrl-C or SIGTERM.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Visits a second.")] = 100.0,
    change_at: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECOND",
            help="When tastes change at once; default: after a quarter of --seconds, at most 60.",
        ),
    ] = None,
    frozen: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Visits for a copy of the model, frozen before the change; 0 for none.",
        ),
    ] = 0.1,
    publish_every: Annotated[str, typer.Option(metavar="1s|N", help="As of ftrie trainer.")] = "1s",
    explore: Annotated[str, typer.Option(metavar="HOW:WIDTH", help="As of ftrie rank.")] = "thompson:3",
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another market.")] = 1,
    bots: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Users that click everything, or nothing."),
    ] = 0.02,
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Mean time from an answer to its click.")
    ] = 1.5,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Work here, and keep the store, the logs and the checkpoints."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the click rates over time.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the whole loop on this machine: store, trainer, two servers and traffic, five processes, and watch it.

    Visitors of a simulated market click, the trainer learns, the servers follow within seconds; then tastes change.
    What dies is started again. Ctrl-C takes all of it down.
    """
    from ftrie.demo.live import run
    from ftrie.demo.live_output import tell
    from ftrie.demo.live_processes import LiveOptions, change_of

    asked = LiveOptions(
        folder=Path(),
        seconds=seconds,
        rate=rate,
        seed=seed,
        change_at=change_of(seconds) if change_at is None else change_at,
        frozen=frozen,
        bots=bots,
        delay=delay,
        publish_every=publish_every,
        explore=explore,
        picture=picture,
    )
    tell(run(asked, folder))
