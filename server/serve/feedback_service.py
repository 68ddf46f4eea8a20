"""`ctr.v1.FeedbackService`: validates reported events, writes them to the store and counts them.

Reports have threads and a store connection of their own, so that a store that hangs delays reports but no rankings.
When a call succeeds, the store has what it accepted; a call that fails may be repeated, and each event counts once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Sequence

import grpc
import structlog
from google.protobuf.timestamp_pb2 import Timestamp

from ctr.v1.feedback_pb2 import (
    DESCRIPTOR,
    FeedbackEvent,
    FeedbackKind,
    RejectedEvent,
    ReportRequest,
    ReportResponse,
)
from model_store.clock import SYSTEM, Clock, NeverBack
from model_store.keys import MAX_ID_BYTES
from model_store.store import Store
from model_store.streams.feedback import AGE_S, LENGTH, MOST_EVENTS, Event, Feedback, Kind, Reported
from server.errors import (
    DeadlinePassed,
    InvalidRequest,
    NotReady,
    abort,
    is_own_fault,
    served_name,
    status_of,
)
from server.ranking.store_reads import Source
from server.serve.gate import PLACES_A_THREAD, CallPool, Gate, handlers_of
from server.serve.security import Tokens
from server.telemetry.meter import Meter, declare

FEEDBACK = declare(
    "ftrie_feedback_total",
    ("model", "result"),
    "reported events, by `result`: `accepted` (new, and stored), `duplicate` (reported before), `rejected` (invalid) "
    "or `failed` (the call ended with an error, and the caller will report them again); the sum is the number of "
    "events in all reports that could be read",
)
_WIRE = DESCRIPTOR.services_by_name["FeedbackService"]
SERVICE = _WIRE.full_name
METHOD = "Report"
THREADS = 4
WAIT_S = 1.0
"""How long a report waits for the store."""
MOST_AHEAD_S = 300
"""How far an event may be ahead of this clock. The trainer's watermark follows event times, so that a time in the year
2100 would close every window."""
LAST_S = 253_402_300_799
"""The last second of the year 9999, and of a Timestamp."""
NANOS = 1_000_000_000

_KINDS: dict[int, Kind] = {
    FeedbackKind.FEEDBACK_KIND_CLICK: "click",
    FeedbackKind.FEEDBACK_KIND_CONVERSION: "conversion",
    FeedbackKind.FEEDBACK_KIND_SEEN: "seen",
    FeedbackKind.FEEDBACK_KIND_ACTIVATED: "activated",
    FeedbackKind.FEEDBACK_KIND_VIEW: "view",
}

_log = structlog.get_logger(__name__)


class FeedbackService:
    """Accepts feedback for the models of one worker, whether they are loaded or not.

    Thread safety: all methods, any thread; `connect` and `close` one at a time.
    """

    def __init__(
        self,
        models: Collection[str],
        meter: Meter,
        url: str,
        length: int = LENGTH,
        age_s: float = AGE_S,
        clock: Clock = SYSTEM,
    ) -> None:
        """`length` and `age_s`: about how many events, and for how long, a stream keeps."""
        self._models = models
        self._meter = meter
        self._length, self._age_s = length, age_s
        self._source, self._clock = Source(url, WAIT_S, clock), NeverBack(clock)
        self._feedback: Feedback | None = None
        self._lock = threading.Lock()
        self.draining = False

    def connect(self) -> None:
        """Open the store unless it is open. Raises StoreUnavailable."""
        self._source.connect()

    def close(self) -> None:
        """Close the store."""
        if self._feedback is not None:
            self._feedback.close()
        self._source.close()

    def gate(self, tokens: Tokens | None) -> Gate:
        """The gate and handlers for a grpc server, on threads of their own."""
        pool = CallPool(THREADS, "report", PLACES_A_THREAD * THREADS)
        handlers = handlers_of(_WIRE, self, pool)
        return Gate(handlers, pool, self._meter, tokens.guard("feedback") if tokens else None)

    def Report(
        self, message: ReportRequest | InvalidRequest, context: grpc.ServicerContext
    ) -> ReportResponse:
        """The RPC. Every failure ends through `abort`."""
        if isinstance(message, InvalidRequest):
            self._meter.failed("", METHOD, grpc.StatusCode.INVALID_ARGUMENT.name)
            abort(context, message)
        try:
            return self._answer(message, context)
        except Exception as error:
            # No label may hold a caller's text: a model that is served here, or "".
            model = message.model if message.model in self._models else ""
            self._meter.failed(model, METHOD, status_of(error).name)
            if is_own_fault(error):
                _log.error("report failed", exc_info=error)
            abort(context, error, retry=True)

    def _answer(self, request: ReportRequest, context: grpc.ServicerContext) -> ReportResponse:
        if context.time_remaining() == 0:
            raise DeadlinePassed("the deadline passed while the call waited for a thread")
        if self.draining:
            raise NotReady("this server is draining; call another one, or its successor")
        model = served_name(request.model, self._models)
        if not 0 < len(request.events) <= MOST_EVENTS:
            raise InvalidRequest("events", f"got {len(request.events)}, expected 1 to {MOST_EVENTS:,}")
        events, rejected = read(request.events, self._clock.time())
        reported = self._written(model, events, context)
        for result, number in zip(
            ("accepted", "duplicate", "rejected"), (*reported, len(rejected)), strict=True
        ):
            if number:
                self._meter.count(FEEDBACK, model, result, by=number)
        return ReportResponse(
            accepted_count=reported.accepted,
            duplicate_count=reported.duplicates,
            rejected_events=rejected,
        )

    def _written(self, model: str, events: Sequence[Event], context: grpc.ServicerContext) -> Reported:
        """Write events, within the call's deadline. Raises StoreError or DeadlinePassed."""
        if not events:
            return Reported(0, 0)
        try:
            wait_s = self._source.wait_s(context)
            return self._source.use(lambda store, wait: self._of(store).report(model, events, wait), wait_s)
        except Exception:
            self._meter.count(FEEDBACK, model, "failed", by=len(events))
            raise

    def _of(self, store: Store) -> Feedback:
        with self._lock:
            if self._feedback is None:
                # Made with the first report, since the store may be away until then.
                self._feedback = store.feedback(WAIT_S, length=self._length, age_s=self._age_s)
            return self._feedback


