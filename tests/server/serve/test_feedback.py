"""Report over a real channel, on a real store: what is taken, what is named as bad, and what failed may be repeated."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from ctr.v1.feedback_pb2 import FeedbackEvent, FeedbackKind, ReportRequest, ReportResponse
from ftrie.api.access import CallFailed
from model_store.metrics import Family
from model_store.spec.spec import parse_spec
from model_store.store import Store
from server.errors import RETRY_AFTER_MS
from server.serve.feedback_service import FEEDBACK, MOST_AHEAD_S
from server.telemetry.meter import ERRORS
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually
from trainer.events.columns import Wanted
from trainer.events.events import VIEW
from trainer.events.parse import read_lines, validated

Report = Callable[..., ReportResponse]
Clicks = Callable[[], list[dict[str, Any]]]
METHOD = "/ctr.v1.FeedbackService/Report"


@contextmanager
def calling(address: str) -> Iterator[Report]:
    """Calls Report with events, by default of the only model."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD, ReportRequest.SerializeToString, ReportResponse.FromString)

        def made(*events: FeedbackEvent, model: str = "") -> ReportResponse:
            answer: ReportResponse = call(ReportRequest(model=model, events=events), timeout=20)
            return answer

        yield made


@pytest.fixture(scope="module")
def report(shared_server: Server) -> Iterator[Report]:
    with calling(shared_server.address) as made:
        yield made


def click(item: str = "item-1", **more: Any) -> FeedbackEvent:
    more.setdefault("kind", FeedbackKind.FEEDBACK_KIND_CLICK)
    return FeedbackEvent(request_id="r1", item_id=item, **more)


def failure(report: Report, *events: FeedbackEvent, model: str = "") -> Any:
    with pytest.raises(grpc.RpcError) as failed:
        report(*events, model=model)
    return failed.value


