"""`ftrie live`: the flags. ftrie.demo.live runs the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ftrie.command import command
from ftrie.terminal import JsonOption
from model_store.flags import Flag


@command("Try it", 2, "Example: ftrie live --seconds 240 --picture loop.svg")
def live(
    seconds: Annotated[float | None, Flag("How long; default: until Ctrl-C or SIGTERM.", min=1.0)] = None,
    rate: Annotated[float, Flag("Visits a second.", min=0.01)] = 100.0,
    change_at: Annotated[
        float | None,
        Flag(
            "When tastes change abruptly; default: after a quarter of --seconds, at most 60.",
            "SECOND",
            min=0.0,
        ),
    ] = None,
    frozen: Annotated[
        float,
        Flag(
            "Share of visits ranked by a copy of the model frozen before the change; 0: none.",
            "SHARE",
            min=0.0,
            max=1.0,
        ),
    ] = 0.1,
    publish_every: Annotated[str, Flag("Same as in ftrie trainer.", "1s|N")] = "1s",
    explore: Annotated[str, Flag("Same as in ftrie rank.", "HOW:WIDTH")] = "thompson:3",
    seed: Annotated[int, Flag("Seed of the market.", min=0)] = 1,
    bots: Annotated[
        float, Flag("Share of users that click everything or nothing.", "SHARE", min=0.0, max=1.0)
    ] = 0.02,
    delay: Annotated[float, Flag("Mean time from an answer to a click.", "SECONDS", min=0.0)] = 1.5,
    folder: Annotated[
        Path | None,
        Flag(
            "Work here, and keep the store, the logs and the checkpoints.",
            "DIR",
            names="--dir",
            file="writes",
        ),
    ] = None,
    picture: Annotated[
        Path | None, Flag("Draw the click rates over time.", "FILE.svg", file="writes")
    ] = None,
    open_browser: Annotated[bool, Flag("Open the dashboard in a browser.", names="--open")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the whole loop on this machine: store, trainer, two servers and traffic, with the dashboard to watch it.

    Visitors of a simulated market click, the trainer learns, the servers follow within seconds; then tastes change.
    A process that dies is restarted. Ctrl-C ends all of them.
    """
    from ftrie.demo.live import LiveOptions, default_change_at, print_result, run

    options = LiveOptions(
        # `run` replaces it by the folder of this run.
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
