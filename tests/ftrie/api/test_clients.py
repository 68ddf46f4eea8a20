"""Requests from plain Python values; and the asyncio client beside the client of threads, over real channels."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import numpy as np
import pytest

import ftrie
from ftrie import aio
from ftrie.api.access import Access
from ftrie.api.client import Client, Feedback, RankFailed, ReportFailed
from ftrie.api.messages import AnyOf, Between, Options, request_of
from model_store.errors import FieldValueError, ServerError
from model_store.store import Store
from tests.ftrie.test_balance import COOKIES, Named, homes
from tests.server import shop
from tests.server.certificates import identity
from tests.server.one_process import Server
from trainer.formats.batch import plain
from trainer.formats.tables import python_array

TOKEN = "rank-0123456789abcdef"
REQUEST: dict[str, Any] = {
    "cookie": "u1",
    "candidates": [*shop.ITEMS, "unknown"],
    "items": {"mine": {"brand": "b1", "price": 3}},
    "context": {"hour": shop.HOURS[0], "distance": 2.5, "moon": "full"},
    "objective": "ctr * price",
    "filters": {"brand": ["b1", "b2", "b3"]},
    "caps": {"brand": 2},
    "exploration": aio.Thompson(0.5),
    "request_id": "r1",
    "top_k": 4,
}


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_calls_to_this_machine_do_not_go_to_a_proxy(
    shared_server: Server, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")

    async def ask() -> Any:
        async with aio.Client(shared_server.address, timeout_s=20.0) as connected:
            return await connected.rank(**REQUEST)

    port = shared_server.address.rpartition(":")[2]
    for address in (shared_server.address, f"localhost:{port}", f"{shared_server.address},127.0.0.2:{port}"):
        with Client(address, timeout_s=20.0) as client:
            assert len(client.rank(**REQUEST).items) == 4
    assert len(asyncio.run(ask()).items) == 4


def test_answers_and_errors_are_those_of_the_client_of_threads(
    shared_server: Server, shared_client: Client
) -> None:
    requests = [{**REQUEST, "cookie": f"u{number}", "request_id": f"r{number}"} for number in range(20)]
    wrong = {**REQUEST, "top_k": 0}

    async def ask() -> Any:
        async with aio.Client(shared_server.address, timeout_s=20.0) as connected:
            with pytest.raises(RankFailed) as failed:
                await connected.rank(**wrong)
            rankings = await asyncio.gather(*(connected.rank(**request) for request in requests))
            return rankings, await connected.explain("shop", **REQUEST), failed.value

    rankings, explanation, ours = asyncio.run(ask())
    assert rankings == [shared_client.rank(**request) for request in requests]
    assert explanation == shared_client.explain("shop", **REQUEST)
    assert len(rankings[0].items) == 4 and rankings[0].unknown_fields == ("moon",)
    with pytest.raises(RankFailed) as failed:
        shared_client.rank(**wrong)
    theirs = failed.value
    assert (str(ours), ours.code, ours.reason) == (str(theirs), theirs.code, "INVALID_REQUEST")
    assert (ours.metadata, ours.violations) == ({"request_id": "r1"}, theirs.violations)
    assert ours.violations[0].field == "top_k"


def test_reports_count_once(server: Server) -> None:
    events = [Feedback("r1", "item-1"), Feedback("r1", "item-2"), Feedback("", "item-3")]

    async def report() -> list[Any]:
        async with aio.Client(server.address, timeout_s=20.0) as connected:
            with pytest.raises(ReportFailed, match="model: this server serves 'shop', not 'mall'"):
                await connected.feedback("mall", events)
            return [await connected.feedback("shop", events) for _ in range(2)]

    first, second = asyncio.run(report())
    assert (first.accepted, first.duplicates, len(first.rejected)) == (2, 0, 1)
    assert (second.accepted, second.duplicates, second.rejected) == (0, 2, first.rejected)


def test_what_no_server_needs_to_see_is_refused_before_a_call() -> None:
    async def ask(error: type[Exception], match: str, **options: Any) -> None:
        async with aio.Client("127.0.0.1:1") as connected:
            with pytest.raises(error, match=match):
                await connected.rank("shop", **options)

    async def connect(address: str, access: Access) -> None:
        aio.Client(address, access=access)

    asyncio.run(
        ask(TypeError, "unexpected keyword 'contxt'; a ranking takes .*; did you mean context?", contxt={})
    )
    asyncio.run(ask(FieldValueError, "not Unicode text", cookie="\ud800"))
    with pytest.raises(ServerError, match="unencrypted; give --tls-ca"):
        asyncio.run(connect("10.0.0.5:50051", Access(token=TOKEN)))
    with pytest.raises(ServerError, match="expected IP:PORT"):
        asyncio.run(connect("one:50051,two:50051", Access()))


def test_a_server_that_is_away_fails_the_call_and_a_cancelled_task_its_own(shared_server: Server) -> None:
    async def ask() -> None:
        async with aio.Client("127.0.0.1:1") as away:
            with pytest.raises(RankFailed) as failed:
                await away.rank(candidates=["a"])
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
        async with aio.Client(shared_server.address) as connected:
            task = asyncio.create_task(connected.rank(**REQUEST))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await connected.rank(**REQUEST)).items

    asyncio.run(ask())


def test_tls_and_tokens_are_used_as_by_the_client_of_threads(
    shop_store: Store, start: Callable[..., Server], tmp_path: Path
) -> None:
    pem, tokens = identity(tmp_path, "server"), tmp_path / "tokens.toml"
    tokens.write_text(f'rank = ["{TOKEN}"]\n')
    tokens.chmod(0o600)
    served = start(tls_cert=pem.cert, tls_key=pem.key, tokens=str(tokens))
    assert served.ready.wait(60)

    async def outcome(access: Access) -> grpc.StatusCode:
        async with aio.Client(served.address, 20.0, access) as connected:
            try:
                await connected.rank(candidates=["item-1"])
            except RankFailed as error:
                return error.code
            return grpc.StatusCode.OK

    assert asyncio.run(outcome(Access(ca=pem.ca, token=TOKEN))) is grpc.StatusCode.OK
    assert asyncio.run(outcome(Access(ca=pem.ca, token=TOKEN + "x"))) is grpc.StatusCode.UNAUTHENTICATED
    assert asyncio.run(outcome(Access(ca=pem.ca))) is grpc.StatusCode.UNAUTHENTICATED
    other = identity(tmp_path, "other")
    assert asyncio.run(outcome(Access(ca=other.ca, token=TOKEN))) is grpc.StatusCode.UNAVAILABLE


def test_by_cookie_a_user_s_calls_go_where_the_client_of_threads_sends_them(servers: list[Named]) -> None:
    address = ",".join(server.address for server in servers)

    async def ours() -> dict[str, str]:
        async with aio.Client(address, 20.0, balance="cookie") as connected:
            for _ in range(200):  # until all three are connected
                answers = [await connected.rank(cookie=cookie, candidates=["a"]) for cookie in COOKIES[:30]]
                if len({answer.model for answer in answers}) == 3:
                    break
            found = [await connected.rank(cookie=cookie, candidates=["a"]) for cookie in COOKIES]
            return {cookie: answer.model for cookie, answer in zip(COOKIES, found, strict=True)}

    with Client(address, balance="cookie", timeout_s=20) as threads:
        for _ in range(200):
            if len(set(homes(threads).values())) == 3:
                break
        assert asyncio.run(ours()) == homes(threads)


def test_ftrie_aio_needs_no_import_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ftrie, "aio")
    monkeypatch.delitem(sys.modules, "ftrie.aio")
    assert ftrie.aio.Client.__module__ == "ftrie.aio"
    assert ftrie.aio is sys.modules["ftrie.aio"]


def test_an_unknown_keyword_is_refused_and_the_known_ones_are_listed() -> None:
    for keyword, said in (
        ("candidate", "did you mean candidates?"),
        ("topk", "did you mean top_k?"),
        ("contxt", "did you mean context?"),
        ("zzzz", "'zzzz'; a ranking takes"),
    ):
        with pytest.raises(TypeError) as raised:
            request_of("shop", **{"cookie": "u1", keyword: 1})  # type: ignore[misc]
        assert said in str(raised.value)
        listed = str(raised.value).partition("a ranking takes ")[2].partition("; ")[0].split(", ")
        assert sorted(listed) == sorted(Options.__optional_keys__)


def test_a_user_is_an_id_or_features() -> None:
    assert request_of("shop", user="u1") == request_of("shop", cookie="u1")
    assert request_of("shop", user="u1", cookie="u1", candidates=["a"]).cookie == "u1"
    both = request_of("shop", user={"age": 20}, cookie="u1")
    assert (both.cookie, [*both.user.values]) == ("u1", ["age"])


def test_a_filter_by_field_is_one_text_or_several_or_two_bounds() -> None:
    tests: Any = {"brand": "b1", "seller": {"s1"}, "tags": ["a", "", "a"], "bid": (np.float64(2), None)}
    tests |= {"age": (None, -5), "x": (None, None), "y": (-0.5, 5)}
    long = [AnyOf("brand", ["b1"]), AnyOf("seller", ["s1"]), AnyOf("tags", ["a", "", "a"])]
    bounds = [Between("bid", 2), Between("age", most=-5), Between("x"), Between("y", -0.5, 5)]
    assert request_of("shop", filters=tests) == request_of("shop", filters=[*long, *bounds])
    for test in (1, (1, 2, 3), ["a", 1], (None, "b")):
        said = "filters: got .* for 'bid', expected a text, several texts, or the pair"
        with pytest.raises(TypeError, match=said):
            request_of("shop", filters={"bid": test})  # type: ignore[dict-item]


def test_none_is_no_value_and_numpy_s_values_are_python_s() -> None:
    plain = request_of("shop", user={"age": 20, "new": True, "x": 1.5, "likes": ["a"]}, context=None)
    user: Any = {"age": np.int64(20), "new": np.bool_(True), "x": np.float32(1.5)}
    user |= {"likes": np.array(["a"]), "city": None}
    assert plain == request_of("shop", user=user, items=None)


def test_times_decimals_and_uuids_are_the_texts_that_a_table_s_columns_have() -> None:
    at = datetime(2026, 3, 1, 18, 0, 5)
    missing = [type(name, (), {})() for name in ("NAType", "NaTType")]  # as pandas' are
    for value in (
        at,
        at.replace(tzinfo=timezone(timedelta(hours=1))),
        at.date(),
        Decimal("1.50"),
        UUID(int=7),
    ):
        features = request_of("shop", context={"x": value, "y": missing[0], "z": missing[1]}).context.values
        assert (list(features), features["x"].text) == (["x"], plain(python_array([value]))[0].as_py())
    with pytest.raises(FieldValueError, match="x: got a object, expected text, a number"):
        request_of("shop", context={"x": object()})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"candidates": "item-1"}, "candidates: got the text 'item-1', expected a list of ids"),
        ({"candidates": ["a", 7]}, r"candidates\[1\]: got 7, expected a text"),
        ({"items": {7: {}}}, "items: got 7, expected a text"),
        ({"cookie": 7}, "cookie: got 7, expected a text"),
        ({"user": 7}, "user: got 7, expected features by name, or the user's id as a text"),
        ({"user": "u1", "cookie": "u2"}, "got user='u1' and cookie='u2'; give one id of the user"),
        ({"user": "u1", "context": {7: "a"}}, "context: got 7, expected a text"),
        ({"user": {"likes": ["a", 7]}}, r"user\['likes'\]: got 7, expected a text"),
        ({"items": {"a": {"tags": [None]}}}, r"items\['a'\]\['tags'\]: got None, expected a text"),
        ({"context": {7: "a"}}, "context: got 7, expected a text"),
    ],
)
def test_a_value_of_another_type_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        request_of("shop", **options)  # type: ignore[misc]
