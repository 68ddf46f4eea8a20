"""Signals that end a trainer in good order: the step at hand is finished, then it saves, publishes and leaves.

A second signal takes the way it took before, so that a trainer that hangs can still be ended.
"""

from __future__ import annotations

import threading

from trainer.stopping import Caught


class StopAsked(Caught):
    """While entered, a signal sets `number`."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._event = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait, but not beyond a signal; True if one has come."""
        return self._event.wait(seconds)

    def __bool__(self) -> bool:
        return self.number > 0

    def asked(self, number: int) -> None:
        """Remember it, and wake who waits."""
        self.number = number
        self._event.set()
