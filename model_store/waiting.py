"""How a process waits: pauses between attempts, events that a signal sets, and signals that end a run cleanly.

`Pauses` is the rule, `Backoff` the rule with a count of failures: twice as long after each, with jitter so that not all
retry at once. "Equal jitter": Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from model_store.errors import Stopped

Item = TypeVar("Item")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They end a run: SIGINT, SIGTERM and SIGHUP let the current step finish."""
# 2.0 ** 1024 raises OverflowError, and failures are counted for as long as a store is away.
_MOST_DOUBLINGS = 32


@dataclass(frozen=True)
class Pauses:
    """Waits from `first_s` on, doubling up to `longest_s`. With `jitter` each is drawn between half and all of that."""

    first_s: float = 0.1
    longest_s: float = 5.0
    jitter: bool = True

    def after(self, failures: int) -> float:
        """Seconds to wait after `failures` in a row, from 1 on."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        longest = min(self.first_s * 2.0**doublings, self.longest_s)
        return longest * random.uniform(0.5, 1.0) if self.jitter else longest


class Backoff:
    """Counts failures in a row; `failures` is their number. For one thread."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 5.0) -> None:
        self.failures = 0
        self._pauses = Pauses(first_s, longest_s)

    def failed(self) -> float:
        """Count a failure; return the seconds to wait."""
        self.failures += 1
        return self._pauses.after(self.failures)

    def succeeded(self) -> bool:
        """Reset the count; True if there were failures."""
        had, self.failures = self.failures > 0, 0
        return had


class SignalEvent:
    """What threading.Event is, for a thread that waits and is interrupted by signals whose handler calls `set`.

    threading.Event holds a lock while it begins to wait, and in `clear`: a handler that runs there waits for that lock
    for ever, and with it the process. SimpleQueue is documented to be reentrant.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """True from `set` until `clear`."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake who waits. Any thread, and the handler of a signal."""
        # Before the token: a thread that is woken finds it set.
        self._is_set = True
        self._woken.put(None)

    def clear(self) -> None:
        """Reset it. Only the one thread that waits may."""
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


_AGAIN_S = 0.01
_UNINTERRUPTED = ("llvmlite.", "numba.core.compiler_lock")


def deferred(number: int, frame: FrameType | None) -> bool:
    """Whether the handler of signal `number`, which interrupted `frame`, must not raise now; the signal comes again.

    While a kernel is compiled or loaded, LLVM calls back into Python. ctypes prints an exception that is raised there
    and drops it: the signal would have no effect, and LLVM, without the answer it called for, ends the process by
    SIGSEGV. Raised while numba takes or gives back its lock, it leaves the lock taken, and the process never ends:
    other threads wait for it.
    """
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_UNINTERRUPTED):
            # Sent again by another thread, so that this one can return to LLVM first.
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()
            return True
        frame = frame.f_back
    return False


class SignalHandler:
    """While entered, the first signal calls `on_signal`. Has no effect outside the main thread.

    A second signal has its previous effect, so that a run that hangs can still be ended.
    """

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
