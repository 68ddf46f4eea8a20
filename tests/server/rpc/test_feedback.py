"""Report over a real channel, on a real store: what is taken, what is named as bad, and what failed may be repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from ctr.v1.feedback_pb2 import FeedbackEvent, FeedbackKind, ReportRequest, ReportResponse
from ftrie.client.access import CallFailed
from model_store.store import Store
from server.errors import RETRY_AFTER_MS
from server.rpc.feedback_service import MOST_AHEAD_S
from server.telemetry.families import ERRORS, FEEDBACK
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

METHOD = "/ctr.v1.FeedbackService/Report"
CONVERSION = FeedbackKind.FEEDBACK_KIND_CONVERSION


@pytest.fixture
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


@pytest.fixture
def report(channel: Any) -> Callable[..., ReportResponse]:
    """Calls Report with events, by default of the only model."""
    call = channel.unary_unary(
        METHOD,
        request_serializer=ReportRequest.SerializeToString,
        response_deserializer=ReportResponse.FromString,
    )

    def made(*events: FeedbackEvent, model: str = "", timeout: float = 20.0) -> ReportResponse:
        answer: ReportResponse = call(ReportRequest(model=model, events=events), timeout=timeout)
        return answer

    return made


def raw(channel: Any) -> Any:
    """Report by bytes, as any language has it."""
    return channel.unary_unary(METHOD)


def click(item: str = "item-1", **more: Any) -> FeedbackEvent:
    more.setdefault("kind", FeedbackKind.FEEDBACK_KIND_CLICK)
    return FeedbackEvent(request_id="r1", item_id=item, **more)


def stream(store: Store) -> list[dict[str, Any]]:
    payloads = store.clicks(shop.NAME).read((0, 0), 10_000).payloads
    return [json.loads(payload) for payload in payloads]


def failure(report: Callable[..., ReportResponse], *events: FeedbackEvent, **more: Any) -> Any:
    with pytest.raises(grpc.RpcError) as failed:
        report(*events, **more)
    return failed.value


# -- what is taken


def test_what_is_accepted_stands_in_the_models_stream(
    report: Callable[..., ReportResponse], store: Store
) -> None:
    sold = click(
        "item-2", kind=CONVERSION, value=9.5, event_id="e7", event_time=Timestamp(seconds=1_700_000_000)
    )
    answer = report(click(), sold, model=shop.NAME)
    assert (answer.accepted_count, answer.duplicate_count, len(answer.rejected_events)) == (2, 0, 0)
    first, second = stream(store)
    assert {**first, "ts": 0} == {"request_id": "r1", "item": "item-1", "event": "click", "ts": 0}
    assert second == {
        "request_id": "r1",
        "item": "item-2",
        "ts": 1_700_000_000,
        "event": "conversion",
        "event_id": "e7",
        "value": 9.5,
    }


def test_a_call_that_is_repeated_changes_nothing(report: Callable[..., ReportResponse], store: Store) -> None:
    events = [click(event_id=f"e{number}") for number in range(1000)]
    assert report(*events).accepted_count == 1000
    again = report(*events)
    assert (again.accepted_count, again.duplicate_count) == (0, 1000)
    assert len(stream(store)) == 1000


def test_feedback_is_taken_before_any_version_is_served(store: Store, start: Callable[[], Server]) -> None:
    server = start()
    with grpc.insecure_channel(server.address) as channel:
        call = raw(channel)
        message = ReportRequest(events=[click()]).SerializeToString()

        def taken() -> bool:  # the worker seeks the store while it begins to listen
            try:
                return bool(call(message, timeout=20))
            except grpc.RpcError:
                return False

        eventually(taken)
    assert not server.ready.is_set()
    assert len(stream(store)) == 1


def test_the_stream_keeps_what_the_settings_say(
    shop_store: Store, start: Callable[..., Server], store: Store
) -> None:
    server = start(feedback_length=100, feedback_age_s=3600.0)
    assert server.ready.wait(180)
    key = store.clicks(shop.NAME).key
    for number in range(200):
        store.client.xadd(key, {"json": "{}"}, id=f"1000-{number + 1}")
    with grpc.insecure_channel(server.address) as channel:
        events = [click(event_id=str(number)) for number in range(1000)]
        raw(channel)(ReportRequest(events=events).SerializeToString(), timeout=20)
    info = store.clicks(shop.NAME).info()
    assert info.first_id is not None and info.first_id[0] > 1000
    assert info.length < 300


# -- what is not


BAD = [
    (FeedbackEvent(item_id="a"), "request_id: got 0 bytes, expected 1 to 4,096"),
    (click(""), "item_id: got 0 bytes, expected 1 to 4,096"),
    (click("x" * 4097), "item_id: got 4097 bytes"),
    (click("ü" * 2049), "item_id: got 4098 bytes"),
    (click(event_id="x" * 5000), "event_id: got 5000 bytes, expected 0 to 4,096"),
    (
        click(kind=0),
        "kind: got FEEDBACK_KIND_UNSPECIFIED, expected FEEDBACK_KIND_CLICK or FEEDBACK_KIND_CONVERSION",
    ),
    (click(kind=7), "kind: got 7, expected FEEDBACK_KIND_CLICK or FEEDBACK_KIND_CONVERSION"),
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


def test_each_bad_event_is_named_with_its_reason_and_the_others_are_taken(
    report: Callable[..., ReportResponse], store: Store
) -> None:
    good = click("good")
    answer = report(good, *(event for event, _ in BAD))
    assert answer.accepted_count == 1
    assert [each.index for each in answer.rejected_events] == list(range(1, len(BAD) + 1))
    for each, (_, reason) in zip(answer.rejected_events, BAD, strict=True):
        assert reason in each.reason
    assert [event["item"] for event in stream(store)] == ["good"]


def test_a_report_of_bad_events_alone_is_answered(
    report: Callable[..., ReportResponse], store: Store
) -> None:
    assert len(report(FeedbackEvent()).rejected_events) == 1
    assert stream(store) == []


@pytest.mark.parametrize(
    ("events", "model", "status", "message"),
    [
        (0, "", "INVALID_ARGUMENT", "events: got 0, expected 1 to 1,000"),
        (1001, "", "INVALID_ARGUMENT", "events: got 1001, expected 1 to 1,000"),
        (1, "other", "NOT_FOUND", "model: this server serves 'shop', not 'other'"),
    ],
)
def test_a_wrong_call_is_refused(
    report: Callable[..., ReportResponse], events: int, model: str, status: str, message: str
) -> None:
    error = failure(report, *(click() for _ in range(events)), model=model)
    assert (error.code().name, error.details()) == (status, message)


def test_a_key_of_another_type_is_said_to_be_wrong_and_not_to_be_repeated(
    report: Callable[..., ReportResponse], store: Store
) -> None:
    store.client.set(store.clicks(shop.NAME).key, "text")
    error = failure(report, click())
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "WRONGTYPE" in error.details()
    told = CallFailed.of("", error)
    assert (told.reason, told.retry_after_s) == ("STORED_DATA_INVALID", None)


def test_a_store_that_is_full_is_to_be_tried_again(
    report: Callable[..., ReportResponse], store: Store
) -> None:
    store.client.config_set("maxmemory", "1")
    try:
        error = failure(report, click())
    finally:
        store.client.config_set("maxmemory", "0")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "accepts no writes now" in error.details()
    told = CallFailed.of("", error)
    assert (told.reason, told.violations) == ("STORE_UNAVAILABLE", ())
    assert told.retry_after_s is not None
    assert RETRY_AFTER_MS[0] <= 1000 * told.retry_after_s <= RETRY_AFTER_MS[1]
    assert report(click()).accepted_count == 1


def test_what_became_of_events_is_counted(
    report: Callable[..., ReportResponse],
    store: Store,
    server: Server,
) -> None:
    report(click("a"), click("b"), click("a"), FeedbackEvent())
    store.client.delete(store.clicks(shop.NAME).key)
    store.client.set(store.clicks(shop.NAME).key, "text")
    failure(report, click("c"), click("d"))
    failure(report)  # has no events
    expected = {"accepted": 2, "duplicate": 1, "rejected": 1, "failed": 2}

    def counted(name: str) -> dict[str, float]:
        return {labels[-1]: number for found, labels, number in server.totals.counts() if found == name}

    eventually(lambda: counted(FEEDBACK) == expected)
    assert counted(ERRORS) == {"FAILED_PRECONDITION": 1, "INVALID_ARGUMENT": 1}


# -- the port


def test_health_and_reflection_name_the_service(server: Server, channel: Any) -> None:
    asked = health_pb2.HealthCheckRequest(service="ctr.v1.FeedbackService")
    assert health_pb2_grpc.HealthStub(channel).Check(asked, timeout=20).status == 1
    known = ProtoReflectionDescriptorDatabase(channel)
    assert "ctr.v1.FeedbackService" in known.get_services()
    assert known.FindFileContainingSymbol("ctr.v1.FeedbackService").package == "ctr.v1"


def test_only_tokens_of_the_role_may_report(
    shop_store: Store, start: Callable[..., Server], tmp_path: Path
) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text('rank = ["rank-0123456789abcdef"]\nfeedback = ["feed-0123456789abcdef"]\n')
    path.chmod(0o600)
    server = start(tokens=str(path))
    assert server.ready.wait(180)
    message = ReportRequest(events=[click()]).SerializeToString()
    outcomes = []
    with grpc.insecure_channel(server.address) as channel:
        for token in ("feed-0123456789abcdef", "rank-0123456789abcdef", ""):
            metadata = (("authorization", f"Bearer {token}"),) if token else ()
            try:
                raw(channel)(message, timeout=20, metadata=metadata)
                outcomes.append("OK")
            except grpc.RpcError as error:
                outcomes.append(error.code().name)
    assert outcomes == ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED"]


def test_a_message_that_is_none_is_the_callers_fault(channel: Any) -> None:
    with structlog.testing.capture_logs() as logs, pytest.raises(grpc.RpcError) as failed:
        raw(channel)(b"\xff\xff", timeout=20)
    error: Any = failed.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("request: not a ctr.v1.ReportRequest")
    assert logs == []
