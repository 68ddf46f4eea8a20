"""`ftrie live`: the flags. ftrie.demo.live runs the loop."""

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
        float | None, typer.Option(min=1.0, help="How long; default: until Ctrl-C or SIGTERM.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Visits a second.")] = 100.0,
    change_at: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECOND",
            help="When tastes change abruptly; default: after a quarter of --seconds, at most 60.",
        ),
    ] = None,
    frozen: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Share of visits ranked by a copy of the model frozen before the change; 0: none.",
        ),
    ] = 0.1,
    publish_every: Annotated[str, typer.Option(metavar="1s|N", help="Same as in ftrie trainer.")] = "1s",
    explore: Annotated[str, typer.Option(metavar="HOW:WIDTH", help="Same as in ftrie rank.")] = "thompson:3",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the market.")] = 1,
    bots: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, metavar="SHARE", help="Share of users that click everything or nothing."
        ),
    ] = 0.02,
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Mean time from an answer to a click.")
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
    open_browser: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the whole loop on this machine: store, trainer, two servers and traffic, with the dashboard to watch it.

    Visitors of a simulated market click, the trainer learns, the servers follow within seconds; then tastes change.
    A process that dies is restarted. Ctrl-C ends all of them.
    """
    from ftrie.demo.live import run
    from ftrie.demo.live_crew import LiveOptions, default_change_at
    from ftrie.demo.live_output import print_result

    options = LiveOptions(
        folder=Path(),
        seconds=seconds,
        rate=rate,
        seed=seed,
        change_at=default_change_at(seconds) if change_at is None else change_at,
        frozen=frozen,
        bots=bots,
        delay=delay,
        publish_every=publish_every,
        explore=explore,
        picture=picture,
        open_browser=open_browser,
    )
    print_result(run(options, folder))
