"""Ctrl-C and SIGTERM end a run in good order; a second one takes the way it took before."""

from __future__ import annotations

from collections.abc import Callable

from trainer.stopping import Caught


class StoppedBySignals(Caught):
    """While entered, the first signal calls `stop`, in the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def asked(self, number: int) -> None:
        """A signal has come."""
        self._stop()
