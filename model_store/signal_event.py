"""An event that the handler of a signal may set."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class SignalEvent:
    """What threading.Event is, for a thread that waits and is interrupted by signals whose handler calls `set`.

    threading.Event holds a lock while it begins to wait, and in `clear`: a handler that runs there waits for that lock
    for ever, and with it the process. SimpleQueue is documented to be reentrant.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake who waits. Any thread, and the handler of a signal."""
        self._is_set = True
        self._woken.put(None)

    def clear(self) -> None:
        """Set it back. One thread may, the only one that waits."""
        self._is_set = False  # first: a `set` from here on is not lost
        with suppress(Empty):
            while True:
                self._woken.get_nowait()

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most `seconds`; whether it is."""
        if not self._is_set:
            with suppress(Empty):
                self._woken.get(timeout=seconds)
                if self._is_set:
                    self._woken.put(None)  # for the next that waits
        return self._is_set
