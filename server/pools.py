"""The thread pools that grpc hands calls to: one that gives up a call whose message does not come, one that is bounded.

grpc gives a call its thread before the message is there, and the thread waits for it without end. So as many callers
as there are threads, each of which begins a call and sends nothing, would stop a service: by malice, or since their
network broke at that moment. A pool here looks each second at the calls that have had a thread for long, and cancels
those that still wait for their message. What it looks at (the arguments of `submit`, the state's `due`) is grpc's own
affair; a test will say when it has changed. Nothing here knows what a call does.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

MESSAGE_WITHIN_S = 10.0
"""How long a call may hold a thread before its message is there: 16 MiB at 13 Mbit/s."""
LOOK_EVERY_S = 1.0
_AWAITED = "receive_message"  # in the state's `due` as long as the message is not there

_log = structlog.get_logger(__name__)


class PatientPool(ThreadPoolExecutor):
    """Threads for the calls of one service. Thread safety: `submit` from grpc's one thread."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(max_workers=threads, thread_name_prefix=name)
        self._running: dict[int, tuple[float, tuple[Any, ...]]] = {}
        """By thread: since when, and the arguments. Each operation on it is one atomic dict operation."""
        self._name = name
        self._looker: threading.Thread | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As of ThreadPoolExecutor."""
        if self._looker is None:
            here, name = weakref.ref(self), f"{self._name} calls"
            self._looker = threading.Thread(target=_look_at, args=(here,), name=name, daemon=True)
            self._looker.start()
        return super().submit(self._run, fn, args, kwargs)

    def _run(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        thread = threading.get_ident()
        self._running[thread] = (time.monotonic(), args)
        try:
            return fn(*args, **kwargs)
        finally:
            del self._running[thread]
            self._ended()

    def _ended(self) -> None:
        """A call has left its thread."""

    def give_up(self) -> None:
        """Cancel the calls whose message has not come for too long."""
        before = time.monotonic() - MESSAGE_WITHIN_S
        for since, args in list(self._running.values()):
            if since < before and len(args) > 2 and _AWAITED in getattr(args[2], "due", ()):
                _log.warning("a call brought no message, cancelled", waited_s=MESSAGE_WITHIN_S)
                args[1].call.cancel()


class BoundedPool(PatientPool):
    """Threads, and how many calls they have, running or waiting; who submits sees to it that `is_full` is heeded.

    Thread safety: `submit` from grpc's one thread; the rest from any. An append and a pop of a deque are atomic.
    """

    def __init__(self, threads: int, places: int, name: str = "rank") -> None:
        super().__init__(threads, name)
        self.places = places
        self._begun: deque[None] = deque()

    def in_progress(self) -> int:
        """Calls that were submitted and have not ended."""
        return len(self._begun)

    def is_full(self) -> bool:
        """Whether the next call must be refused."""
        return len(self._begun) >= self.places

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As of ThreadPoolExecutor. A call that its caller has given up is counted until a thread has dropped it."""
        self._begun.append(None)
        return super().submit(fn, *args, **kwargs)

    def _ended(self) -> None:
        self._begun.pop()


def _look_at(pool: weakref.ref[PatientPool]) -> None:
    """Until the pool is no more."""
    while True:
        time.sleep(LOOK_EVERY_S)
        there = pool()
        if there is None:
            return
        there.give_up()
        del there
