"""The errors and degradations of serving, and the one table from an error to its gRPC status.

Errors shared with the trainer and the store live in `model_store.errors`. Code below the services raises these errors;
only this module and the gate know status codes. A failed call carries google.rpc details: ErrorInfo always, BadRequest
where a field is at fault, RetryInfo where the call may succeed later.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, EncodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from ctr.v1 import ranking_pb2 as pb
from model_store.errors import (
    FieldValueError,
    ServerError,
    StoreError,
    StoreUnavailable,
)

M = TypeVar("M", bound=Message)

DOMAIN = "ftrie"
RETRY_AFTER_MS = (200, 1000)
"""While something is unavailable; drawn at random, so that callers do not all come back at once."""
MAX_MESSAGE_BYTES = 1_000
"""Of an error's text: it is sent twice or more, and clients accept 8 KiB of metadata."""
MOST_ID_CHARACTERS = 256
_STORE_URL = re.compile(r"\b(?:(?:rediss?|(?:cluster|sentinel)(?:\+tls)?|unix)://|embedded:)\S+")
# redis-py says "Error 111 connecting to HOST:PORT. Connection refused.", and gives a Unix socket's path in the same
# place.
_ADDRESS = re.compile(r"(?<=connecting to )(?:unix socket: )?\S+(?=\. )|\b\d+\.\d+\.\d+\.\d+:\d+\b")


class InvalidRequest(ServerError):
    """A request breaks a limit or a rule. paths: the fields at fault, such as `item_ids[3]`; str() begins with them."""

    def __init__(self, path: str | tuple[str, ...], text: str) -> None:
        """path: of the field, or of several; () where no field alone is at fault."""
        super().__init__(path, text)
        self.paths = (path,) if isinstance(path, str) else path
        self.text = text

    def __str__(self) -> str:
        return f"{', '.join(self.paths)}: {self.text}" if self.paths else self.text


class InvalidObjective(InvalidRequest):
    """The request's objective cannot be parsed; text: that of the ObjectiveError."""

    def __init__(self, text: str) -> None:
        super().__init__("objective", text)


class ModelNotServed(ServerError):
    """The request names a model that this server does not serve."""


class CandidateSetNotFound(ServerError):
    """The request names a candidate set that the store does not have."""


class NotReady(ServerError):
    """No model is loaded yet, or the server is draining."""


class DeadlinePassed(ServerError):
    """The caller has stopped waiting."""


def without_address(text: str) -> str:
    """A text about the store without its URL, its user and its address: those are for the log, not for callers."""
    return _ADDRESS.sub("…", _STORE_URL.sub("the store", text))


class Degradation(NamedTuple):
    """What an answer lacks; the fields are those of `ctr.v1.Degradation`."""

    reason: pb.DegradationReason
    part: str
    detail: str

    def __str__(self) -> str:
        return f"{self.part}: {self.detail}"

    @property
    def kind(self) -> str:
        """The reason's name without its prefix, such as "STALE"."""
        return pb.DegradationReason.Name(self.reason).removeprefix("DEGRADATION_REASON_")

    def message(self) -> pb.Degradation:
        """As it goes over the wire."""
        return pb.Degradation(reason=self.reason, part=self.part, detail=without_address(self.detail))

    @classmethod
    def of(cls, part: str, error: StoreError) -> Degradation:
        """The part is missing because the store failed."""
        away = isinstance(error, StoreUnavailable)
        reason = pb.DEGRADATION_REASON_UNAVAILABLE if away else pb.DEGRADATION_REASON_INVALID_DATA
        return cls(reason, part, str(error))

    @classmethod
    def absent(cls, part: str, detail: str) -> Degradation:
        """The part is missing, for a cause in this server."""
        return cls(pb.DEGRADATION_REASON_UNAVAILABLE, part, detail)

    @classmethod
    def stale(cls, part: str, age_s: float, cause: str) -> Degradation:
        """The part is as it was read `age_s` ago."""
        return cls(pb.DEGRADATION_REASON_STALE, part, f"stale, read {age_s:.0f} s ago: {cause}")

    @classmethod
    def not_current(cls, part: str, cause: str) -> Degradation:
        """The part may not be as the store has it now."""
        return cls(pb.DEGRADATION_REASON_STALE, part, cause)

    @classmethod
    def left_out(cls, part: str, misfit: str, whose: str = "") -> Degradation:
        """A stored value does not fit its field. whose: the record's id, where the part does not say."""
        prefix = f"{whose}: " if whose else ""
        return cls(pb.DEGRADATION_REASON_INVALID_DATA, part, f"{prefix}left out {misfit}")

    @classmethod
    def limited(cls, part: str, detail: str) -> Degradation:
        """Only some of what was asked for was read."""
        return cls(pb.DEGRADATION_REASON_LIMIT_EXCEEDED, part, detail)

    @classmethod
    def no_value(cls, detail: str) -> Degradation:
        """The objective has no value for some candidates."""
        return cls(pb.DEGRADATION_REASON_NO_OBJECTIVE_VALUE, "objective", detail)


