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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import grpc

from server.metrics.families import REFUSED
from server.metrics.meter import Meter
from server.pools import BoundedPool
from server.retry_info import Ended, worth_repeating
from server.security.tokens import Guard

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
