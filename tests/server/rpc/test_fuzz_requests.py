"""Requests that nobody would send: any bytes, damaged messages, features of every text. Each is answered or refused
with a reason that is the caller's; none is an internal error, and the server goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import ExplainRequest, ExplainResponse, Features, RankRequest, RankResponse
from ftrie.client.client import Client
from tests.matrix import examples
from tests.server.one_process import Server

CALLERS_FAULT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
}
EXAMPLES = settings(examples(150), suppress_health_check=list(HealthCheck))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
FIELDS = st.sampled_from(("age", "device", "likes", "hour", "distance", "brand", "tags", "price", "moon"))
NAMES = FIELDS | ANY_TEXT


def asking(channel: grpc.Channel, method: str) -> Any:
    """Calls a method with bytes; returns the status and the answer's bytes."""
    call = channel.unary_unary(f"/ctr.v1.RankingService/{method}")

    def ask(message: bytes) -> tuple[grpc.StatusCode, bytes]:
        try:
            return grpc.StatusCode.OK, call(message, timeout=30)
        except grpc.RpcError as error:
            return error.code(), b""

    return ask


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


@pytest.fixture
def rank(channel: grpc.Channel) -> Any:
    return asking(channel, "Rank")


@pytest.fixture
def explain(channel: grpc.Channel) -> Any:
    return asking(channel, "Explain")


@st.composite
def features(draw: st.DrawFn) -> Features:
    made = Features()
    for name in draw(st.lists(NAMES, max_size=4)):
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


@st.composite
def requests(draw: st.DrawFn) -> RankRequest:
    """A request that could be one, or nearly."""
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


@EXAMPLES
@given(message=st.binary(max_size=200))
def test_any_bytes_are_the_callers_fault(rank: Any, message: bytes) -> None:
    status, answer = rank(message)
    assert status in CALLERS_FAULT
    RankResponse.FromString(answer)


@EXAMPLES
@given(
    request=requests(),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from("fdit"), st.binary(min_size=1, max_size=4)), max_size=3
    ),
)
def test_a_damaged_request_is_answered_or_the_callers_fault(
    rank: Any, request: RankRequest, cuts: list[tuple[float, str, bytes]]
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
    status, answer = rank(bytes(message))
    assert status in CALLERS_FAULT
    RankResponse.FromString(answer)


@EXAMPLES
@given(request=requests())
def test_an_answer_names_each_candidate_once_with_finite_numbers(rank: Any, request: RankRequest) -> None:
    request.ClearField("candidate_set")
    request.ClearField("top_k")
    request.ClearField("objective")
    status, answer = rank(request.SerializeToString())
    assert status in CALLERS_FAULT
    if status is grpc.StatusCode.OK:
        items = RankResponse.FromString(answer).items
        wanted = [*request.item_ids, *(item.id for item in request.items)]
        assert sorted(item.id for item in items) == sorted(wanted)
        assert all(0.0 <= item.ctr <= 1.0 and math.isfinite(item.score) for item in items)


@EXAMPLES
@given(
    message=st.binary(max_size=100) | requests().map(lambda r: ExplainRequest(request=r).SerializeToString())
)
def test_an_explanation_is_given_or_refused_as_a_ranking_is(explain: Any, message: bytes) -> None:
    status, answer = explain(message)
    assert status in CALLERS_FAULT
    ExplainResponse.FromString(answer)


def test_after_all_that_the_server_ranks_as_before_and_has_logged_no_fault(rank: Any, client: Client) -> None:
    before = client.rank(cookie="u1", candidates=["item-1"], variant="base")
    with structlog.testing.capture_logs() as logs:
        for number in range(256):
            rank(bytes([number]) * 40)
            rank(RankRequest(item_ids=["item-1"], cookie=chr(number)).SerializeToString())
    assert client.rank(cookie="u1", candidates=["item-1"], variant="base").items == before.items
    assert not [entry for entry in logs if entry["event"] == "rank failed"]
