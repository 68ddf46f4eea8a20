"""The least service there is, behind the gate: what comes in goes out. For tests of the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from ftrie.api.access import OPEN, Access
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health

METHOD = "/test.Echo/Echo"


def handlers() -> grpc.GenericRpcHandler[Any, Any]:
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    return grpc.method_handlers_generic_handler("test.Echo", {"Echo": echo})


@contextmanager
def serving(
    service: grpc.GenericRpcHandler[Any, Any] | None = None,
    *,
    health: Health | None = None,
    credentials: grpc.ServerCredentials | None = None,
    threads: int = 2,
    **more: Any,
) -> Iterator[str]:
    """A server of an echo, or of `service`, that listens on this machine; yields its address."""
    if health is None:
        health = Health()
        health.say(serving=True)
    server = grpc_server(service or handlers(), health, threads, **more)
    address = listen(server, "127.0.0.1", 0, credentials)
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait()


def outcome(address: str, access: Access = OPEN) -> grpc.StatusCode:
    with access.channel(address) as channel:
        call: Callable[..., bytes] = channel.unary_unary(METHOD)
        try:
            assert call(b"hello", timeout=20, metadata=access.metadata()) == b"hello"
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK
