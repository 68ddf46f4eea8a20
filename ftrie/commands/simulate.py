"""`ftrie simulate`. Its flags are `ftrie.demo.settings.SimulateOptions`; ftrie.demo.simulate runs the traffic."""

from __future__ import annotations

from dataclasses import replace

from ftrie.command import command
from ftrie.commands.flags import DEFAULT_ADDRESS, AccessFlags, exploration_of
from ftrie.demo.settings import SimulateOptions
from ftrie.terminal import JsonOption


@command("Try it", 3, "Example: ftrie simulate --address 127.0.0.1:50051 --rate 100 --change-at 60 --load")
def simulate(options: SimulateOptions, access: AccessFlags, as_json: JsonOption = False) -> None:
    """Simulate the visitors of a market: they request rankings from servers and click with a delay; tastes change.

    Prints a line every two seconds and a summary at the end. Failed calls are counted and never end the run; clicks are
    reported until they are acknowledged.
    """
    from ftrie.demo.simulate import run

    options = replace(options, addresses=options.addresses or (DEFAULT_ADDRESS,))
    run(options, access.access(), exploration_of(options.explore))
