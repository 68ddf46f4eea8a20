"""The clock of what decides by time: a parameter, so that tests can let an hour pass, or step back, without waiting.

What only measures a duration, for a metric or a message, or bounds a wait on a socket, a process or a thread, uses the
machine's clock directly (tests/repository/test_clock.py lists who does).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks, as those of the module `time`, and the way to let time pass."""

    def time(self) -> float:
        """Seconds since 1970. May be set, and so jump either way: for what is stored, and compared between machines."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back: for what decides within a process."""

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until the event is set, for at most `seconds`; whether it is set."""


class Event(Protocol):
    """What is waited for: a threading.Event, a `SignalEvent`, a `StopRequest`."""

    def wait(self, seconds: float, /) -> bool:
        """Wait until it is set, for at most `seconds`; whether it is set."""


class SystemClock:
    """The machine's."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)  # last: in this class body the name is no longer the module's

    @staticmethod
    def wait(event: Event, seconds: float) -> bool:
        """As the event does."""
        return event.wait(seconds)


SYSTEM: Clock = SystemClock()


class NeverBack:
    """The wall clock, but for steps back: what refuses times of the future must not refuse the present after one."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began_s = clock, clock.time() - clock.monotonic()

    def time(self) -> float:
        """The wall clock's time, or what has passed since it was first looked at, whichever is later."""
        return max(self._clock.time(), self._began_s + self._clock.monotonic())
