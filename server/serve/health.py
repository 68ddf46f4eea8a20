"""The health service, grpc.health.v1: Check and Watch, answered while all other threads are busy.

A server that serves some of its models is SERVING: the service `ctr.v1.RankingService/MODEL` is the status of one.

grpc_health's own servicer (1.85) is not used for Watch. It sends a status under a lock that it also takes when a watch
ends, in grpc's one thread, and no send returns without that thread: a watch that began in the moment in which another
ended stopped the server for good. Here the thread of grpc takes no lock, and one thread sends all statuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from server.errors import InvalidRequest, abort, readable
from server.serve import gate
from server.serve.feedback_service import SERVICE as FEEDBACK_SERVICE
from server.serve.gate import CallPool
from server.serve.ranking_service import SERVICE as RANKING_SERVICE

SERVICE = health.SERVICE_NAME
SERVICES = ("", RANKING_SERVICE, FEEDBACK_SERVICE)
CHECK_THREADS = 2

_STATUS = health_pb2.HealthCheckResponse.ServingStatus


class Health:
    """One status for all services, and one for each model. Thread safety: any method, any thread."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        self._serving = self._drains = False
        self._served = dict.fromkeys((f"{RANKING_SERVICE}/{model}" for model in models), False)
        self._watches: dict[int, _Watch] = {}
        """Each operation on it is one atomic dict operation."""
        self._checks = CallPool(CHECK_THREADS, "health")
        self._sender = _Sender()

    def say(self, *, serving: bool, served: Iterable[str] = ()) -> None:
        """Set the status, SERVING or NOT_SERVING, and send it to all watches. Returns before it is sent.

        served: models that are served from now on, whatever the status of the server.
        """
        self._serving = serving
        self._served |= dict.fromkeys((f"{RANKING_SERVICE}/{model}" for model in served), True)
        # In the sender's thread: a watch that takes nothing must not hold up the thread that changes the status.
        self._sender.run_soon(self._tell_all)

    def drain(self) -> None:
        """NOT_SERVING from now on, whatever `say` sets."""
        self._drains = True
        self.say(serving=False)

    def status(self, service: str) -> int:
        """The status of a service, a value of `ServingStatus`."""
        serving = self._serving if service in SERVICES else self._served.get(service)
        if serving is None:
            return int(_STATUS.SERVICE_UNKNOWN)
        return int(_STATUS.SERVING if serving and not self._drains else _STATUS.NOT_SERVING)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers for a grpc server."""

        def check(
            request: health_pb2.HealthCheckRequest | InvalidRequest, context: grpc.ServicerContext
        ) -> Any:
            if isinstance(request, InvalidRequest):
                abort(context, request)
            status = self.status(request.service)
            if status == _STATUS.SERVICE_UNKNOWN:
                # The protocol: Check of an unknown service is NOT_FOUND, Watch gets SERVICE_UNKNOWN and goes on.
                context.set_code(grpc.StatusCode.NOT_FOUND)
                return health_pb2.HealthCheckResponse()
            return health_pb2.HealthCheckResponse(status=status)

        def watch(
            request: health_pb2.HealthCheckRequest | InvalidRequest,
            context: grpc.ServicerContext,
            send_response_callback: Callable[[Any], None],
        ) -> None:
            if isinstance(request, InvalidRequest):
                abort(context, request)
            began = _Watch(request.service, context, send_response_callback)
            self._watches[id(began)] = began
            # The callback runs in grpc's one thread: it must wait for nothing. False: the call has ended already.
            if not context.add_callback(lambda: self._forget(began)):
                self._forget(began)
            self._tell(began)

        check.experimental_thread_pool = self._checks  # type: ignore[attr-defined]
        watch.experimental_thread_pool = self._sender  # type: ignore[attr-defined]
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        read, write = (
            readable(health_pb2.HealthCheckRequest),
            health_pb2.HealthCheckResponse.SerializeToString,
        )
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(check, read, write),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, read, write),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _forget(self, watch: _Watch) -> None:
        self._watches.pop(id(watch), None)

    def _tell_all(self) -> None:
        for watch in list(self._watches.values()):
            self._tell(watch)

    def _tell(self, watch: _Watch) -> None:
        """Send the status unless it was sent last. In the sender's thread alone: the last sent is the newest."""
        status = self.status(watch.service)
        if status != watch.sent:
            watch.sent = status
            self._sender.send(watch, health_pb2.HealthCheckResponse(status=status))


class _Watch:
    """A call that gets a status and each change of it."""

    def __init__(self, service: str, context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
        self.service, self.context, self.send = service, context, send
        self.sent: int | None = None


class _Sender(CallPool):
    """The thread that sends statuses. A watch that takes none for too long is cancelled: all others wait for it."""

    def __init__(self) -> None:
        super().__init__(1, "health watch")
        self._sending: tuple[float, _Watch] | None = None

    def send(self, watch: _Watch, response: Any) -> None:
        """Returns when grpc has handed the message to the connection, or the call has ended."""
        self._sending = (time.monotonic(), watch)
        try:
            watch.send(response)
        finally:
            self._sending = None

    def cancel_stuck(self) -> None:
        """Besides what `CallPool` cancels: a send that lasts too long."""
        super().cancel_stuck()
        sending = self._sending
        if sending is not None and sending[0] < time.monotonic() - gate.MESSAGE_WITHIN_S:
            gate.log.warning(
                "a health watch takes no message, call cancelled", waited_s=gate.MESSAGE_WITHIN_S
            )
            sending[1].context.cancel()  # type: ignore[no-untyped-call]
