"""Server reflection, in both versions of its protocol and on threads of its own. What is served is elsewhere.

A tool may keep a reflection stream open for hours, and each open stream holds a thread: on the threads that rank, a
few tools would stop the server. grpcio-reflection has v1alpha alone; v1 has the same messages under another name.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

SERVICES = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
STREAMS = 4


def add_reflection(server: grpc.Server, services: Iterable[str]) -> None:
    """Let `server` tell of `services` and of reflection itself, to at most STREAMS callers at a time."""
    servicer = reflection.ReflectionServicer(service_names=(*services, *SERVICES))
    streams = partial(servicer.ServerReflectionInfo)
    streams.experimental_thread_pool = ThreadPoolExecutor(  # type: ignore[attr-defined]
        max_workers=STREAMS, thread_name_prefix="reflection"
    )
    handler = grpc.stream_stream_rpc_method_handler(
        streams,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for service in SERVICES:
        methods = {"ServerReflectionInfo": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
