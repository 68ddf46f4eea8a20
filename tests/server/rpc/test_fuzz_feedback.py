"""Reports that nobody would send: any bytes, damaged messages, events of every text and number. Each is answered, or
refused with a reason that is the caller's; what is accepted is in the stream, as JSON that can be read back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.v1.feedback_pb2 import FEEDBACK_KIND_CLICK as CLICK
from ctr.v1.feedback_pb2 import FeedbackEvent, ReportRequest, ReportResponse
from model_store.store import Store
from model_store.streams.event_streams import EventStream
from tests.matrix import examples
from tests.server import shop
from tests.server.one_process import Server

CALLERS_FAULT = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
EXAMPLES = settings(examples(150), suppress_health_check=list(HealthCheck))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = ANY_TEXT | st.sampled_from(("r1", "item-1", "x" * 4096, "ü" * 2049, '"\n\\', "\0"))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
SECONDS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1_700_000_000)
NANOS = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 999_999_999)

Report = Callable[[bytes], tuple[grpc.StatusCode, bytes]]


@pytest.fixture
def report(server: Server) -> Iterator[Report]:
    """Calls Report with bytes; returns the status and the answer's bytes."""
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary("/ctr.v1.FeedbackService/Report")  # type: ignore[call-arg]

        def asked(message: bytes) -> tuple[grpc.StatusCode, bytes]:
            try:
                return grpc.StatusCode.OK, call(message, timeout=30)
            except grpc.RpcError as error:
                return error.code(), b""

        yield asked


@st.composite
def events(draw: st.DrawFn) -> FeedbackEvent:
    made = FeedbackEvent(
        event_id=draw(st.just("") | IDS),
        request_id=draw(IDS),
        item_id=draw(IDS),
        kind=draw(st.sampled_from((0, 1, 2)) | st.integers(-(2**31), 2**31 - 1)),  # type: ignore[arg-type]
        value=draw(NUMBERS | st.just(0.0)),
    )
    if draw(st.booleans()):
        made.event_time.seconds, made.event_time.nanos = draw(SECONDS), draw(NANOS)
    return made


REQUESTS = st.builds(
    ReportRequest,
    model=st.sampled_from(("", shop.NAME)) | ANY_TEXT,
    events=st.lists(events(), max_size=6),
)


@EXAMPLES
@given(message=st.binary(max_size=200))
def test_any_bytes_are_the_callers_fault(report: Report, message: bytes) -> None:
    status, answer = report(message)
    assert status in CALLERS_FAULT
    ReportResponse.FromString(answer)


@EXAMPLES
@given(
    request=REQUESTS,
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from("fdit"), st.binary(min_size=1, max_size=4)), max_size=3
    ),
)
def test_a_damaged_report_is_answered_or_the_callers_fault(
    report: Report, request: ReportRequest, cuts: list[tuple[float, str, bytes]]
) -> None:
    message = bytearray(request.SerializeToString())
    for part, kind, noise in cuts:
        at = int(part * len(message))
        match kind:
            case "f" if at < len(message):
                message[at] ^= noise[0]
            case "d":
                del message[at : at + len(noise)]
            case "i":
                message[at:at] = noise
            case "t":
                del message[at:]
    status, answer = report(bytes(message))
    assert status in CALLERS_FAULT
    ReportResponse.FromString(answer)


@EXAMPLES
@given(request=REQUESTS)
def test_each_event_is_accepted_known_or_named_and_what_is_accepted_can_be_read_back(
    report: Report, store: Store, request: ReportRequest
) -> None:
    stream = store.clicks(shop.NAME)
    before = stream.info().last_id
    status, raw = report(request.SerializeToString())
    assert status in CALLERS_FAULT
    added = [json.loads(payload) for payload in stream.read(before, 100).payloads]
    if status is not grpc.StatusCode.OK:
        assert added == []
        return
    answer = ReportResponse.FromString(raw)
    assert answer.accepted_count + answer.duplicate_count + len(answer.rejected_events) == len(request.events)
    assert len(added) == answer.accepted_count
    bad = {each.index for each in answer.rejected_events}
    good = [event for index, event in enumerate(request.events) if index not in bad]
    spoken = {(event.request_id, event.item_id, event.event_id) for event in good}
    for event in added:
        assert (event["request_id"], event["item"], event.get("event_id", "")) in spoken
        assert event["event"] in ("click", "conversion")
        assert math.isfinite(event["ts"]) and math.isfinite(event.get("value", 0.0))
    if answer.accepted_count:  # reported again, none of them is new
        again = ReportResponse.FromString(report(request.SerializeToString())[1])
        assert (again.accepted_count, again.duplicate_count) == (0, len(good))


@given(
    fields=st.dictionaries(
        st.binary(max_size=12) | st.sampled_from((b"ts", b"value", b"item")),
        st.binary(max_size=40),
        min_size=1,
    )
)
@settings(examples(100), suppress_health_check=list(HealthCheck))
def test_an_entry_of_any_fields_is_read_as_one_line(store: Store, fields: dict[bytes, bytes]) -> None:
    stream: EventStream = store.event_stream("any")
    before = stream.info().last_id
    store.client.xadd(stream.key, fields)
    (payload,) = stream.read(before, 10).payloads
    assert b"\n" not in payload
    if b"json" not in fields:
        assert "ts" in json.loads(payload)


def test_after_all_that_the_server_takes_reports_as_before_and_has_logged_no_fault(report: Report) -> None:
    with structlog.testing.capture_logs() as logs:
        for number in range(256):
            report(bytes([number]) * 40)
    good = ReportRequest(events=[FeedbackEvent(request_id="r", item_id="a", kind=CLICK)]).SerializeToString()
    status, answer = report(good)
    assert (status, ReportResponse.FromString(answer).accepted_count) == (grpc.StatusCode.OK, 1)
    assert not [entry for entry in logs if entry["event"] == "report failed"]
