"""Signals that end a trainer in good order: the step at hand is finished, then it saves, publishes and leaves.

A second signal takes the way it took before, so that a trainer that hangs can still be ended.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from trainer.stopping import SIGNALS


class StopAsked:
    """While entered, a signal sets `number`. Does nothing in a thread other than the main one."""

    def __init__(self) -> None:
        self.number = 0
        self._event = threading.Event()
        self._before: dict[int, Any] = {}

    def wait(self, seconds: float) -> bool:
        """Wait, but not beyond a signal; True if one has come."""
        return self._event.wait(seconds)

    def __bool__(self) -> bool:
        return self.number > 0

    def __enter__(self) -> StopAsked:
        if threading.current_thread() is threading.main_thread():
            kept = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._ask) for number in kept}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._event.set()
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
