"""A clock that passes only when a test says so, or when somebody waits."""

from __future__ import annotations

from model_store.clock import Event


class ManualClock:
    """Both clocks in seconds. `wait` lets the whole time pass at once: for code that runs in one thread."""

    def __init__(self, time_s: float = 1_700_000_000.0) -> None:
        self._time_s, self._monotonic_s = time_s, 0.0

    def time(self) -> float:
        return self._time_s

    def monotonic(self) -> float:
        return self._monotonic_s

    def wait(self, event: Event, seconds: float) -> bool:
        is_set = event.wait(0)
        if not is_set:
            self.advance(seconds)
        return is_set

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._time_s += seconds
        self._monotonic_s += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or a time service does; the other one stays."""
        self._time_s += seconds
