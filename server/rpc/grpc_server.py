"""The grpc server of a worker, with health and reflection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from model_store.errors import ServerError
from server.errors import InvalidRequest, abort, readable
from server.rpc.feedback_service import SERVICE as FEEDBACK_SERVICE
from server.rpc.gate import PLACES_A_THREAD, BoundedPool, Gate, PatientPool
from server.rpc.ranking_service import SERVICE
from server.rpc.security import ROLES, Guard, Tokens
from server.telemetry.families import IN_PROGRESS, PLACES
from server.telemetry.http import address_of
from server.telemetry.meter import Meter

EXPLAIN = f"/{SERVICE}/Explain"
MAX_REQUEST_BYTES = 16 << 20
MAX_STREAMS = 1000
"""Calls at once on one connection, of all services together; a client holds back what is more."""
KEEPALIVE_MS = 60_000
"""A connection that is silent for so long is asked whether anybody is there; else its calls would wait for hours."""


class Health(health.HealthServicer):
    """Health whose Check has a thread of its own too, so that it answers while all others are busy.

    One status, for `""` and for each service alike.
    """

    def __init__(self) -> None:
        super().__init__(
            experimental_non_blocking=True, experimental_thread_pool=PatientPool(1, "health watch")
        )
        self.say(serving=False)

    def say(self, *, serving: bool) -> None:
        """Answer SERVING or NOT_SERVING from now on."""
        status = health_pb2.HealthCheckResponse.ServingStatus
        for service in ("", SERVICE, FEEDBACK_SERVICE):
            self.set(service, status.SERVING if serving else status.NOT_SERVING)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a grpc server is given."""
        read, write = (
            readable(health_pb2.HealthCheckRequest),
            health_pb2.HealthCheckResponse.SerializeToString,
        )
        check = grpc.unary_unary_rpc_method_handler(self.Check, read, write)
        watch = grpc.unary_stream_rpc_method_handler(self.Watch, read, write)
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check, "Watch": watch})

    def Check(
        self, request: health_pb2.HealthCheckRequest | InvalidRequest, context: grpc.ServicerContext
    ) -> Any:
        """The status of one service."""
        if isinstance(request, InvalidRequest):
            abort(context, request, "")
        return super().Check(request, context)

    def Watch(
        self,
        request: health_pb2.HealthCheckRequest | InvalidRequest,
        context: grpc.ServicerContext,
        send_response_callback: Any = None,
    ) -> Any:
        """The status of one service, and each that follows."""
        if isinstance(request, InvalidRequest):
            abort(context, request, "")
        return super().Watch(request, context, send_response_callback)

    Check.experimental_thread_pool = PatientPool(2, "health")  # type: ignore[attr-defined]


def grpc_server(
    ranking: grpc.GenericRpcHandler[Any, Any],
    health_servicer: Health,
    threads: int,
    *,
    max_concurrency: int = 0,
    meter: Meter | None = None,
    tokens: Tokens | None = None,
    feedback: Gate | None = None,
    shares_port: bool = False,
    connection_age_s: float = 0.0,
) -> grpc.Server:
    """The grpc server, not yet listening. `ranking` stands first: grpc asks its handlers in order for each call.

    max_concurrency: calls at once, running or waiting (0: 32 a thread); more are refused. tokens: who may rank, explain
    and reflect; None lets everybody. feedback: the other service's gate. shares_port: others may listen on the same
    port; without it a second server there is an error. connection_age_s: when a connection is asked to be made anew
    (0: never); calls on it end in peace.
    """
    options: list[tuple[str, int]] = [
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 3),
    ]
    if connection_age_s:
        options.append(("grpc.max_connection_age_ms", round(1000 * connection_age_s)))
    pool = BoundedPool(threads, max_concurrency or PLACES_A_THREAD * threads)
    meter = meter or Meter()
    meter.gauge(IN_PROGRESS, read=pool.in_progress)
    meter.set(PLACES, value=pool.places)
    rank, own = (tokens.guard("rank"), {EXPLAIN: tokens.guard("explain")}) if tokens else (None, {})
    handlers: list[grpc.GenericRpcHandler[Any, Any]] = [Gate(ranking, pool, meter, rank, own)]
    services = [SERVICE, health.SERVICE_NAME]
    if feedback is not None:
        handlers.append(feedback)
        services.append(FEEDBACK_SERVICE)
    handlers.append(health_servicer.handlers())
    handlers += reflection_gates(services, meter, tokens.guard(*ROLES) if tokens else None)
    return grpc.server(pool, handlers=handlers, options=options)


def listen(
    server: grpc.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Listen, with TLS if there are credentials, and return the address. Raises ServerError if the port is taken."""
    wanted = address_of(host, port)
    try:
        bound = (
            server.add_secure_port(wanted, credentials) if credentials else server.add_insecure_port(wanted)
        )
    except RuntimeError:
        bound = 0
    if not bound:
        raise ServerError(taken(wanted))
    return address_of(host, bound)


def taken(address: str) -> str:
    """What to say where nobody can listen on `address`."""
    return (
        f"cannot listen on {address}: is the port taken? --port 0 chooses a free one; "
        "or is the host no address of this machine?"
    )


# --- Server reflection, in both versions of its protocol, behind a gate and on threads of its own ---
#
# A tool may keep a reflection stream open for hours, and each open stream holds a thread: on the threads that
# rank, a few tools would stop the server. Here a stream that is open for 10 s and has no request is cancelled
# (`server.rpc.gate`), and one more than PLACES is refused. grpcio-reflection has v1alpha alone; v1 has the
# same messages under another name.


SERVICES = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
THREADS = 4
REFLECTION_PLACES = 16


def reflection_gates(services: Iterable[str], meter: Meter, guard: Guard | None) -> list[Gate]:
    """What a grpc server is given to tell of `services` and of reflection itself."""
    servicer = reflection.ReflectionServicer(service_names=(*services, *SERVICES))
    pool = BoundedPool(THREADS, REFLECTION_PLACES, "reflection")

    def info(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        return servicer.ServerReflectionInfo(_readable(requests, context), context)

    info.experimental_thread_pool = pool  # type: ignore[attr-defined]
    handler = grpc.stream_stream_rpc_method_handler(
        info,
        readable(reflection_pb2.ServerReflectionRequest),
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    return [
        Gate(grpc.method_handlers_generic_handler(service, methods), pool, meter, guard)
        for service in SERVICES
    ]


def _readable(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    for request in requests:
        if isinstance(request, InvalidRequest):
            abort(context, request, "")
        yield request
