"""Server reflection, in both versions of its protocol, behind a gate and on threads of its own.

A tool may keep a reflection stream open for hours, and each open stream holds a thread: on the threads that rank, a
few tools would stop the server. Here a stream that is open for 10 s and has no request is cancelled (`server.pools`),
and one more than PLACES is refused. grpcio-reflection has v1alpha alone; v1 has the same messages under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from server.errors import InvalidRequest, abort, readable
from server.gate import Gate
from server.metrics.meter import Meter
from server.pools import BoundedPool
from server.security.tokens import Guard

SERVICES = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
THREADS = 4
PLACES = 16


def reflection_gates(services: Iterable[str], meter: Meter, guard: Guard | None) -> list[Gate]:
    """What a grpc server is given to tell of `services` and of reflection itself."""
    servicer = reflection.ReflectionServicer(service_names=(*services, *SERVICES))
    pool = BoundedPool(THREADS, PLACES, "reflection")

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
