"""From a `ctr.v1.ReportRequest` to events for the store, and the limits on them. A bad event spoils no other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from ctr.v1.feedback_pb2 import FeedbackEvent, FeedbackKind, RejectedEvent
from model_store.feedback import Event, Kind
from model_store.redis_keys import MAX_ID_BYTES
from server.errors import InvalidRequest

MOST_AHEAD_S = 300
"""The trainer's clock follows the events' times: one from the year 2100 would close every window."""
LAST_S = 253_402_300_799
"""The last second of the year 9999, and of a Timestamp."""
NANOS = 1_000_000_000

_KINDS: dict[int, Kind] = {
    FeedbackKind.FEEDBACK_KIND_UNSPECIFIED: "click",
    FeedbackKind.FEEDBACK_KIND_CLICK: "click",
    FeedbackKind.FEEDBACK_KIND_CONVERSION: "conversion",
}


def read(events: Sequence[FeedbackEvent], now_s: float) -> tuple[list[Event], list[RejectedEvent]]:
    """The events that can be taken, in order, and those that cannot, with the reason."""
    taken: list[Event] = []
    rejected: list[RejectedEvent] = []
    for index, event in enumerate(events):
        try:
            taken.append(_event(event, now_s))
        except InvalidRequest as error:
            rejected.append(RejectedEvent(index=index, reason=str(error)))
    return taken, rejected


def _event(event: FeedbackEvent, now_s: float) -> Event:
    _check_id("request_id", event.request_id, 1)
    _check_id("item_id", event.item_id, 1)
    _check_id("event_id", event.event_id, 0)
    kind = _KINDS.get(event.kind)
    if kind is None:
        raise InvalidRequest(
            f"kind: got {event.kind}, expected FEEDBACK_KIND_CLICK or FEEDBACK_KIND_CONVERSION"
        )
    if not math.isfinite(event.value):
        raise InvalidRequest(f"value: got {event.value}, expected a finite number")
    time_us = _time_us(event.time, now_s) if event.HasField("time") else None
    return Event(event.request_id, event.item_id, kind, event.event_id, time_us, event.value)


def _check_id(field: str, text: str, at_least: int) -> None:
    size = len(text.encode())
    if not at_least <= size <= MAX_ID_BYTES:
        raise InvalidRequest(f"{field}: got {size} bytes, expected {at_least} to {MAX_ID_BYTES:,}")


def _time_us(time: Timestamp, now_s: float) -> int:
    if not (0 <= time.seconds <= LAST_S and 0 <= time.nanos < NANOS):
        raise InvalidRequest(
            f"time: got {time.seconds} s and {time.nanos} ns, expected a time between 1970 and 9999"
        )
    ahead_s = time.seconds - now_s
    if ahead_s > MOST_AHEAD_S:
        raise InvalidRequest(
            f"time: {ahead_s:,.0f} s ahead of this server's clock, expected at most {MOST_AHEAD_S}"
        )
    return time.seconds * 1_000_000 + time.nanos // 1000
