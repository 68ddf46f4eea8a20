"""Feedback as the client takes and returns it: dataclasses, also read from lines of JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from ctr.v1.feedback_pb2 import (
    FEEDBACK_KIND_ACTIVATED,
    FEEDBACK_KIND_CLICK,
    FEEDBACK_KIND_CONVERSION,
    FEEDBACK_KIND_SEEN,
    FEEDBACK_KIND_VIEW,
    FeedbackEvent,
    ReportRequest,
    ReportResponse,
)
from ftrie.api.access import CallFailed
from model_store.bounded import json_value
from model_store.errors import FieldValueError

MOST_EVENTS = 1_000
Happening = Literal["click", "conversion", "seen", "activated", "view"]
KINDS: dict[Happening, Any] = {
    "click": FEEDBACK_KIND_CLICK,
    "conversion": FEEDBACK_KIND_CONVERSION,
    "seen": FEEDBACK_KIND_SEEN,
    "activated": FEEDBACK_KIND_ACTIVATED,
    "view": FEEDBACK_KIND_VIEW,
}
# 1e11 s is the year 5138 and 1e11 ms is March 1973, so the sizes of real times do not overlap; likewise for
# microseconds.
_MILLISECONDS_FROM = 1e11
_MICROSECONDS_FROM = 1e14


@dataclass(frozen=True, slots=True)
class Feedback:
    """An event on one item of one Ranking; of the whole list if it is `activated`, or `seen` with a position.

    request_id: of the Ranking that contained the item. time: None means now; a time without a zone is UTC. event_id:
    identifies the event across repeated reports; if empty, request, item, event and position identify it. value: of a
    conversion. position: the list was seen up to there, from 1. A view of an item that no ranking showed has the
    request_id "", a cookie, a time or an event_id, and the item's features as text.
    """

    request_id: str
    item: str = ""
    event: Happening = "click"
    event_id: str = ""
    time: datetime | None = None
    value: float = 0.0
    position: int = 0
    cookie: str = ""
    features: Mapping[str, str] | None = None

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """From an event as docs/events.md describes it. Raises FieldValueError."""
        try:
            event = json_value(line)
        except ValueError:
            raise FieldValueError(f"not JSON: {line[:80]!r}") from None
        if not isinstance(event, dict):
            raise FieldValueError(f"expected a JSON object, got {line[:80]!r}")
        viewed = _viewed(event) if event.get("event") == "view" else None
        return cls(
            _text(event, "request_id"),
            _text(event, "item") if viewed is None else _text(viewed, "id"),
            _event(event.get("event", "click")),
            _text(event, "event_id"),
            _time(event.get("ts")),
            _number("value", event.get("value", 0.0)),
            _position(event.get("position", 0)) if event.get("event") == "seen" else 0,
            *((_text(event, "cookie"), _features(viewed)) if viewed is not None else ()),
        )

    def message(self) -> FeedbackEvent:
        """As a message. Raises FieldValueError for an id that is not text, or an unknown event."""
        try:
            made = FeedbackEvent(
                event_id=self.event_id,
                request_id=self.request_id,
                item_id=self.item,
                kind=KINDS[_event(self.event)],
                value=self.value,
                position=self.position,
                cookie=self.cookie,
                features=self.features,
            )
        except (TypeError, ValueError) as error:  # ValueError: a lone surrogate
            raise FieldValueError(f"{self}: {error}") from None
        if self.time is not None:
            # A time without a zone is UTC: `astimezone` alone would take it for this machine's local time.
            made.event_time.FromDatetime(
                self.time.astimezone(UTC) if self.time.tzinfo else self.time.replace(tzinfo=UTC)
            )
        return made


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that was not stored: its index in the report, and why."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a report: how many events are new, how many were known, and those that were not stored."""

    accepted: int
    duplicates: int
    rejected: tuple[Rejected, ...] = ()

    @classmethod
    def of(cls, answer: ReportResponse) -> Self:
        """From the wire."""
        rejected = tuple(Rejected(each.index, each.reason) for each in answer.rejected_events)
        return cls(answer.accepted_count, answer.duplicate_count, rejected)


class ReportFailed(CallFailed):
    """A report failed. It may be repeated as it is: each event counts once."""


def request_of(model: str, events: Iterable[Feedback]) -> ReportRequest:
    """The message. Raises FieldValueError."""
    return ReportRequest(model=model, events=[event.message() for event in events])


def _text(event: dict[str, Any], name: str) -> str:
    """The text of a field; of a number its digits."""
    value = event.get(name, "")
    # bool is a subclass of int, but `true` is no id.
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise FieldValueError(f"{name}: got {value!r}, expected a text")
    return str(value)


def _viewed(event: dict[str, Any]) -> dict[str, Any]:
    """The item of a view."""
    items = event.get("items")
    if not (isinstance(items, list) and len(items) == 1 and isinstance(items[0], dict)):
        raise FieldValueError(f"items: got {items!r}, expected the one that was viewed")
    return items[0]


def _features(item: dict[str, Any]) -> dict[str, str]:
    given = item.get("features", {})
    if not isinstance(given, dict):
        raise FieldValueError(f"features: got {given!r}, expected an object")
    features = {name: value for name, value in given.items() if value is not None}
    for name, value in features.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise FieldValueError(f"features.{name}: got {value!r}, expected a text or a number")
        if isinstance(value, float) and value.is_integer():
            features[name] = int(value)  # 3.0 and 3 are one category
    return {name: str(value) for name, value in features.items()}


def _event(value: object) -> Happening:
    for each in KINDS:
        if value == each:
            return each
    raise FieldValueError(f"event: got {value!r}, expected {', '.join(KINDS)}")


def _position(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldValueError(f"position: got {value!r}, expected a whole number of 1 or more")
    return value


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
