"""Signals that end a run cleanly: SIGINT, SIGTERM and SIGHUP let the current step finish.

A second signal has its previous effect, so that a run that hangs can still be ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from model_store.errors import Stopped
from model_store.waiting import SignalEvent, deferred

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Item = TypeVar("Item")


class SignalHandler:
    """While entered, the first signal calls `on_signal`. Has no effect outside the main thread."""

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}

    def on_signal(self, number: int) -> None:
        """Handle the signal."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # Signals that the parent had ignored (nohup) stay ignored.
            handled = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if deferred(number, frame):
            return
        self._restore()
        self.on_signal(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class StopRequest(SignalHandler):
    """While entered, records that a signal has come: `number`, 0 if none has. It also ends `until_stopped`."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._event = SignalEvent()
        self._waiting = False

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; True if a signal has come."""
        return self._event.wait(seconds)

    def until_stopped(self, items: Iterator[Item], may_stop: Callable[[], bool]) -> Iterator[Item]:
        """The items. Raises Stopped between two of them, once a signal has come and `may_stop()`.

        Waiting for an item is interrupted at once: that item is not used, and will be read again by a resumed run.
        Processing an item is not interrupted.
        """
        while True:
            self._waiting = may_stop()
            try:
                if self.number and self._waiting:
                    raise _stopped(self.number)
                item = next(items, None)
            finally:
                self._waiting = False
            if item is None:
                return
            yield item

    def __bool__(self) -> bool:
        return self.number > 0

    def on_signal(self, number: int) -> None:
        """Record the signal; end `wait`, or interrupt the wait for an item."""
        self.number = number
        self._event.set()
        if self._waiting:
            raise _stopped(number)


def _stopped(number: int) -> Stopped:
    return Stopped(f"stopped by {signal.Signals(number).name}", number)
