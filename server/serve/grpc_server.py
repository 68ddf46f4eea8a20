"""The grpc server of a worker: ranking, feedback, health and server reflection on one port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from model_store.errors import ServerError
from model_store.files import address_of, port_taken
from server.errors import InvalidRequest, abort, readable
from server.serve.feedback_service import SERVICE as FEEDBACK_SERVICE
from server.serve.gate import PLACES_A_THREAD, Batching, CallPool, Gate
from server.serve.health import SERVICE as HEALTH_SERVICE
from server.serve.health import Health
from server.serve.ranking_service import EXPLAIN, SERVICE
from server.serve.security import ROLES, Guard, Tokens
from server.telemetry.meter import Meter, declare

IN_PROGRESS = declare("ftrie_calls_in_progress", (), "calls in the workers at present, running or waiting")
PLACES = declare(
    "ftrie_places",
    (),
    "calls that the workers accept at once: `--max-concurrency` times the workers",
)
MAX_REQUEST_BYTES = 16 << 20
MAX_STREAMS = 1000
"""Concurrent calls on one connection, of all services together; clients queue further calls."""
KEEPALIVE_MS = 60_000
"""After this long without traffic a connection is probed; otherwise calls on a dead one would wait for hours."""
REFLECTION_SERVICES = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
"""grpcio-reflection has only v1alpha; v1 has the same messages under another name."""
REFLECTION_THREADS = 4
REFLECTION_PLACES = 16


def grpc_server(
    ranking: grpc.GenericRpcHandler[Any, Any],
    health: Health,
    threads: int,
    *,
    max_concurrency: int = 0,
    meter: Meter | None = None,
    tokens: Tokens | None = None,
    feedback: Gate | None = None,
    shares_port: bool = False,
    connection_age_s: float = 0.0,
    batching: Batching | None = None,
) -> grpc.Server:
    """The grpc server, not listening yet. `ranking` is first: grpc asks its handlers in order for each call.

    max_concurrency: calls in progress, running or waiting (0: 32 a thread); further ones are refused. tokens: of
    callers that may rank, explain and use reflection; None admits every caller. feedback: the feedback service.
    shares_port: other servers may listen on the same port; otherwise that is an error. connection_age_s: when clients
    are told to reconnect (0: never); calls in progress finish. batching: of `ranking`, see `CallPool`.
    """
    options: list[tuple[str, int]] = [
        # On by default in gRPC, by which a second server on the port would go unnoticed.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 3),
    ]
    if connection_age_s:
        options.append(("grpc.max_connection_age_ms", round(1000 * connection_age_s)))
    pool = CallPool(threads, "rank", max_concurrency or PLACES_A_THREAD * threads, batching)
    meter = meter or Meter()
    meter.gauge(IN_PROGRESS, read=pool.in_progress)
    meter.set(PLACES, value=pool.places)
    rank, own = (tokens.guard("rank"), {EXPLAIN: tokens.guard("explain")}) if tokens else (None, {})
    handlers: list[grpc.GenericRpcHandler[Any, Any]] = [Gate(ranking, pool, meter, rank, own)]
    services = [SERVICE, HEALTH_SERVICE]
    if feedback is not None:
        handlers.append(feedback)
        services.append(FEEDBACK_SERVICE)
    # Without a gate: whether this server is well must be answered when all places are taken.
    handlers.append(health.handlers())
    handlers += reflection_gates(services, meter, tokens.guard(*ROLES) if tokens else None)
    return grpc.server(pool, handlers=handlers, options=options)


def listen(
    server: grpc.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Listen, with TLS if there are credentials; returns the address. Raises ServerError if the port is taken."""
    wanted = address_of(host, port)
    try:
        bound = (
            server.add_secure_port(wanted, credentials) if credentials else server.add_insecure_port(wanted)
        )
    # grpcio raises where it cannot bind; earlier releases returned port 0.
    except RuntimeError:
        bound = 0
    if not bound:
        raise ServerError(taken(wanted))
    return address_of(host, bound)


def taken(address: str) -> str:
    """The error text for an `address` that cannot be listened on."""
    port = int(address.rpartition(":")[2])
    return f"cannot listen on {address}: {port_taken(port)}; --port 0 chooses a free one"


def reflection_gates(services: Iterable[str], meter: Meter, guard: Guard | None) -> list[Gate]:
    """Gates and handlers of server reflection, for `services` and itself, in both versions of its protocol.

    A tool may keep a reflection stream open for hours, and each open stream holds a thread, so that a few tools could
    stop a server whose ranking threads they shared. Streams without a request for 10 s are cancelled (`CallPool`).
    """
    servicer = reflection.ReflectionServicer(service_names=(*services, *REFLECTION_SERVICES))
    pool = CallPool(REFLECTION_THREADS, "reflection", REFLECTION_PLACES)

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
        for service in REFLECTION_SERVICES
    ]


def _readable(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    for request in requests:
        if isinstance(request, InvalidRequest):
            abort(context, request)
        yield request
