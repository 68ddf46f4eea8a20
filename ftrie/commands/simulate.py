"""`ftrie simulate`: the flags. ftrie.demo.simulate runs the traffic."""

from __future__ import annotations

from typing import Annotated

import typer

from ftrie.commands.flags import DEFAULT_ADDRESS, AccessFlags, grouped
from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption


def register(app: typer.Typer) -> None:
    """Add `ftrie simulate`."""
    app.command(
        "simulate",
        epilog="Example: ftrie simulate --address 127.0.0.1:50051 --rate 100 --change-at 60 --load",
    )(simulate)


@grouped
def simulate(
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A server; may be repeated, to use several in turn."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    model: Annotated[str, typer.Option(metavar="NAME", help="The model that ranks.")] = "market",
    rate: Annotated[float, typer.Option(min=0.01, help="Visits a second.")] = 50.0,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long; default: until Ctrl-C or SIGTERM.")
    ] = None,
    from_: Annotated[
        float, typer.Option("--from", min=0.0, metavar="SECOND", help="Start at this second of the market.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the market.")] = 1,
    change_at: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="SECOND", help="When tastes change abruptly; default: never."),
    ] = None,
    drift: Annotated[
        float, typer.Option(min=0.0, metavar="LOGITS", help="Amplitude of the slow drift of tastes.")
    ] = 0.3,
    bots: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, metavar="SHARE", help="Share of users that click everything or nothing."
        ),
    ] = 0.02,
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Mean time from an answer to a click.")
    ] = 1.5,
    late: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Share of clicks delayed by --window more."),
    ] = 0.01,
    window: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="The join's window; see --late."),
    ] = 600.0,
    candidates: Annotated[int, typer.Option(min=1, help="Items that compete in a visit.")] = 12,
    shown: Annotated[int, typer.Option(min=1, help="How many of them are shown.")] = 6,
    explore: Annotated[
        str, typer.Option(metavar="HOW:WIDTH", help="ucb:WIDTH or thompson:WIDTH, as in ftrie rank.")
    ] = "",
    beside: Annotated[
        str, typer.Option(metavar="MODEL", help="A second model, which ranks --beside-share of the visits.")
    ] = "",
    beside_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Share of visits that --beside ranks.")
    ] = 0.1,
    feedback: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="service: the servers' FeedbackService; stream: the store's stream."
        ),
    ] = "service",
    load: Annotated[
        bool, typer.Option("--load", help="Load the users and items into the store first.")
    ] = False,
    callers: Annotated[int, typer.Option(min=1, max=256, help="Maximum of concurrent visits.")] = 16,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Interval between output lines.")
    ] = 2.0,
    *,
    access: AccessFlags,
    as_json: JsonOption = False,
) -> None:
    """Simulate the visitors of a market: they request rankings from servers and click with a delay; tastes change.

    Prints a line every two seconds and a summary at the end. Failed calls are counted and never end the run; clicks are
    reported until they are acknowledged.
    """
    import math

    from ftrie.commands.flags import exploration_of
    from ftrie.demo.market import Market, Sizes, Tastes
    from ftrie.demo.simulate import SimulateOptions, run
    from ftrie.demo.traffic import Share
    from ftrie.demo.visitors import Habits

    if feedback not in ("service", "stream"):
        raise typer.BadParameter(f"--feedback: got {feedback!r}, expected service or stream")
    tastes = Tastes(math.inf if change_at is None else change_at, drift)
    run(
        SimulateOptions(
            addresses=address or [DEFAULT_ADDRESS],
            access=access.access(),
            store=store,
            market=Market(seed, tastes, Sizes(bots=bots)),
            habits=Habits(rate, candidates, shown, delay, late, window),
            share=Share(model, beside, beside_share),
            exploration=exploration_of(explore),
            by_stream=feedback == "stream",
            load=load,
            from_s=from_,
            seconds=seconds,
            callers=callers,
            every_s=every,
        )
    )
