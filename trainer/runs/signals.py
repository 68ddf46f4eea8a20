"""Signals that end a run in good order: the batch at hand is finished, then the run is told.

A second signal takes the way it took before, so that a run that is stuck can still be ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from model_store.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Item = TypeVar("Item")


class Caught:
    """While entered, signals go to `asked`, the first one only. Does nothing in a thread other than the main one."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def asked(self, number: int) -> None:
        """A signal has come."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # nohup's wish is kept.
            kept = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._come) for number in kept}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _come(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self.asked(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class StopSignals(Caught):
    """While entered, a signal ends `until_stopped`.

    Who waits for a batch is interrupted at once: that batch is not learned from, and will be read again. Who learns
    is not interrupted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0
        self._waiting = False

    def until_stopped(self, items: Iterator[Item], may_stop: Callable[[], bool]) -> Iterator[Item]:
        """The items, until they end. Raises Stopped, between two of them, once a signal has come and it may."""
        while True:
            self._waiting = may_stop()
            try:
                if self._asked and self._waiting:
                    raise _stopped(self._asked)
                item = next(items, None)
            finally:
                self._waiting = False
            if item is None:
                return
            yield item

    def asked(self, number: int) -> None:
        """Remember it, or interrupt who waits."""
        self._asked = number
        if self._waiting:
            raise _stopped(number)


def _stopped(number: int) -> Stopped:
    return Stopped(f"stopped by {signal.Signals(number).name}", number)


# --- Signals that end a trainer in good order: the step at hand is finished, then it saves, publishes and
# leaves ---
#
# A second signal takes the way it took before, so that a trainer that hangs can still be ended.


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
