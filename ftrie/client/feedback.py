"""Feedback as the client takes and returns it: plain dataclasses, and the same from lines of JSON. Calls nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from ctr.v1.feedback_pb2 import (
    FEEDBACK_KIND_CLICK,
    FEEDBACK_KIND_CONVERSION,
    FeedbackEvent,
    ReportRequest,
    ReportResponse,
)
from ftrie.client.access import CallFailed
from model_store.bounded import json_value
from model_store.errors import FieldValueError

MOST_EVENTS = 1_000
CLICK, CONVERSION = "click", "conversion"
_MILLISECONDS_FROM = 1e11
_MICROSECONDS_FROM = 1e14


@dataclass(frozen=True, slots=True)
class Feedback:
    """What happened to one item of one answer.

    request_id: that of the Ranking which showed the item. time: None means now; one without a zone is UTC. event_id:
    the same whenever the event is reported again; without one, request, item and event stand for it. value: what a
    conversion was worth.
    """

    request_id: str
    item: str
    event: Literal["click", "conversion"] = "click"
    event_id: str = ""
    time: datetime | None = None
    value: float = 0.0

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """From an event as docs/events.md has it. Raises FieldValueError."""
        try:
            event = json_value(line)
        except ValueError:
            raise FieldValueError(f"not JSON: {line[:80]!r}") from None
        if not isinstance(event, dict):
            raise FieldValueError(f"expected a JSON object, got {line[:80]!r}")
        return cls(
            _text(event, "request_id"),
            _text(event, "item"),
            _event(event.get("event", CLICK)),
            _text(event, "event_id"),
            _time(event.get("ts")),
            _number("value", event.get("value", 0.0)),
        )

    def message(self) -> FeedbackEvent:
        """As it goes over the wire. Raises FieldValueError for what is no text, or an unknown event."""
        kinds = {CLICK: FEEDBACK_KIND_CLICK, CONVERSION: FEEDBACK_KIND_CONVERSION}
        try:
            made = FeedbackEvent(
                event_id=self.event_id,
                request_id=self.request_id,
                item_id=self.item,
                kind=kinds[_event(self.event)],
                value=self.value,
            )
        except (TypeError, ValueError) as error:  # ValueError: a lone surrogate
            raise FieldValueError(f"{self}: {error}") from None
        if self.time is not None:
            made.time.FromDatetime(
                self.time.astimezone(UTC) if self.time.tzinfo else self.time.replace(tzinfo=UTC)
            )
        return made


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that was not taken: its place in the report, and why."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a report: new events, events known before, and those that were not taken."""

    accepted: int
    duplicates: int
    rejected: tuple[Rejected, ...] = ()

    @classmethod
    def of(cls, answer: ReportResponse) -> Self:
        """From the wire."""
        rejected = tuple(Rejected(each.index, each.reason) for each in answer.rejected)
        return cls(answer.accepted, answer.duplicates, rejected)


class ReportFailed(CallFailed):
    """A report failed; `code` is the gRPC status. Reported again, each event counts once all the same.

    retry_after_s: when the server wants it to be tried again; None where that would not help, or is not said.
    """

    retry_after_s: float | None = None

    @classmethod
    def of(cls, address: str, error: grpc.RpcError) -> Self:
        """From what grpc raised for a call to `address`."""
        made = super().of(address, error)
        made.retry_after_s = _retry_after_s(error)
        return made


def request_of(model: str, events: Iterable[Feedback]) -> ReportRequest:
    """The call. Raises FieldValueError."""
    return ReportRequest(model=model, events=[event.message() for event in events])


def _retry_after_s(error: Any) -> float | None:
    status, hint = rpc_status.from_call(error), RetryInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(hint):
            return float(hint.retry_delay.ToMilliseconds() / 1000)
    return None


def _text(event: dict[str, Any], name: str) -> str:
    """A number is as good an id as its digits."""
    value = event.get(name, "")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise FieldValueError(f"{name}: got {value!r}, expected a text")
    return str(value)


def _event(value: object) -> Literal["click", "conversion"]:
    if value == CLICK:
        return "click"
    if value == CONVERSION:
        return "conversion"
    raise FieldValueError(f"event: got {value!r}, expected {CLICK} or {CONVERSION}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FieldValueError(f"{name}: got {value!r}, expected a finite number")
    return float(value)


def _time(value: object) -> datetime | None:
    """Seconds, milliseconds or microseconds since 1970, by their size, or ISO-8601."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value)
        number = _number("ts", value)
        divisor = 1.0 if number < _MILLISECONDS_FROM else 1e3 if number < _MICROSECONDS_FROM else 1e6
        return datetime.fromtimestamp(number / divisor, UTC)
    except (ValueError, OverflowError, OSError):
        raise FieldValueError(
            f"ts: got {value!r}, expected a time, in seconds since 1970 or ISO-8601"
        ) from None