def read(events: Sequence[FeedbackEvent], now_s: float) -> tuple[list[Event], list[RejectedEvent]]:
    """The valid events, in order, and the invalid ones, with the reason."""
    taken: list[Event] = []
    rejected: list[RejectedEvent] = []
    for index, event in enumerate(events):
        try:
            taken.append(_event(event, now_s))
        except InvalidRequest as error:
            rejected.append(RejectedEvent(index=index, reason=str(error)))
    return taken, rejected


def _event(event: FeedbackEvent, now_s: float) -> Event:
    kind = _KINDS.get(event.kind)
    is_view = kind == "view"
    _check_id("request_id", event.request_id, 0 if is_view else 1)
    if kind is None:
        names = (FeedbackKind.Name(number) for number in _KINDS)
        raise InvalidRequest("kind", f"got {_name(event.kind)}, expected one of {', '.join(names)}")
    if is_view:
        if event.request_id:
            raise InvalidRequest("request_id", "got one of a view, expected none: no ranking showed the item")
        _check_id("cookie", event.cookie, 1)
        if not event.event_id and not event.HasField("event_time"):
            raise InvalidRequest(
                "event_time", "a view has neither this nor an event_id, and an item may be viewed again"
            )
    elif event.cookie or event.features:
        name = "cookie" if event.cookie else "features"
        raise InvalidRequest(name, f"got some of an event of {_name(event.kind)}, expected none")
    if event.position and (kind != "seen" or event.position < 0 or event.item_id):
        raise InvalidRequest(
            "position",
            f"got {event.position} of an event of {_name(event.kind)}; expected 1 or more, of FEEDBACK_KIND_SEEN "
            "without an item_id",
        )
    of_list = bool(event.position) or kind == "activated"
    if of_list and event.item_id:
        raise InvalidRequest("item_id", f"got an item of an event of {_name(event.kind)}, expected none")
    _check_id("item_id", event.item_id, 0 if of_list else 1)
    _check_id("event_id", event.event_id, 0)
    if not math.isfinite(event.value):
        raise InvalidRequest("value", f"got {event.value}, expected a finite number")
    time_us = _time_us(event.event_time, now_s) if event.HasField("event_time") else None
    features = dict(event.features) or None
    return Event(
        event.request_id,
        event.item_id,
        kind,
        event.event_id,
        time_us,
        event.value,
        event.position,
        event.cookie,
        features,
    )


def _name(kind: int) -> str:
    """`0` → `FEEDBACK_KIND_UNSPECIFIED`; the number of a kind that this server does not know."""
    return FeedbackKind.Name(kind) if kind in FeedbackKind.values() else str(kind)


def _check_id(field: str, text: str, at_least: int) -> None:
    size = len(text.encode())
    if not at_least <= size <= MAX_ID_BYTES:
        raise InvalidRequest(field, f"got {size} bytes, expected {at_least} to {MAX_ID_BYTES:,}")


def _time_us(time: Timestamp, now_s: float) -> int:
    if not (0 <= time.seconds <= LAST_S and 0 <= time.nanos < NANOS):
        raise InvalidRequest(
            "event_time", f"got {time.seconds} s and {time.nanos} ns, expected a time between 1970 and 9999"
        )
    ahead_s = time.seconds - now_s
    if ahead_s > MOST_AHEAD_S:
        raise InvalidRequest(
            "event_time", f"{ahead_s:,.0f} s ahead of this server's clock, expected at most {MOST_AHEAD_S}"
        )
    return time.seconds * 1_000_000 + time.nanos // 1000