def field(number: int, value: bytes | int | float) -> bytes:
    """One field of a protobuf message; numbers up to 127, texts up to 127 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    if isinstance(value, float):
        return bytes([number << 3 | 1]) + struct.pack("<d", value)
    return bytes([number << 3 | 2, len(value)]) + value


def test_the_bytes_of_any_language_are_taken_and_answered_and_known_again(
    shared_server: Server, clicks: Clicks
) -> None:
    """Message field by field: whatever a library of ours changes, these bytes must go on to work."""
    clicked = field(2, b"r1") + field(3, "item-ü".encode()) + field(4, 1)
    sold = field(1, b"order-7") + field(2, b"r1") + field(3, b"b") + field(4, 2) + field(6, 49.5)
    sold += field(5, b"\x08" + bytes([0x80, 0xE2, 0xCF, 0xAA, 0x06]))  # seconds = 1,700,000,000 as a varint
    reported = field(1, shop.NAME.encode()) + field(2, clicked) + field(2, sold) + field(2, b"")
    rejected = field(3, field(1, 2) + field(2, b"request_id: got 0 bytes, expected 1 to 4,096"))
    with grpc.insecure_channel(shared_server.address) as channel:
        call: Any = channel.unary_unary(METHOD)  # type: ignore[call-arg]
        assert call(reported, timeout=20) == field(1, 2) + rejected
        assert call(reported, timeout=20) == field(2, 2) + rejected
    click, sale = clicks()
    assert {**click, "ts": 0} == {"request_id": "r1", "item": "item-ü", "event": "click", "ts": 0}
    wanted = {"request_id": "r1", "item": "b", "ts": 1_700_000_000, "event": "conversion"}
    assert sale == {**wanted, "event_id": "order-7", "value": 49.5}


def test_feedback_is_taken_before_any_version_is_served_and_kept_as_the_settings_say(
    store: Store, start: Callable[..., Server]
) -> None:
    key = store.clicks(shop.NAME).key
    for number in range(200):
        store.client.xadd(key, {"json": "{}"}, id=f"1000-{number + 1}")
    server = start(feedback_length=100, feedback_age_s=3600.0)
    events = [click(event_id=str(number)) for number in range(1000)]
    with calling(server.address) as report:

        def taken() -> bool:  # the worker seeks the store while it begins to listen
            try:
                answer = report(*events)
            except grpc.RpcError:
                return False
            return answer.accepted_count + answer.duplicate_count == 1000

        eventually(taken)
    assert not server.ready.is_set()
    info = store.clicks(shop.NAME).info()
    assert info.first_id is not None and info.first_id[0] > 1000
    assert info.length < 300


BAD = [
    (FeedbackEvent(item_id="a"), "request_id: got 0 bytes, expected 1 to 4,096"),
    (click(""), "item_id: got 0 bytes, expected 1 to 4,096"),
    (click("x" * 4097), "item_id: got 4097 bytes"),
    (click("ü" * 2049), "item_id: got 4098 bytes"),
    (click(event_id="x" * 5000), "event_id: got 5000 bytes, expected 0 to 4,096"),
    (
        click(kind=0),
        "kind: got FEEDBACK_KIND_UNSPECIFIED, expected one of FEEDBACK_KIND_CLICK, FEEDBACK_KIND_CONVERSION, "
        "FEEDBACK_KIND_SEEN, FEEDBACK_KIND_ACTIVATED, FEEDBACK_KIND_VIEW",
    ),
    (click(kind=7), "kind: got 7, expected one of FEEDBACK_KIND_CLICK"),
    (click(position=2), "position: got 2 of an event of FEEDBACK_KIND_CLICK; expected 1 or more"),
    (click(kind=3, position=2), "position: got 2 of an event of FEEDBACK_KIND_SEEN; expected 1 or more"),
    (click("", kind=3, position=-2), "position: got -2"),
    (click("", kind=3), "item_id: got 0 bytes, expected 1 to 4,096"),
    (click(kind=4), "item_id: got an item of an event of FEEDBACK_KIND_ACTIVATED, expected none"),
    (click(cookie="ann"), "cookie: got some of an event of FEEDBACK_KIND_CLICK, expected none"),
    (click(features={"brand": "b"}), "features: got some of an event of FEEDBACK_KIND_CLICK, expected none"),
    (click(kind=5, cookie="ann", event_id="e"), "request_id: got one of a view, expected none"),
    (FeedbackEvent(item_id="a", kind=5, event_id="e"), "cookie: got 0 bytes, expected 1 to 4,096"),
    (FeedbackEvent(item_id="a", kind=5, cookie="ann"), "event_time: a view has neither this nor an event_id"),
    (FeedbackEvent(kind=5, cookie="ann", event_id="e"), "item_id: got 0 bytes, expected 1 to 4,096"),
    (click(value=math.nan), "value: got nan"),
    (click(value=-math.inf), "value: got -inf"),
    (
        click(event_time=Timestamp(seconds=-1)),
        "event_time: got -1 s and 0 ns, expected a time between 1970 and 9999",
    ),
    (click(event_time=Timestamp(seconds=1, nanos=2_000_000_000)), "event_time: got 1 s and 2000000000 ns"),
    (click(event_time=Timestamp(seconds=1_700_000_000_000)), "event_time: got 1700000000000 s"),
    (click(event_time=Timestamp(seconds=4_000_000_000)), f"expected at most {MOST_AHEAD_S}"),
]


def test_each_bad_event_is_named_with_its_reason_and_others_are_taken(report: Report, clicks: Clicks) -> None:
    assert len(report(FeedbackEvent()).rejected_events) == 1
    assert clicks() == []
    answer = report(click("good"), *(event for event, _ in BAD))
    assert answer.accepted_count == 1
    assert [each.index for each in answer.rejected_events] == list(range(1, len(BAD) + 1))
    for each, (_, reason) in zip(answer.rejected_events, BAD, strict=True):
        assert reason in each.reason
    assert [event["item"] for event in clicks()] == ["good"]


def test_a_view_is_in_the_stream_as_trainers_read_it_and_counts_again_at_another_time(
    report: Report, clicks: Clicks
) -> None:
    def a_view(second: int, cookie: str = "ann", **more: Any) -> FeedbackEvent:
        at, kind = Timestamp(seconds=1_700_000_000 + second), FeedbackKind.FEEDBACK_KIND_VIEW
        return FeedbackEvent(kind=kind, item_id="a", cookie=cookie, event_time=at, **more)

    answer = report(
        a_view(0, features={"brand": "ü", "price": "12.5"}), a_view(0), a_view(0, "bob"), a_view(1)
    )
    assert (answer.accepted_count, answer.duplicate_count) == (3, 1)
    assert report(a_view(1)).duplicate_count == 1
    spec = parse_spec("""
        [model]
        name = "shop"
        [input]
        label = "click"
        item = "id"
        cookie = "cookie"
        [fields]
        id = { side = "item" }
        brand = { side = "item" }
        price = { side = "item", kind = "number" }
        [join]
        positive = "view"
    """).resolve(("click", "id", "cookie", "brand", "price"))
    wanted = Wanted.of_columns(("id", "cookie", "brand", "price"), spec)
    events = validated(read_lines([json.dumps(event).encode() for event in clicks()], wanted), 2**62)
    assert events.kind.tolist() == [VIEW] * 3
    assert (events.time_us - 1_700_000_000_000_000).tolist() == [0, 0, 1_000_000]
    rows = [events.columns[name].to_pylist() for name in ("id", "cookie", "brand", "price")]
    assert rows[:3] == [[b"a"] * 3, [b"ann", b"bob", b"ann"], ["ü".encode(), b"", b""]]
    assert float(rows[3][0]) == 12.5


def test_a_wrong_call_is_refused(report: Report) -> None:
    for events, model, status, message in (
        (0, "", "INVALID_ARGUMENT", "events: got 0, expected 1 to 1,000"),
        (1001, "", "INVALID_ARGUMENT", "events: got 1001, expected 1 to 1,000"),
        (1, "other", "NOT_FOUND", "model: this server serves 'shop', not 'other'"),
    ):
        error = failure(report, *(click() for _ in range(events)), model=model)
        assert (error.code().name, error.details()) == (status, message)


@pytest.mark.usefixtures("clicks")
def test_a_store_that_is_full_is_to_be_tried_again(report: Report, shared_store: Store) -> None:
    shared_store.client.config_set("maxmemory", "1")
    try:
        error = failure(report, click())
    finally:
        shared_store.client.config_set("maxmemory", "0")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "accepts no writes now" in error.details()
    told = CallFailed.of("", error)
    assert (told.reason, told.violations) == ("STORE_UNAVAILABLE", ())
    assert told.retry_after_s is not None
    assert RETRY_AFTER_MS[0] <= 1000 * told.retry_after_s <= RETRY_AFTER_MS[1]
    assert report(click()).accepted_count == 1


def test_what_became_of_events_is_counted_and_a_key_of_another_type_is_not_to_be_tried_again(
    server: Server, store: Store
) -> None:
    with calling(server.address) as report:
        report(click("a"), click("b"), click("a"), FeedbackEvent())
        store.client.delete(store.clicks(shop.NAME).key)
        store.client.set(store.clicks(shop.NAME).key, "text")
        error = failure(report, click("c"), click("d"))
        failure(report)  # has no events
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "WRONGTYPE" in error.details()
    told = CallFailed.of("", error)
    assert (told.reason, told.retry_after_s) == ("STORED_DATA_INVALID", None)

    def counted(family: Family) -> dict[str, float]:
        return {labels[-1]: number for labels, number in server.totals.samples()[family.name]}

    expected = {"accepted": 2, "duplicate": 1, "rejected": 1, "failed": 2}
    eventually(lambda: counted(FEEDBACK) == expected)
    assert counted(ERRORS) == {"FAILED_PRECONDITION": 1, "INVALID_ARGUMENT": 1}
