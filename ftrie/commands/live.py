"""`ftrie live`. Its flags are `ftrie.demo.settings.LiveOptions`; ftrie.demo.live runs the loop."""

from __future__ import annotations

from ftrie.command import command
from ftrie.demo.settings import LiveOptions
from ftrie.terminal import JsonOption


@command("Try it", 2, "Example: ftrie live --seconds 240 --picture loop.svg")
def live(options: LiveOptions, as_json: JsonOption = False) -> None:
    """Run the whole loop on this machine: store, trainer, two servers and traffic, with the dashboard to watch it.

    Visitors of a simulated market click, the trainer learns, the servers follow within seconds; then tastes change.
    A process that dies is restarted. Ctrl-C ends all of them.
    """
    from ftrie.demo.live import print_result, run

    print_result(run(options))
