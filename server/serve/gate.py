"""What calls pass before a service: the gate that refuses calls, and the bounded thread pools that run them.

How grpc 1.85 starts a call (grpc/_server.py): one thread takes every call from the completion queue, asks the handlers
in order (`GenericRpcHandler.service`, which sees method and metadata) and calls `submit` of a thread pool, whose queue
is unbounded; the pool asks for the message. So `Gate.service` is the last point where refusing a call costs nothing:
it returns the method's handler, or a `_Refusal` in its place. A refusal is a request-streaming handler, so that grpc
does not wait for the message, and its pool runs it in grpc's own thread. (grpc's `maximum_concurrent_rpcs` would also
count health checks, and cannot tell callers when to retry.)

Health checks have no gate.
"""

from __future__ import annotations

import inspect
import math
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import _server as grpc_server

from server.errors import Ended, ended, readable
from server.serve.security import Guard
from server.telemetry.meter import Meter, declare

T = TypeVar("T")

REFUSED = declare(
    "ftrie_refused_total",
    ("method", "reason"),
    "calls refused before their message was read: `method` is `Rank`, `Explain`, `Report` or `ServerReflectionInfo`, "
    "`reason` is `overload`, `no_message` (it did not arrive in time), `unauthenticated` or `forbidden`",
)
cygrpc: Any = getattr(grpc_server, "cygrpc", None)
PLACES_A_THREAD = 32
"""256 places with 8 threads: about 50 ms of work, so that a short stall of the machine refuses no call."""
RETRY_AFTER_MS = (20, 100)
"""How long a refused caller should wait; drawn at random, so that callers do not all come back at once."""
DRAWS = 16
MESSAGE_WITHIN_S = 10.0
"""How long a call may hold its place, or a stream its thread, before its message has arrived: 16 MiB at 13 Mbit/s."""
WAITING_A_PLACE = 4
"""Calls whose message has not arrived, for each place. They hold none; beyond that number the one that has waited
longest gives way, since a message that is sent arrives within milliseconds."""
LOOK_EVERY_S = 1.0
MOST_TOGETHER = 8
"""How many waiting calls a thread takes at once, if they may share work."""
_AWAITED = "receive_message"  # in the call state's `due` until the message has arrived

log = structlog.get_logger(__name__)

Batching = Callable[[Sequence["UnaryCall"]], Iterator["UnaryCall"]]
"""Takes the calls that a thread has taken together and yields each once, in the order to answer them: work that calls
share is done before the first of them is yielded. A call is answered before the next one is asked for."""


