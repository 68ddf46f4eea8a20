"""`ftrie simulate`: flags and output. The market is in market.py, the run in traffic.py."""

from __future__ import annotations

from typing import Annotated

import typer

from ftrie.commands.flags import TlsCaOption, TlsCertOption, TlsKeyOption, TokenOption
from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption

DEFAULT_ADDRESS = "127.0.0.1:50051"


def register(app: typer.Typer) -> None:
    """Add `ftrie simulate`."""
    app.command(
        "simulate",
        epilog="Example: ftrie simulate --address 127.0.0.1:50051 --rate 100 --change-at 60 --load",
    )(simulate)


def simulate(
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A server; may be repeated, and they are asked in turn."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    model: Annotated[str, typer.Option(metavar="NAME", help="The model that is asked.")] = "market",
    rate: Annotated[float, typer.Option(min=0.01, help="Visits a second.")] = 50.0,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long; without it until Ctrl-C or SIGTERM.")
    ] = None,
    from_: Annotated[
        float, typer.Option("--from", min=0.0, metavar="SECOND", help="Begin at this second of the market's.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another market.")] = 1,
    change_at: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECOND", help="When tastes change at once.")
    ] = None,
    drift: Annotated[
        float, typer.Option(min=0.0, metavar="LOGITS", help="How far tastes wander slowly.")
    ] = 0.3,
    bots: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Users that click everything, or nothing."),
    ] = 0.02,
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Mean time from an answer to its click.")
    ] = 1.5,
    late: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Clicks that come after --window more.")
    ] = 0.01,
    window: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="The join's window, as far as --late is concerned."),
    ] = 600.0,
    candidates: Annotated[int, typer.Option(min=1, help="Items that compete in a visit.")] = 12,
    shown: Annotated[int, typer.Option(min=1, help="How many of them are shown.")] = 6,
    explore: Annotated[
        str, typer.Option(metavar="HOW:WIDTH", help="ucb:WIDTH or thompson:WIDTH, as of ftrie rank.")
    ] = "",
    beside: Annotated[
        str, typer.Option(metavar="MODEL", help="Another model, asked on --beside-share of the visits.")
    ] = "",
    beside_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="The share of visits that asks --beside.")
    ] = 0.1,
    feedback: Annotated[
        str, typer.Option(metavar="HOW", help="service: the servers' FeedbackService; stream: the store's.")
    ] = "service",
    load: Annotated[
        bool, typer.Option("--load", help="First load the users and items into the store.")
    ] = False,
    callers: Annotated[int, typer.Option(min=1, max=256, help="Visits at the same time, at most.")] = 16,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="From one line to the next.")
    ] = 2.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Be the visitors of a simulated market: ask servers to rank, click with a delay; tastes change.

    Prints a line every two seconds and a summary at the end. Failures of servers are counted and never end it; clicks
    are reported until they are acknowledged.
    """
    import math

    from ftrie.client.access import Access
    from ftrie.commands.flags import exploration_of
    from ftrie.demo.market import Market, Sizes, Tastes
    from ftrie.demo.simulate import Asked, run
    from ftrie.demo.traffic import Share
    from ftrie.demo.visitors import Habits

    if feedback not in ("service", "stream"):
        raise typer.BadParameter(f"--feedback: got {feedback!r}, expected service or stream")
    tastes = Tastes(math.inf if change_at is None else change_at, drift)
    run(
        Asked(
            addresses=address or [DEFAULT_ADDRESS],
            access=Access(tls_ca, tls_cert, tls_key, token),
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
