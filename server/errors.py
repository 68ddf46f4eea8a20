"""What can go wrong while serving, and the one table from error to gRPC status.

Errors here belong to serving alone; those shared with the trainer and the store live in `model_store.errors`.
Every other module raises, none of them names a status code.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from model_store.errors import (
    ArtefactError,
    ExperimentChanged,
    ExperimentError,
    FieldValueError,
    ServerError,
    StoreError,
    StoreUnavailable,
    VersionNotFound,
)

M = TypeVar("M", bound=Message)

REPEAT_AFTER_MS = (200, 1000)
"""While something is away; drawn at random, so that callers do not come back all at once."""


class InvalidRequest(ServerError):
    """A request breaks a limit or a rule; the message begins with the field's path, such as `item_ids[3]`."""


class ObjectiveError(InvalidRequest):
    """An objective cannot be read; the message says at which character, what stood there and what may stand there."""


class ModelNotServed(ServerError):
    """The request names another model than the one this server serves."""


class CandidateSetNotFound(ServerError):
    """The request names a candidate set that the store does not have."""


class NotReady(ServerError):
    """No model is loaded yet, or the server is draining."""


class DeadlinePassed(ServerError):
    """The caller has stopped waiting."""


STATUS_OF: dict[type[Exception], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    FieldValueError: grpc.StatusCode.INVALID_ARGUMENT,
    ExperimentError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotServed: grpc.StatusCode.NOT_FOUND,
    CandidateSetNotFound: grpc.StatusCode.NOT_FOUND,
    VersionNotFound: grpc.StatusCode.NOT_FOUND,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    StoreError: grpc.StatusCode.FAILED_PRECONDITION,
    ArtefactError: grpc.StatusCode.FAILED_PRECONDITION,
    ExperimentChanged: grpc.StatusCode.ABORTED,
    DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Errors and their status. A class that is not here, nor derived from one here, is answered INTERNAL."""


def status_of(error: Exception) -> grpc.StatusCode:
    """The status of `error`: that of its nearest class in the table, else INTERNAL."""
    for kind in type(error).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind]
    return grpc.StatusCode.INTERNAL


def served_name(name: str, served: Collection[str]) -> str:
    """The served model that a request's `model` means; an empty name means the only one.

    Raises ModelNotServed, InvalidRequest.
    """
    if name in served:
        return name
    listed = ", ".join(map(repr, served))
    if name:
        raise ModelNotServed(f"model: this server serves {listed}, not {name!r}")
    if len(served) > 1:
        raise InvalidRequest(f"model: empty, and this server serves several: {listed}")
    return next(iter(served))


def check_deadline(until_s: float) -> None:
    """Raise DeadlinePassed where it is later than `until_s` on the monotonic clock."""
    if time.monotonic() > until_s:
        raise DeadlinePassed("the deadline passed while the answer was computed")


def unreadable(kind: type[Message]) -> InvalidRequest:
    """For bytes that are no message of this kind."""
    return InvalidRequest(f"request: not a {kind.DESCRIPTOR.full_name}, or a text in it is not UTF-8")


def readable(kind: type[M]) -> Callable[[bytes], M | InvalidRequest]:
    """A request deserializer that returns its error: where one raises, grpc answers INTERNAL."""

    def read(message: bytes) -> M | InvalidRequest:
        try:
            return kind.FromString(message)
        except DecodeError:
            return unreadable(kind)

    return read


def abort_to_repeat(context: grpc.ServicerContext, error: Exception, request_id: str) -> NoReturn:
    """As `abort`; where the call may succeed later, with RetryInfo that says when to try it again."""
    if status_of(error) is grpc.StatusCode.UNAVAILABLE:
        after_ms = random.randint(*REPEAT_AFTER_MS)
        context.abort_with_status(worth_repeating(grpc.StatusCode.UNAVAILABLE, str(error), after_ms))
    abort(context, error, request_id)


def abort(context: grpc.ServicerContext, error: Exception, request_id: str) -> NoReturn:
    """End the call with the status of `error`. The text of an INTERNAL error stays in the server's log."""
    status = status_of(error)
    if status is grpc.StatusCode.INTERNAL:
        context.abort(status, f"internal error; the server's log tells more (request_id {request_id})")
    context.abort(status, str(error))
    raise AssertionError("grpc's abort always raises")


# --- How a call ends that is worth repeating: with google.rpc.RetryInfo, which says when. Nothing here
# decides what is ---


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