class Gate(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """One service's handlers behind the gate. grpc calls `service` in its one thread."""

    def __init__(
        self,
        handlers: grpc.GenericRpcHandler[Any, Any],
        pool: CallPool,
        meter: Meter,
        guard: Guard | None = None,
        own_guards: Mapping[str, Guard] = MappingProxyType({}),
    ) -> None:
        """`guard` checks tokens, before the load is checked; None admits every caller.

        own_guards: guards of single methods, by full name, in place of `guard`.
        """
        self._handlers = handlers
        self._pool = pool
        self._meter = meter
        self._guard = guard
        self._own_guards = own_guards
        pool.on_silent = lambda method: meter.count(REFUSED, _name(method), "no_message")
        # Made once: grpc's one thread refuses calls when it is busiest.
        self._overloaded = [_Refusal(_overload(pool.places)).handler() for _ in range(DRAWS)]

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, or one that refuses the call; None for a method of another service."""
        handler = self._handlers.service(details)
        if handler is None:
            return None
        guard = self._own_guards.get(details.method, self._guard)
        if guard is not None:
            refused = guard.refusal(details.invocation_metadata)
            if refused is not None:
                self._meter.count(REFUSED, _name(details.method), refused.label)
                return _Refusal(ended(refused.code, refused.reason, refused.message)).handler()
        if self._pool.is_full():
            self._meter.count(REFUSED, _name(details.method), "overload")
            return random.choice(self._overloaded)
        return handler


def handlers_of(
    service: ServiceDescriptor, answers: object, pool: CallPool | None = None
) -> grpc.GenericRpcHandler[Any, Any]:
    """The handlers of a service of the wire: `answers` has a method of the name of each of its methods.

    A message that cannot be read is given to it as an `InvalidRequest`. pool: runs the calls; None: that of the server.
    """

    def behaviour(answer: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[..., Any]:
        def call(message: Any, context: grpc.ServicerContext) -> Any:  # a method cannot have attributes
            return answer(message, context)

        call.experimental_thread_pool = pool  # type: ignore[attr-defined]
        return call

    return grpc.method_handlers_generic_handler(
        service.full_name,
        {
            method.name: grpc.unary_unary_rpc_method_handler(
                behaviour(getattr(answers, method.name)),
                request_deserializer=readable(GetMessageClass(method.input_type)),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
        },
    )


def path_of(service: ServiceDescriptor, method: str) -> str:
    """The full name of one of a service's methods, as calls have it. Raises KeyError if it has none of this name."""
    return f"/{service.full_name}/{service.methods_by_name[method].name}"


class _RunAtOnce(ThreadPoolExecutor):
    """A pool for work of microseconds: `submit` runs it before it returns."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn` in the caller's thread. An exception is stored in the Future."""
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
        """The handler for grpc."""
        return grpc.stream_unary_rpc_method_handler(self)


def _name(method: str) -> str:
    """A method's name without its service."""
    return method.rpartition("/")[2]


def _overload(places: float) -> Ended:
    after_ms = random.randint(*RETRY_AFTER_MS)
    message = f"this worker has {places} calls in progress, its limit; try again in {after_ms} ms"
    return ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", message, retry_after_ms=after_ms)


@contextmanager
def _without_thread(pool: str) -> Iterator[None]:
    """Go on, and log it, where no thread can start."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        log.error("a thread cannot be started", pool=pool, error=str(error))


class CallPool(ThreadPoolExecutor):
    """Threads for the calls of one service, and places: calls running or waiting for a thread. Cancels silent calls.

    grpc would give a call its thread before the message has arrived: the thread asks for the message, sleeps, and is
    woken again. Here grpc's own thread asks for it, and a unary call is queued once its message is there. That saves a
    sleep and a wake-up a call, and callers who send nothing hold no thread. A stream takes a thread at once. Each
    second the pool cancels the calls that have waited too long for their message, since those of streams hold a thread.

    A unary call takes a place once its message is there: callers who send none take no place from others. The caller of
    `submit` checks `is_full` first. With `batching`, a thread takes up to MOST_TOGETHER calls if they are queued and
    no other thread is idle for them. It never waits for more.

    It relies on grpc's internals (the arguments of `submit`, the state's `due`); tests fail when they change.
    Thread safety: `submit` from any.
    """

    def __init__(
        self, threads: int, name: str, places: float = math.inf, batching: Batching | None = None
    ) -> None:
        """batching: shares work between calls that one thread has taken; None takes one call at a time."""
        super().__init__(max_workers=threads, thread_name_prefix=name)
        self.on_silent: Callable[[str], None] = lambda method: None
        """Called with the method of a call that is cancelled since its message has not arrived."""
        self.places = places
        # An entry for each call: append and pop are atomic, a counter's += is not.
        self._begun: deque[None] = deque()
        self._most_waiting = WAITING_A_PLACE * places
        self._waiting: dict[int, tuple[float, Any, Any]] = {}
        """Streams by thread, unary calls by the id of their state: since when, grpc's event and state. Each operation
        on it is one atomic dict operation."""
        self._name = name
        self._batching = batching
        self._ready: SimpleQueue[Any] = SimpleQueue()  # UnaryCalls, _Errands, None
        self._idle: deque[None] = deque()
        self._callers = 0
        self._watcher: threading.Thread | None = None
        self._starting = threading.Lock()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Same as in ThreadPoolExecutor; of a unary call that grpc submits, the Future says nothing."""
        # No exception may leave here, where grpc's one thread would end with it: without memory for a thread, what is
        # submitted waits for the threads there are, or for the next call.
        with _without_thread(self._name):
            if self._watcher is None:
                self._start_watcher()
        if _ASKS and len(args) == _UNARY_ARGUMENTS and getattr(args[4], "__name__", "") == _WAITS_FOR_MESSAGE:
            self._ask_for_message(UnaryCall(self, fn, *args))
            return _ENDED
        self.begins()
        with _without_thread(self._name):
            return super().submit(self._run, fn, args, kwargs)
        return _ENDED

    def run_soon(self, work: Callable[[], None]) -> None:
        """Run it where unary requests are answered, in turn with them. From any thread."""
        if not _ASKS:
            self.submit(work)
            return
        self._start_caller()
        self._ready.put(_Errand(work))

    def _start_watcher(self) -> None:
        with self._starting:
            if self._watcher is None:
                here, name = weakref.ref(self), f"{self._name} calls"
                watcher = threading.Thread(target=_watch, args=(here,), name=name, daemon=True)
                watcher.start()
                self._watcher = watcher

    def _ask_for_message(self, call: UnaryCall) -> None:
        """Have the call queued when its message arrives. In grpc's thread, which holds the state's lock."""
        state, waiting, ready = call.state, self._waiting, self._ready
        if self._callers < self._max_workers:
            self._start_caller()
        arrived = grpc_server._receive_message(state, call.event.call, call.deserializer)

        def on_message(event: Any) -> Any:
            ended = arrived(event)
            waiting.pop(id(state), None)
            # The place is taken before the call is queued, since a thread may end the call, and give it back, at once.
            call.begins()
            ready.put(call)
            return ended

        waiting[id(state)] = time.monotonic(), call.event, state
        if len(waiting) > self._most_waiting:
            # A copy, made in one operation: the pool's threads change the dict meanwhile.
            longest, (_, event, _) = min(list(waiting.items()), key=lambda each: each[1][0])
            del waiting[longest]
            self._cancel(event)
        call.event.call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), on_message)
        # As grpc does itself: the state is not finished before the message, or the call's end, has arrived.
        state.due.add(_AWAITED)

    def _start_caller(self) -> None:
        """Start one more thread, if there may be more."""
        with self._starting, _without_thread(self._name):
            if self._callers < self._max_workers:
                name = f"{self._name}_{self._callers}"
                answers = self._ready, self._idle, self._batching
                threading.Thread(target=_answer_calls, args=answers, name=name, daemon=True).start()
                # Threads hold the queue and not the pool: once that is gone, each takes the None that ends it.
                weakref.finalize(self, self._ready.put, None)
                self._callers += 1

    def _run(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        thread = threading.get_ident()
        if len(args) > 2:
            self._waiting[thread] = time.monotonic(), args[1], args[2]
        try:
            return fn(*args, **kwargs)
        finally:
            self._waiting.pop(thread, None)
            self.ended()

    def in_progress(self) -> int:
        """The number of calls that were submitted and have not ended."""
        return len(self._begun)

    def is_full(self) -> bool:
        """Whether the next call must be refused."""
        return len(self._begun) >= self.places

    def begins(self) -> None:
        """A call takes a place. One that its caller cancels has it until a thread drops it."""
        self._begun.append(None)

    def ended(self) -> None:
        """A call has left its thread and its place."""
        self._begun.pop()

    def cancel_stuck(self) -> None:
        """Cancel the calls that have waited too long for their message."""
        before, waiting = time.monotonic() - MESSAGE_WITHIN_S, list(self._waiting.values())
        stuck = [
            event
            for since, event, state in waiting
            if since < before and _AWAITED in getattr(state, "due", ())
        ]
        for event in stuck:
            self._cancel(event)
        if stuck:
            log.warning("no request received in time", calls=len(stuck), waited_s=MESSAGE_WITHIN_S)

    def _cancel(self, event: Any) -> None:
        self.on_silent(event.call_details.method.decode())
        event.call.cancel()


_UNARY_ARGUMENTS = 7
_FUNCTIONS = {
    "_abort": ["state", "call", "code", "details"],
    "_is_rpc_state_active": ["state"],
    "_receive_message": ["state", "call", "request_deserializer"],
    "_unary_request": ["rpc_event", "state", "request_deserializer"],
}
_ASKS = hasattr(cygrpc, "ReceiveMessageOperation") and all(
    hasattr(grpc_server, name) and [*inspect.signature(getattr(grpc_server, name)).parameters] == parameters
    for name, parameters in _FUNCTIONS.items()
)
"""Whether this grpc has the functions used here; else a unary call waits for its message in a thread, as a stream."""
_WAITS_FOR_MESSAGE = "unary_request"
"""The name of grpc's function that asks for a unary call's message and waits for it."""
_ENDED: Future[Any] = Future()
_ENDED.set_result(None)


class _Errand(NamedTuple):
    """Work that waits among the calls."""

    run: Callable[[], None]


class UnaryCall:
    """The arguments that grpc submits for a unary call; `deserializer` reads its message. For one thread at a time."""

    __slots__ = (
        *("_answer", "_behaviour", "_counts", "_enter", "_pool", "_serializer"),
        *("deserializer", "event", "state"),
    )

    def __init__(
        self,
        pool: CallPool,
        enter: Callable[..., Any],
        answer: Any,
        event: Any,
        state: Any,
        behaviour: Any,
        _: Any,
        deserializer: Any,
        serializer: Any,
    ) -> None:
        self._pool = pool
        self._enter, self._answer, self._behaviour, self._serializer = enter, answer, behaviour, serializer
        self.event, self.state, self.deserializer = event, state, deserializer
        self._counts = False

    def begins(self) -> None:
        """The call waits for a thread from now on: for a place too, unless it has ended without a message."""
        self._counts = self.state.request is not None
        if self._counts:
            self._pool.begins()

    @property
    def method(self) -> str:
        """The full name of the method."""
        name: bytes = self.event.call_details.method
        return name.decode()

    @property
    def message(self) -> Any:
        """The message that has arrived, or what was put in its place; None if the call is over."""
        return self.state.request

    @message.setter
    def message(self, message: Any) -> None:
        self.state.request = message

    def time_remaining(self) -> float:
        """Same as of grpc's context: seconds until the deadline, 0 once it has passed."""
        deadline: float = self.event.call_details.deadline
        return max(deadline - time.time(), 0.0)

    def run(self) -> None:
        """Answer the call. Its message has arrived, or it has ended."""
        functions = self._behaviour, self._message, self.deserializer, self._serializer
        try:
            self._enter(self._answer, self.event, self.state, *functions)
        finally:
            if self._counts:
                self._pool.ended()

    def _message(self) -> Any:
        """What grpc's `unary_request` returns once it has waited: the message, None if the call is over."""
        state = self.state
        with state.condition:
            if not grpc_server._is_rpc_state_active(state):
                return None
            request, state.request = state.request, None
            if request is None:
                method = self.event.call_details.method.decode()
                details = f'"{method}" requires exactly one request message.'
                grpc_server._abort(state, self.event.call, cygrpc.StatusCode.unimplemented, details.encode())
            return request


def _answer_calls(ready: SimpleQueue[UnaryCall | None], idle: deque[None], batching: Batching | None) -> None:
    """Answer calls whose messages have arrived until None is taken. Keeps no pool alive that has no call.

    idle: has an entry for each thread that waits for a call.
    """
    more = True
    while more:
        idle.append(None)
        call = ready.get()
        idle.pop()
        if call is None:
            return
        calls = [call]
        if batching is not None:
            more = _take_more(ready, len(idle), calls)
        if batching is None or len(calls) == 1:
            _answer(call)
        else:
            _answer_together(calls, batching)
        # Else the thread would hold this call in memory while it waits for the next one, and by it the pool.
        del call, calls


def _take_more(ready: SimpleQueue[UnaryCall | None], idle: int, calls: list[UnaryCall]) -> bool:
    """Add calls that wait, up to MOST_TOGETHER in all, but leave one to each idle thread; False if None was taken."""
    with suppress(Empty):
        for _ in range(min(MOST_TOGETHER - 1, ready.qsize() - idle)):
            call = ready.get_nowait()
            if call is None:
                return False
            calls.append(call)
    return True


def _answer_together(calls: Sequence[UnaryCall], batching: Batching) -> None:
    """Answer each of the calls, those that `batching` fails to yield last."""
    waiting = dict.fromkeys(calls)
    try:
        for call in batching(calls):
            del waiting[call]
            _answer(call)
    except Exception:  # which must not leave calls without an answer
        log.exception("calls that one thread took are answered one by one")
    for call in waiting:
        _answer(call)


def _answer(call: UnaryCall) -> None:
    try:
        call.run()
    except Exception:  # which ends this call, and must not end the thread
        log.exception("a call ended without an answer")


def _watch(pool: weakref.ref[CallPool]) -> None:
    """Cancel stuck calls each second until the pool is garbage-collected."""
    while True:
        time.sleep(LOOK_EVERY_S)
        alive = pool()
        if alive is None:
            return
        alive.cancel_stuck()
        # Else the pool would live through the sleep.
        del alive
