"""`ftrie simulate`: the flags. ftrie.demo.simulate runs the traffic."""

from __future__ import annotations

from typing import Annotated

import typer

from ftrie.command import command
from ftrie.commands.flags import DEFAULT_ADDRESS, AccessFlags
from ftrie.terminal import JsonOption
from model_store.flags import DEFAULT_STORE, Flag, StoreOption


@command("Try it", 3, "Example: ftrie simulate --address 127.0.0.1:50051 --rate 100 --change-at 60 --load")
def simulate(
    address: Annotated[
        list[str] | None, Flag("A server; may be repeated, to use several in turn.", "HOST:PORT")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    model: Annotated[str, Flag("The model that ranks.", "NAME")] = "market",
    rate: Annotated[float, Flag("Visits a second.", min=0.01)] = 50.0,
    seconds: Annotated[float | None, Flag("How long; default: until Ctrl-C or SIGTERM.", min=0.1)] = None,
    from_: Annotated[
        float, Flag("Start at this second of the market.", "SECOND", min=0.0, names="--from")
    ] = 0.0,
    seed: Annotated[int, Flag("Seed of the market.", min=0)] = 1,
    change_at: Annotated[
        float | None, Flag("When tastes change abruptly; default: never.", "SECOND", min=0.0)
    ] = None,
    drift: Annotated[float, Flag("Amplitude of the slow drift of tastes.", "LOGITS", min=0.0)] = 0.3,
    bots: Annotated[
        float, Flag("Share of users that click everything or nothing.", "SHARE", min=0.0, max=1.0)
    ] = 0.02,
    delay: Annotated[float, Flag("Mean time from an answer to a click.", "SECONDS", min=0.0)] = 1.5,
    late: Annotated[
        float, Flag("Share of clicks delayed by --window more.", "SHARE", min=0.0, max=1.0)
    ] = 0.01,
    window: Annotated[float, Flag("The join's window; see --late.", "SECONDS", min=0.0)] = 600.0,
    candidates: Annotated[int, Flag("Items that compete in a visit.", min=1)] = 12,
    shown: Annotated[int, Flag("How many of them are shown.", min=1)] = 6,
    explore: Annotated[str, Flag("ucb:WIDTH or thompson:WIDTH, as in ftrie rank.", "HOW:WIDTH")] = "",
    beside: Annotated[str, Flag("A second model, which ranks --beside-share of the visits.", "MODEL")] = "",
    beside_share: Annotated[
        float, Flag("Share of visits that --beside ranks.", "SHARE", min=0.0, max=1.0)
    ] = 0.1,
    feedback: Annotated[
        str, Flag("service: the servers' FeedbackService; stream: the store's stream.", "HOW")
    ] = "service",
    load: Annotated[bool, Flag("Load the users and items into the store first.")] = False,
    callers: Annotated[int, Flag("Maximum of concurrent visits.", min=1, max=256)] = 16,
    every: Annotated[float, Flag("Interval between output lines.", "SECONDS", min=0.1)] = 2.0,
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
    from ftrie.demo.market import Habits, Market, Sizes, Tastes
    from ftrie.demo.simulate import SimulateOptions, run
    from ftrie.demo.traffic import Share

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