class _Answer(NamedTuple):
    """How an error is answered. reason: of google.rpc.ErrorInfo."""

    status: grpc.StatusCode
    reason: str


ANSWER_OF: dict[type[Exception], _Answer] = {
    InvalidRequest: _Answer(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    InvalidObjective: _Answer(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_OBJECTIVE"),
    FieldValueError: _Answer(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FEATURE_VALUE"),
    ModelNotServed: _Answer(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_SERVED"),
    CandidateSetNotFound: _Answer(grpc.StatusCode.NOT_FOUND, "CANDIDATE_SET_NOT_FOUND"),
    NotReady: _Answer(grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
    StoreUnavailable: _Answer(grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
    StoreError: _Answer(grpc.StatusCode.FAILED_PRECONDITION, "STORED_DATA_INVALID"),
    DeadlinePassed: _Answer(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    MemoryError: _Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY"),
}
"""Errors and their answers. A class that neither is here nor derives from one here is answered INTERNAL."""

INTERNAL = _Answer(grpc.StatusCode.INTERNAL, "INTERNAL")


def status_of(error: Exception) -> grpc.StatusCode:
    """The status of `error`: that of its nearest class in the table, else INTERNAL."""
    return _answer_of(error).status


def served_name(name: str, served: Collection[str]) -> str:
    """The served model that a request's `model` means; an empty name means the only one.

    Raises ModelNotServed, InvalidRequest.
    """
    if name in served:
        return name
    listed = ", ".join(map(repr, served))
    if name:
        raise ModelNotServed(f"model: this server serves {listed}, not {name!r}")
    if len(served) != 1:
        raise InvalidRequest("model", f"empty, and this server serves several: {listed}")
    return next(iter(served))


def check_deadline(until_s: float) -> None:
    """Raise DeadlinePassed if the monotonic clock is past `until_s`."""
    if time.monotonic() > until_s:
        raise DeadlinePassed("the deadline passed while the answer was computed")


def is_own_fault(error: Exception) -> bool:
    """Whether the error must be logged: no caller has caused it."""
    return _is_short_of_memory(error) or _answer_of(error) is INTERNAL


def unreadable(kind: type[Message], error: DecodeError) -> InvalidRequest:
    """The error for bytes that are not a message of this kind. Raises `error` if want of memory is why."""
    if _is_short_of_memory(error):
        raise error
    return InvalidRequest("request", f"not a {kind.DESCRIPTOR.full_name}, or a text in it is not UTF-8")


def readable(kind: type[M]) -> Callable[[bytes], M | InvalidRequest]:
    """A request deserializer that returns its error; grpc answers INTERNAL if one raises."""

    def read(message: bytes) -> M | InvalidRequest:
        try:
            return kind.FromString(message)
        except DecodeError as error:
            return unreadable(kind, error)

    return read


def abort(
    context: grpc.ServicerContext,
    error: Exception,
    request_id: str = "",
    *,
    retry: bool = False,
    within: str = "",
) -> NoReturn:
    """End the call as the table says. The text of an error that `is_own_fault` stays in the server's log.

    retry: the same server may be called again, so that UNAVAILABLE carries RetryInfo. within: the field that
    the error's paths begin at.
    """
    # Callers learn that the store has failed, not where it is.
    text = without_address(str(error)) if isinstance(error, StoreError) else str(error)
    answer, message = _answer_of(error), _shortened(text)
    metadata = {"request_id": request_id} if 0 < len(request_id) <= MOST_ID_CHARACTERS else {}
    if _is_short_of_memory(error):  # the request id too may be what there was no memory to read
        named = f" (request_id {request_id})" if request_id else ""
        message, retry = f"this worker is short of memory{named}; see the server's log", True
    if answer is INTERNAL:
        text = f"internal error; see the server's log for the cause (request_id {request_id})"
        context.abort_with_status(ended(*answer, text, metadata=metadata))
    violations: dict[str, str] = {}
    if isinstance(error, InvalidRequest | FieldValueError) and error.paths:
        _, begins, description = message.partition(f"{', '.join(error.paths)}: ")
        if begins:  # else the message was cut within the paths, which are too long for the metadata
            paths = (path if path == within or not within else f"{within}.{path}" for path in error.paths)
            violations = dict.fromkeys(paths, description)
    again = retry and answer.status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    retry_after_ms = random.randint(*RETRY_AFTER_MS) if again else None
    context.abort_with_status(
        ended(*answer, message, metadata=metadata, violations=violations, retry_after_ms=retry_after_ms)
    )
    raise AssertionError("grpc's abort always raises")


@dataclass(frozen=True)
class Ended(grpc.Status):
    """How a call ends."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()


def ended(
    code: grpc.StatusCode,
    reason: str,
    message: str,
    *,
    metadata: Mapping[str, str] | None = None,
    violations: Mapping[str, str] | None = None,
    retry_after_ms: int | None = None,
) -> Ended:
    """A status with google.rpc details. violations: what is wrong, by path; retry_after_ms: also for grpc's own."""
    status = Status(code=code.value[0], message=message)
    status.details.add().Pack(ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata or {}))
    if violations:
        bad = BadRequest()
        for path, description in violations.items():
            bad.field_violations.add(field=path, description=description)
        status.details.add().Pack(bad)
    if retry_after_ms is None:
        return Ended(code, message, tuple(rpc_status.to_status(status).trailing_metadata))
    delay = Duration()
    delay.FromMilliseconds(retry_after_ms)
    status.details.add().Pack(RetryInfo(retry_delay=delay))
    # gRPC clients with a retry policy wait for this long by themselves (gRFC A6); they do not read RetryInfo.
    pushback = ("grpc-retry-pushback-ms", str(retry_after_ms))
    return Ended(code, message, (*rpc_status.to_status(status).trailing_metadata, pushback))


def _is_short_of_memory(error: Exception) -> bool:
    """Whether memory was short. Protobuf has no exception of its own for it.

    It says "Arena alloc failed" of what it reads, and fails to write a message only for want of memory: ours have no
    required fields, and no depth.
    """
    in_protobuf = isinstance(error, EncodeError) or (isinstance(error, DecodeError) and "alloc" in str(error))
    return in_protobuf or isinstance(error, MemoryError)


def _answer_of(error: Exception) -> _Answer:
    if _is_short_of_memory(error):
        return ANSWER_OF[MemoryError]
    # The nearest class decides: an InvalidObjective is an InvalidRequest too, and has a reason of its own.
    return next((ANSWER_OF[kind] for kind in type(error).__mro__ if kind in ANSWER_OF), INTERNAL)


def _shortened(message: str) -> str:
    """The message, cut where it would not fit into trailing metadata."""
    if (
        # A character has at most four bytes in UTF-8, so that most messages need not be encoded to be measured.
        len(message) * 4 <= MAX_MESSAGE_BYTES
        or len(data := message.encode("utf-8", "replace")) <= MAX_MESSAGE_BYTES
    ):
        return message
    # The cut may fall within a character, of which nothing is kept.
    return data[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore") + "…"
