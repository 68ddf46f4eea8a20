"""How a call ends that is worth repeating: with google.rpc.RetryInfo, which says when. Nothing here decides what is."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status


@dataclass(frozen=True)
class Ended(grpc.Status):
    """How a call ends."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()


def worth_repeating(code: grpc.StatusCode, message: str, after_ms: int) -> Ended:
    """A status that says when to come back, for people, for google.rpc and for grpc's own retries."""
    status = Status(code=code.value[0], message=message)
    delay = Duration()
    delay.FromMilliseconds(after_ms)
    status.details.add().Pack(RetryInfo(retry_delay=delay))
    details = rpc_status.to_status(status).trailing_metadata
    pushback = ("grpc-retry-pushback-ms", str(after_ms))
    return Ended(code, message, (*details, pushback))
