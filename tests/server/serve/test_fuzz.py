"""Messages that nobody would send, to every method of every service: any bytes, damaged messages, values of every text
and number. Each is answered or refused with a reason that is the caller's; what is accepted can be read back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import structlog
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ctr.v1 import admin_pb2
from ctr.v1.feedback_pb2 import FEEDBACK_KIND_CLICK as CLICK
from ctr.v1.feedback_pb2 import FeedbackEvent, ReportRequest, ReportResponse
from ctr.v1.ranking_pb2 import ExplainRequest, ExplainResponse, Features, RankRequest, RankResponse
from ftrie.api.client import Client
from model_store.store import Store
from model_store.streams.event_streams import EventStream
from server.serve import admin_service as admin_port
from server.settings import Settings
from server.telemetry.status import SupervisorStatus
from tests.matrix import examples
from tests.server import shop
from tests.server.one_process import Server

RANK, EXPLAIN = "/ctr.v1.RankingService/Rank", "/ctr.v1.RankingService/Explain"
REPORT = "/ctr.v1.FeedbackService/Report"
ADMIN = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["ModelAdminService"].methods]
METHODS = {
    RANK: "ctr.v1.RankRequest",
    EXPLAIN: "ctr.v1.ExplainRequest",
    REPORT: "ctr.v1.ReportRequest",
    "/grpc.health.v1.Health/Check": "grpc.health.v1.HealthCheckRequest",
    "/grpc.health.v1.Health/Watch": "grpc.health.v1.HealthCheckRequest",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "grpc.reflection.v1alpha.ServerReflectionRequest",
    **{f"/ctr.v1.ModelAdminService/{name}": f"ctr.v1.{name}Request" for name in ADMIN},
}
ANSWERS: dict[str, Any] = {RANK: RankResponse, EXPLAIN: ExplainResponse, REPORT: ReportResponse}
OK = grpc.StatusCode.OK
CALLERS_FAULT = {
    OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
}
EXAMPLES = settings(examples(150), suppress_health_check=list(HealthCheck))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)

Ask = Callable[[str, bytes], tuple[grpc.StatusCode, str, bytes]]


class Idle:
    """A server without models, administered."""

    def status(self) -> SupervisorStatus:
        return SupervisorStatus("", begun=False, draining=False, models=(), workers=())

    def experiment(self, model: str) -> Any:
        raise LookupError(model)

    def look_now(self, model: str, timeout_s: float) -> bool:
        raise LookupError(model)


@pytest.fixture(scope="module")
def ask(shared_server: Server) -> Iterator[Ask]:
    """Sends bytes to a method; its status, message and answer. A stream is read up to its first answer."""
    settings = Settings((shop.NAME,), shared_server._settings.store, admin_port=0)
    admin = admin_port.AdminPort(Idle(), settings)
    admin.start()
    with (
        grpc.insecure_channel(shared_server.address) as ranking,
        grpc.insecure_channel(admin.address) as administered,
    ):

        def asked(method: str, message: bytes) -> tuple[grpc.StatusCode, str, bytes]:
            channel = administered if "Admin" in method else ranking
            call: Any = channel.stream_stream(method)(iter([message]), timeout=30)  # type: ignore[call-arg]
            try:
                answer = next(call)
                call.cancel()
            except grpc.RpcError as error:
                return error.code(), str(error.details()), b""
            return OK, "", answer

        yield asked
    admin.stop()


def answered(ask: Ask, method: str, message: bytes) -> tuple[grpc.StatusCode, Any]:
    """What a method makes of bytes, which is never a fault of the server."""
    code, said, answer = ask(method, message)
    assert code in CALLERS_FAULT, (method, said)
    return code, ANSWERS[method].FromString(answer) if method in ANSWERS else None


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x0b" * 200, b"\x2a\x02\xff\xfe"])
def test_bytes_that_are_no_message_are_invalid_and_the_message_is_named(ask: Ask, message: bytes) -> None:
    with structlog.testing.capture_logs() as logs:
        for method, name in METHODS.items():
            if message[0] != 0x2A or method == RANK:  # a text that is not UTF-8, in a field that Rank has
                expected = f"request: not a {name}, or a text in it is not UTF-8"
                assert ask(method, message)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, expected), method
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []


def extension(number: int) -> bytes:
    """A reflection request for an extension of a message that there is."""
    request = reflection_pb2.ServerReflectionRequest()
    request.file_containing_extension.containing_type = "ctr.v1.RankRequest"
    request.file_containing_extension.extension_number = number
    return bytes(request.SerializeToString())


@settings(examples(50), suppress_health_check=list(HealthCheck))
@given(message=st.binary(max_size=100))
@example(b"")
@example(b"\x0a\x01\xff")
@example(extension(-1))
@example(extension(2**31 - 1))
def test_any_bytes_are_answered_or_the_callers_fault(ask: Ask, message: bytes) -> None:
    for method in METHODS:
        answered(ask, method, message)


@st.composite
def features(draw: st.DrawFn) -> Features:
    made = Features()
    fields = ("age", "device", "likes", "hour", "distance", "brand", "tags", "price", "moon")
    for name in draw(st.lists(st.sampled_from(fields) | ANY_TEXT, max_size=4)):
        match draw(st.integers(0, 4)):
            case 0:
                made.values[name].text = draw(
                    ANY_TEXT | st.sampled_from(('["a"]', "[[]]", '{"a": 1}', "1e400", "-0"))
                )
            case 1:
                made.values[name].set.values.extend(draw(st.lists(ANY_TEXT, max_size=3)))
            case 2:
                made.values[name].number = draw(NUMBERS)
            case 3:
                made.values[name].weighted_set.members.update(
                    draw(st.dictionaries(ANY_TEXT, NUMBERS, max_size=3))
                )
            case _:
                made.raw_keys.append(draw(ANY_TEXT))
    return made


OBJECTIVES = st.text("ctrscoe*+-/()0123456789.bid _x,", max_size=24) | st.sampled_from(
    (
        "ctr * price",
        "ctr ** 0.7 * price + 0.1",
        "log(score)",
        "1 / 0",
        "ctr if ctr else 1",
        "__import__('os')",
        "(" * 500,
    )
)


@st.composite
def requests(draw: st.DrawFn) -> RankRequest:
    made = RankRequest(
        request_id=draw(ANY_TEXT),
        cookie=draw(st.sampled_from(("", "u1", "u2")) | ANY_TEXT),
        item_ids=draw(st.lists(st.sampled_from(("item-1", "item-2")) | ANY_TEXT, max_size=4)),
        candidate_set=draw(st.sampled_from(("", "", "", "front page")) | ANY_TEXT),
        user=draw(features()),
        context=draw(features()),
    )
    for item in draw(st.lists(ANY_TEXT, max_size=2)):
        made.items.add(id=item).features.CopyFrom(draw(features()))
    if draw(st.booleans()):
        made.top_k = draw(st.integers(-(2**31), 2**31 - 1))
    if draw(st.integers(0, 3)) == 0:
        made.variant = draw(st.sampled_from(("base", "plain")) | ANY_TEXT)
    if draw(st.integers(0, 3)) == 0:
        made.objective = draw(OBJECTIVES)
    return made


@st.composite
def events(draw: st.DrawFn) -> FeedbackEvent:
    ids = ANY_TEXT | st.sampled_from(("r1", "item-1", "x" * 4096, "ü" * 2049, '"\n\\', "\0"))
    made = FeedbackEvent(
        event_id=draw(st.just("") | ids),
        request_id=draw(ids),
        item_id=draw(ids),
        kind=draw(st.sampled_from((0, 1, 2)) | st.integers(-(2**31), 2**31 - 1)),  # type: ignore[arg-type]
        value=draw(NUMBERS | st.just(0.0)),
    )
    if draw(st.booleans()):
        made.event_time.seconds = draw(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1_700_000_000))
        made.event_time.nanos = draw(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 999_999_999))
    return made


REPORTS = st.builds(
    ReportRequest, model=st.sampled_from(("", shop.NAME)) | ANY_TEXT, events=st.lists(events(), max_size=6)
)
MESSAGES = st.one_of(
    st.tuples(st.just(RANK), requests()),
    st.tuples(st.just(EXPLAIN), st.builds(ExplainRequest, request=requests())),
    st.tuples(st.just(REPORT), REPORTS),
)


@settings(examples(250), suppress_health_check=list(HealthCheck))
@given(
    message=MESSAGES,
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from("fdit"), st.binary(min_size=1, max_size=4)), max_size=3
    ),
)
def test_a_damaged_message_is_answered_or_the_callers_fault(
    ask: Ask, message: tuple[str, Any], cuts: list[tuple[float, str, bytes]]
) -> None:
    method, whole = message[0], bytearray(message[1].SerializeToString())
    for part, kind, noise in cuts:
        at = int(part * len(whole))
        match kind:
            case "f" if at < len(whole):
                whole[at] ^= noise[0]
            case "d":
                del whole[at : at + len(noise)]
            case "i":
                whole[at:at] = noise
            case "t":
                del whole[at:]
    answered(ask, method, bytes(whole))


@EXAMPLES
@given(request=requests())
def test_an_answer_names_each_candidate_once_with_finite_numbers(ask: Ask, request: RankRequest) -> None:
    request.ClearField("candidate_set")
    request.ClearField("top_k")
    request.ClearField("objective")
    status, answer = answered(ask, RANK, request.SerializeToString())
    if status is OK:
        wanted = [*request.item_ids, *(item.id for item in request.items)]
        assert sorted(item.id for item in answer.items) == sorted(wanted)
        assert all(0.0 <= item.ctr <= 1.0 and math.isfinite(item.score) for item in answer.items)


@EXAMPLES
@given(request=REPORTS)
def test_each_event_is_accepted_known_or_named_and_what_is_accepted_can_be_read_back(
    ask: Ask, shared_store: Store, request: ReportRequest
) -> None:
    stream = shared_store.clicks(shop.NAME)
    before = stream.info().last_id
    status, answer = answered(ask, REPORT, request.SerializeToString())
    added = [json.loads(payload) for payload in stream.read(before, 100).payloads]
    if status is not OK:
        assert added == []
        return
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
        _, again = answered(ask, REPORT, request.SerializeToString())
        assert (again.accepted_count, again.duplicate_count) == (0, len(good))


@settings(examples(100), suppress_health_check=list(HealthCheck))
@given(
    fields=st.dictionaries(
        st.binary(max_size=12) | st.sampled_from((b"ts", b"value", b"item")),
        st.binary(max_size=40),
        min_size=1,
    )
)
def test_an_entry_of_any_fields_is_read_as_one_line(shared_store: Store, fields: dict[bytes, bytes]) -> None:
    stream: EventStream = shared_store.event_stream("any")
    before = stream.info().last_id
    shared_store.client.xadd(stream.key, fields)
    (payload,) = stream.read(before, 10).payloads
    assert b"\n" not in payload
    if b"json" not in fields:
        assert "ts" in json.loads(payload)


def test_after_all_that_the_server_answers_as_before_and_has_logged_no_fault(
    ask: Ask, shared_client: Client
) -> None:
    before = shared_client.rank(cookie="u1", candidates=["item-1"], variant="base")
    with structlog.testing.capture_logs() as logs:
        for number in range(256):
            ask(RANK, bytes([number]) * 40)
            ask(REPORT, bytes([number]) * 40)
    for number in range(0, 256, 8):
        good = RankRequest(item_ids=["item-1"], cookie=chr(number)).SerializeToString()
        assert answered(ask, RANK, good)[0] is OK
    assert shared_client.rank(cookie="u1", candidates=["item-1"], variant="base").items == before.items
    report = ReportRequest(events=[FeedbackEvent(request_id="last", item_id="a", kind=CLICK)])
    assert answered(ask, REPORT, report.SerializeToString())[1].accepted_count == 1
    assert not [entry for entry in logs if entry["event"] in ("rank failed", "report failed")]
