"""The gate before a service: who may not come in is told so at once, before the message is read or anything queued.

How grpc hands over a call (grpc/_server.py, 1.85): one thread takes every call from the completion queue; for each it
asks the handlers in order (`GenericRpcHandler.service`, which sees method and metadata) and then calls `submit` of a
thread pool, whose queue has no bound. The message is read in the pool. So `service` here is the last moment at which
a call costs nothing: it answers with the method's handler, or with a `_Refusal` in its place. A refusal takes a
request stream, so that grpc does not wait for the message, and its pool runs it right there, in grpc's own thread.
(`maximum_concurrent_rpcs` of grpc counts health checks too, and can tell nobody when to come back.)

Nothing here computes, and nothing here knows what a service does. Health alone stands outside the gate.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import grpc
import structlog

from server.errors import Ended, worth_repeating
from server.rpc.security import Guard
from server.telemetry.families import REFUSED
from server.telemetry.meter import Meter

T = TypeVar("T")

PLACES_A_THREAD = 32
"""256 places with 8 threads: some 50 ms of work, so that a short stall of the machine refuses nobody."""
RETRY_AFTER_MS = (20, 100)
"""A refused caller is asked to wait for so long; drawn at random, so that they do not come back all at once."""
DRAWS = 16


class Gate(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """One service's handlers behind the gate. `service` is called by grpc's one thread."""

    def __init__(
        self,
        handlers: grpc.GenericRpcHandler[Any, Any],
        pool: BoundedPool,
        meter: Meter,
        guard: Guard | None = None,
        own_guards: Mapping[str, Guard] = MappingProxyType({}),
    ) -> None:
        """`guard` checks tokens before the load is looked at; None lets everybody in.

        own_guards: by full name, the methods that have a guard of their own instead.
        """
        self._handlers = handlers
        self._pool = pool
        self._meter = meter
        self._guard = guard
        self._own_guards = own_guards
        self._overloaded = [_Refusal(_overload(pool.places)).handler() for _ in range(DRAWS)]

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, or one that refuses; None for a method of another service."""
        handler = self._handlers.service(details)
        if handler is None:
            return None
        guard = self._own_guards.get(details.method, self._guard)
        if guard is not None:
            refused = guard.refusal(details.invocation_metadata)
            if refused is not None:
                self._meter.count(REFUSED, _name(details.method), refused.reason)
                return _Refusal(Ended(refused.code, refused.message)).handler()
        if self._pool.is_full():
            self._meter.count(REFUSED, _name(details.method), "overload")
            return random.choice(self._overloaded)
        return handler


class _RunAtOnce(ThreadPoolExecutor):
    """A pool for what takes microseconds: `submit` runs it and returns when it has ended."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn` in the caller's thread. What it raises is in the Future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Refusal:
    """Ends a call with a status, without reading its message."""

    experimental_thread_pool = _RunAtOnce(max_workers=1)

    def __init__(self, status: grpc.Status) -> None:
        self._status = status

    def __call__(self, requests: Iterator[Any], context: grpc.ServicerContext) -> NoReturn:
        """The behaviour that grpc calls."""
        context.abort_with_status(self._status)

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        """As grpc takes it."""
        return grpc.stream_unary_rpc_method_handler(self)


def _name(method: str) -> str:
    """A method's name without its service's."""
    return method.rpartition("/")[2]


def _overload(places: int) -> grpc.Status:
    after_ms = random.randint(*RETRY_AFTER_MS)
    message = f"this worker has {places} calls at once, which is its limit; try again in {after_ms} ms"
    return worth_repeating(grpc.StatusCode.RESOURCE_EXHAUSTED, message, after_ms)


# --- The thread pools that grpc hands calls to: one that gives up a call whose message does not come, one
# that is bounded ---
#
# grpc gives a call its thread before the message is there, and the thread waits for it without end. So as
# many callers as there are threads, each of which begins a call and sends nothing, would stop a service: by
# malice, or since their network broke at that moment. A pool here looks each second at the calls that have
# had a thread for long, and cancels those that still wait for their message. What it looks at (the arguments
# of `submit`, the state's `due`) is grpc's own affair; a test will say when it has changed. Nothing here
# knows what a call does.


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
