"""Bytes that are no message, to every method of every service: the caller's fault, and the message is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ctr.v1 import admin_pb2
from server.rpc import admin_service as admin_port
from server.settings import Settings
from server.telemetry.status import SupervisorStatus
from tests.matrix import examples
from tests.server import shop
from tests.server.one_process import Server

ADMIN = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["ModelAdminService"].methods]
METHODS = {
    "/ctr.v1.RankingService/Rank": "ctr.v1.RankRequest",
    "/ctr.v1.RankingService/Explain": "ctr.v1.ExplainRequest",
    "/ctr.v1.FeedbackService/Report": "ctr.v1.ReportRequest",
    "/grpc.health.v1.Health/Check": "grpc.health.v1.HealthCheckRequest",
    "/grpc.health.v1.Health/Watch": "grpc.health.v1.HealthCheckRequest",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "grpc.reflection.v1alpha.ServerReflectionRequest",
    **{f"/ctr.v1.ModelAdminService/{name}": f"ctr.v1.{name}Request" for name in ADMIN},
}
OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}

Ask = Callable[[str, bytes], tuple[grpc.StatusCode, str]]


class Idle:
    """A server without models, administered."""

    def status(self) -> SupervisorStatus:
        return SupervisorStatus("", begun=False, draining=False, models=(), workers=())

    def experiment(self, model: str) -> Any:
        raise LookupError(model)

    def look_now(self, model: str, timeout_s: float) -> bool:
        raise LookupError(model)


@pytest.fixture
def ask(server: Server, store_url: str) -> Iterator[Ask]:
    """Sends bytes to a method; its status and message. A stream is read up to its first answer."""
    admin = admin_port.AdminPort(Idle(), Settings((shop.NAME,), store_url, admin_port=0))
    admin.start()
    with (
        grpc.insecure_channel(server.address) as ranking,
        grpc.insecure_channel(admin.address) as administered,
    ):

        def asked(method: str, message: bytes) -> tuple[grpc.StatusCode, str]:
            channel = administered if "Admin" in method else ranking
            call: Any = channel.stream_stream(method)(iter([message]), timeout=20)  # type: ignore[call-arg]
            try:
                next(call)
                call.cancel()
            except grpc.RpcError as error:
                return error.code(), str(error.details())
            return grpc.StatusCode.OK, ""

        yield asked
    admin.stop()


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x0b" * 200], ids=["tag", "cut", "groups"])
def test_bytes_that_are_no_message_are_invalid_and_the_message_is_named(ask: Ask, message: bytes) -> None:
    for method, name in METHODS.items():
        expected = f"request: not a {name}, or a text in it is not UTF-8"
        assert ask(method, message) == (grpc.StatusCode.INVALID_ARGUMENT, expected), method


def extension(number: int) -> bytes:
    """A reflection request for an extension of a message that there is."""
    request = reflection_pb2.ServerReflectionRequest()
    request.file_containing_extension.containing_type = "ctr.v1.RankRequest"
    request.file_containing_extension.extension_number = number
    return request.SerializeToString()


@settings(examples(12), suppress_health_check=list(HealthCheck))
@given(message=st.binary(max_size=40))
@example(b"")
@example(b"\x0a\x01\xff")
@example(extension(-1))
@example(extension(2**31 - 1))
def test_any_bytes_are_answered_or_the_callers_fault(ask: Ask, message: bytes) -> None:
    for method in METHODS:
        code, said = ask(method, message)
        assert code not in OURS, (method, said)
