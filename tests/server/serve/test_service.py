"""Rank over a real channel, on a real store: what is answered, where each feature comes from, how it follows.

And what a failed call carries besides its status: ErrorInfo, BadRequest and RetryInfo.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog
from google.protobuf.message import DecodeError, EncodeError

from ftrie.api.access import CallFailed, FieldViolation
from ftrie.api.client import Client, RankFailed
from ftrie.demo.processes import free_port
from model_store.errors import FieldValueError, StoreError, StoreUnavailable
from model_store.keys import ITEMS_CHANGES
from model_store.store import Store
from server.errors import (
    MAX_MESSAGE_BYTES,
    Degradation,
    InvalidObjective,
    InvalidRequest,
    NotReady,
    abort,
    is_own_fault,
)
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
ALL = list(shop.ITEMS)


def expected(cookie: str, item: str, variant: int = 0, **fields: Any) -> float:
    user = {"device": cookie, **shop.USERS.get(cookie, {})} if cookie else {}
    return shop.expected_score({**user, **CONTEXT, **shop.ITEMS.get(item, {}), **fields}, variant)


def score(client: Client, cookie: str = "u1", item: str = "item-1", **asked: Any) -> float:
    """The score of one item, which is asked for by its id if `asked` says nothing else of it."""
    candidates = () if "items" in asked else [item]
    asked = {"context": CONTEXT, "variant": "base", "candidates": candidates, **asked}
    return client.rank(cookie=cookie, **asked).items[0].score


@pytest.mark.parametrize("cookie", ["u1", "u2", "nobody", ""])
def test_a_score_is_the_sum_of_the_weights_of_its_keys(shared_client: Client, cookie: str) -> None:
    for variant, name in enumerate(shop.VARIANTS):
        answer = shared_client.rank(shop.NAME, cookie=cookie, candidates=ALL, context=CONTEXT, variant=name)
        wanted = {item: expected(cookie, item, variant) for item in ALL}
        assert {i.id: i.score for i in answer.items} == pytest.approx(wanted, abs=1e-6)
        assert [i.ctr for i in answer.items] == pytest.approx(
            [1 / (1 + math.exp(-i.score)) for i in answer.items]
        )


def test_the_best_of_ids_or_a_set_come_first_equals_as_they_came_top_k_cuts(shared_client: Client) -> None:
    every = shared_client.rank(cookie="u1", candidates=ALL, context=CONTEXT)
    best = shared_client.rank(cookie="u1", candidates=ALL, context=CONTEXT, top_k=3)
    assert [i.score for i in every.items] == sorted((i.score for i in every.items), reverse=True)
    assert best.items == every.items[:3]
    equal = shared_client.rank(candidates=["z", "item-1", "a", "m"], items={"q": {}})
    assert [i.id for i in equal.items if i.id != "item-1"] == ["z", "a", "m", "q"]
    by_set = shared_client.rank(cookie="u1", candidate_set="front page", context=CONTEXT)
    by_id = shared_client.rank(cookie="u1", candidates=["item-3", "item-1", "item-2"], context=CONTEXT)
    assert by_set.items == by_id.items
    assert len(shared_client.rank(candidates=ALL * 833 + ALL[:4]).items) == 10_000, "the most allowed"


def test_what_is_given_of_an_item_overrides_what_the_catalogue_has_by_field(shared_client: Client) -> None:
    def given(item: str, **features: Any) -> float:
        return score(shared_client, items={item: features})

    mine = given("my own", brand="b1", tags=["blue", "green"], price=3.0)
    assert mine == pytest.approx(score(shared_client))
    assert given("item-1") == pytest.approx(expected("u1", "item-1"))
    assert given("item-1", price=48.0) == pytest.approx(expected("u1", "item-1", price="48"))
    assert given("item-1", tags=["red"], brand="b3") == pytest.approx(
        expected("u1", "item-1", tags=["red"], brand="b3")
    )
    assert given("item-1", brand="") == pytest.approx(expected("u1", "item-1", brand=None))
    assert given("no such", price=48.0) == pytest.approx(expected("u1", "no such", price="48"))
    answer = shared_client.rank(items={"item-1": {"price": 48.0}, "no such": {}})
    assert answer.unknown_fields == answer.unknown_items == ()


def test_inline_features_override_stored_ones_and_context_overrides_both(shared_client: Client) -> None:
    assert score(shared_client, user={"age": "30"}) == pytest.approx(expected("u1", "item-1", age="30"))
    assert score(shared_client, user={"age": "30"}, context={**CONTEXT, "age": "40"}) == pytest.approx(
        expected("u1", "item-1", age="40")
    )
    assert score(shared_client, user={"age": ""}) == pytest.approx(expected("u1", "item-1", age=None))
    # The cookie is the value of the cookie's own field.
    assert score(shared_client, user={"device": "u2"}) == pytest.approx(expected("u1", "item-1", device="u2"))


def test_members_of_weighted_sets_count_as_often_as_x(shared_client: Client, shared_store: Store) -> None:
    likes = {"red": 0.5, "blue": -2.0, "green": 0.0}
    wanted = expected("u1", "item-1", likes=likes)
    assert wanted != pytest.approx(expected("u1", "item-1", likes=["red", "blue"]))
    assert score(shared_client, user={"likes": likes}) == pytest.approx(wanted)
    shared_store.records.put_users([("of weights", {"age": "20", "likes": '{"red": 0.5, "blue": -2}'})])
    assert score(shared_client, "of weights") == pytest.approx(
        expected("of weights", "item-1", age="20", likes=likes)
    )
    tags = {"blue": 3, "red": -1.5}
    assert score(shared_client, items={"new": {"brand": "b1", "tags": tags}}) == pytest.approx(
        expected("u1", "new", brand="b1", tags=tags)
    )


def test_what_the_model_does_not_know_is_listed_and_the_rest_scored(shared_client: Client) -> None:
    answer = shared_client.rank(
        cookie="u1",  # whose record has a name that the model does not use: that is nobody's fault
        candidates=["item-1", "no such"],
        context={**CONTEXT, "moon": "full"},
        user={"mood": "good"},
        variant="base",
    )
    assert answer.unknown_items == ("no such",)
    assert sorted(answer.unknown_fields) == ["mood", "moon"]
    assert {i.id: i.score for i in answer.items}["no such"] == pytest.approx(expected("u1", "no such"))
    features = {"brand": "b1", "colour": "red", "age": "20"}
    answer = shared_client.rank(items={"a": features, "b": {"colour": "blue"}}, context={"colour": "x"})
    assert sorted(answer.unknown_fields) == ["age", "colour"]


def test_an_answer_says_who_made_it_has_an_id_and_a_cookie_keeps_its_variant(shared_client: Client) -> None:
    asked: dict[str, Any] = {"request_id": "r-17", "variant": "plain"}
    answer = shared_client.rank(shop.NAME, cookie="u1", candidates=["item-1"], **asked)
    assert (answer.request_id, answer.cookie, answer.model) == ("r-17", "u1", shop.NAME)
    assert (answer.version, answer.variant, answer.degraded) == (1, "plain", ())
    ids, seen = set[str](), dict[str, set[str]]()
    for cookie in [f"c{n}" for n in range(30)] * 2:
        answer = shared_client.rank(cookie=cookie, candidates=["item-1"])
        ids.add(answer.request_id)
        seen.setdefault(cookie, set()).add(answer.variant)
    assert len(ids) == 60
    assert {len(each) for each in ids} == {32}
    assert all(len(variants) == 1 for variants in seen.values())
    assert set().union(*seen.values()) == {"base", "plain"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "item_ids: no candidates"),
        ({"candidates": ["a", "", "b"]}, "item_ids[1]: empty"),
        ({"candidates": ["a"] * 10_001}, "item_ids, items: 10001 candidates"),
        ({"candidates": ["a"], "candidate_set": "front page"}, "candidate_set: give either"),
        ({"items": {"": {}}}, "items[0].id: empty"),
        ({"candidates": ["a"], "top_k": 0}, "top_k: got 0"),
        ({"candidates": ["a"], "top_k": -3}, "top_k: got -3"),
        ({"candidates": ["a"], "variant": "best"}, "variant: no variant 'best'; the model has: base, plain"),
        ({"candidates": ["a"], "cookie": "ü" * 2049}, "cookie: longer than 4096 bytes"),
        ({"candidate_set": "s" * 4097}, "candidate_set: longer than 4096 bytes"),
        ({"candidates": ["a"], "context": {"hour": "noon"}}, "context.values[\"hour\"]: hour: got 'noon'"),
        ({"candidates": ["a"], "context": {"distance": math.nan}}, 'context.values["distance"]: '),
        (
            {"candidates": ["a"], "user": {"likes": {"red": math.inf}}},
            'user.values["likes"]: likes: got inf, expected a finite number',
        ),
        ({"candidates": ["a"], "user": {"age": "x" * 4097}}, 'user.values["age"]: age: the key would be'),
        ({"candidates": ["a"], "user": {"likes": ["x" * 5000]}}, 'user.values["likes"]: '),
        ({"candidates": ["a"], "context": {"brand": "b1"}}, 'context.values["brand"]: belongs to the item'),
        ({"candidates": ["a"], "user": {"likes": "[" * 100_000}}, 'user.values["likes"]: likes: got '),
        (
            {"candidates": ["a"], "context": {"hour": "9999-12-31T23:59:59-14:00"}},
            'context.values["hour"]: hour: got',
        ),
        ({"items": {"a": {"price": "dear"}}}, "items[0].features.values[\"price\"]: price: got 'dear'"),
        ({"model": "other", "candidates": ["a"]}, "model: this server serves 'shop', not 'other'"),
        ({"candidate_set": "no such"}, "candidate_set: the store has no set 'no such'"),
    ],
)
def test_what_cannot_be_answered_names_the_field(
    shared_client: Client, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(RankFailed) as failed:
        shared_client.rank(**arguments)
    code = "NOT_FOUND" if "this server" in message or "the store" in message else "INVALID_ARGUMENT"
    assert failed.value.code.name == code
    assert f"{code}: {message}" in str(failed.value)


def test_a_user_s_record_that_does_not_fit_costs_what_does_not_fit_and_is_said_and_a_set_is_refused(
    shared_client: Client, shared_store: Store
) -> None:
    shared_store.client.set("ftrie:candidates:odd", "text")
    with pytest.raises(RankFailed) as failed:
        shared_client.rank(candidate_set="odd")
    assert failed.value.code is grpc.StatusCode.FAILED_PRECONDITION
    shared_store.client.hset("ftrie:user:bent", mapping={"age": "x" * 5000, "likes": '["red"]'})
    shared_store.client.set("ftrie:user:no record", "text")
    answer = shared_client.rank(cookie="bent", candidates=["item-1"], context=CONTEXT, variant="base")
    assert str(answer.degraded[0]).startswith("user_features: left out age: the key would be")
    assert answer.items[0].score == pytest.approx(expected("bent", "item-1", likes=["red"]))
    answer = shared_client.rank(cookie="no record", candidates=["item-1"])
    assert str(answer.degraded[0]).startswith("user_features: ")


def test_an_item_stored_after_the_catalogue_was_read_is_scored_at_once(
    client: Client, store: Store, server: Server
) -> None:
    store.client.hset("ftrie:item:new", mapping={"brand": "b2", "price": "6"})
    answer = client.rank(cookie="u1", candidates=["item-1", "new"], context=CONTEXT, variant="base")
    scores = {i.id: i.score for i in answer.items}
    assert scores["new"] == pytest.approx(expected("u1", "new", brand="b2", price="6"))
    assert scores["item-1"] == pytest.approx(expected("u1", "item-1"))
    assert answer.unknown_items == ()
    eventually(lambda: server.current.served is not None and len(server.current.served.catalogue) == 13)


def test_late_items_lose_what_does_not_fit_alone_and_are_not_asked_for_when_they_are_spelled_out(
    client: Client, store: Store
) -> None:
    store.client.hset("ftrie:item:spelled", mapping={"brand": "b2"})
    store.client.hset("ftrie:item:bent", mapping={"brand": "b2", "price": "dear"})
    store.client.hset("ftrie:item:late", mapping={"brand": "b3", "price": "6", "stock": "9"})
    store.client.rpush("ftrie:candidates:holed", "", "late")
    spelled = score(client, items={"spelled": {"price": 6.0}})
    assert spelled == pytest.approx(expected("u1", "spelled", price="6"))
    answer = client.rank(cookie="u1", candidates=["bent", "late"], context=CONTEXT, variant="base")
    scores = {i.id: i.score for i in answer.items}
    late = expected("u1", "late", brand="b3", price="6")
    assert scores == pytest.approx({"bent": expected("u1", "bent", brand="b2"), "late": late})
    assert list(map(str, answer.degraded)) == ["items: 'bent': left out price: got 'dear', expected a number"]
    assert (answer.unknown_items, answer.unknown_fields) == ((), ())
    answer = client.rank(cookie="u1", candidate_set="holed", context=CONTEXT, variant="base")
    assert {i.id: i.score for i in answer.items}["late"] == pytest.approx(late)
    assert (answer.degraded, answer.unknown_items) == ((), ("",))


def test_what_an_answer_echoes_is_bounded_and_says_how_much_it_leaves_out(
    shared_client: Client, shared_store: Store
) -> None:
    unknown = [f"{n:05}".ljust(500, "x") for n in range(2000)]
    fields = {f"{n:03}".ljust(200, "y"): "1" for n in range(1000)}
    answer = shared_client.rank(candidates=unknown, context=fields, top_k=1)
    assert answer.unknown_items == tuple(unknown[:131]) and 131 * 500 <= 1 << 16 < 132 * 500
    assert len(answer.unknown_fields) == (1 << 16) // 200
    said = list(map(str, answer.degraded))
    assert "unknown_items: 2,000, of which the first 131 are listed" in said
    assert "unknown_fields: 1,000, of which the first 327 are listed" in said
    bent = [f"bent-{n}" for n in range(200)]
    for item in bent:
        shared_store.client.hset(f"ftrie:item:{item}", mapping={"price": "dear"})
    answer = shared_client.rank(candidates=bent, top_k=1)
    assert len(answer.degraded) == 101 and str(answer.degraded[-1]) == "degraded: 100 more"


def test_an_unknown_fault_is_logged_whole_and_told_to_nobody(client: Client, server: Server) -> None:
    assert server.current.served is not None
    server.current.served = replace(server.current.served, ranker=None)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs, pytest.raises(RankFailed) as failed:
        client.rank(candidates=["a"], request_id="r-18")
    assert failed.value.code is grpc.StatusCode.INTERNAL
    assert "NoneType" not in str(failed.value)
    assert "r-18" in str(failed.value)
    fault = next(line for line in logs if line["event"] == "rank failed")
    assert fault["request_id"] == "r-18"
    assert isinstance(fault["exc_info"], AttributeError)


def test_items_are_followed_whoever_changes_them(client: Client, store: Store) -> None:
    def has(**fields: str) -> bool:
        return score(client, "", context={}) == pytest.approx(shop.expected_score(fields, 0))

    changed = {**shop.ITEMS["item-1"], "brand": "b3"}
    assert not has(**changed)
    store.client.hset("ftrie:item:item-1", "brand", "b3")  # another system, which gives notice
    store.client.xadd(ITEMS_CHANGES, {"id": "item-1"})
    eventually(lambda: has(**changed))
    store.records.put_items([("item-1", {"brand": "b2"})])
    eventually(lambda: has(brand="b2"))
    store.records.put_items([("item-1", {})])
    eventually(lambda: client.rank(candidates=["item-1"]).unknown_items == ("item-1",))


def test_users_are_read_from_their_own_store_once_within_the_time_to_live(
    shop_store: Store, store_url: str, start: Callable[..., Server]
) -> None:
    users = f"unix://{store_url.removeprefix('embedded:')}/valkey.sock?db=2"
    with Store.open(users) as own:
        own.records.put_users([("u1", {"age": "40"})])
    server = start(user_store=users)
    assert server.ready.wait(180)

    def reads() -> int:
        return int(shop_store.client.info("commandstats")["cmdstat_hmget"]["calls"])

    fields = {"device": "u1", "age": "40", **shop.ITEMS["item-1"]}
    with Client(server.address, timeout_s=20.0) as client:
        for _ in range(5):
            assert score(client, context={}) == pytest.approx(shop.expected_score(fields, 0))
            client.rank(cookie="nobody", candidates=["item-1"])
        before = reads()
        for cookie in ("u1", "nobody"):
            client.rank(cookie=cookie, candidates=["item-1"])
        assert before >= 2
        assert reads() == before


class Ends(grpc.RpcError):
    """A call's context that keeps how the call ended, as the client's grpc raises it."""

    def abort_with_status(self, status: Any) -> None:
        self.status = status
        raise self

    def code(self) -> Any:
        return self.status.code

    def details(self) -> str:
        return str(self.status.details)

    def trailing_metadata(self) -> Any:
        return self.status.trailing_metadata


def failed(error: Exception, **more: Any) -> CallFailed:
    context: Any = Ends()
    with pytest.raises(Ends):
        abort(context, error, **more)
    return CallFailed.of("here", context)


def test_each_error_has_its_reason_the_fields_at_fault_and_when_to_try_again() -> None:
    for error, reason, fields in (
        (InvalidObjective("character 3: got '*'"), "INVALID_OBJECTIVE", ["objective"]),
        (InvalidRequest('user.values["a: b, c"]', "x"), "INVALID_REQUEST", ['user.values["a: b, c"]']),
        (InvalidRequest(("user", "context"), "1025 fields"), "INVALID_REQUEST", ["user", "context"]),
        (InvalidRequest((), "the sets of a*b: too many"), "INVALID_REQUEST", []),
        (FieldValueError("got 'x'", "age"), "INVALID_FEATURE_VALUE", ["age"]),
        (FieldValueError("no path at all"), "INVALID_FEATURE_VALUE", []),
        (StoreError("shop: WRONGTYPE"), "STORED_DATA_INVALID", []),
        (KeyError("a secret"), "INTERNAL", []),
    ):
        told = failed(error, request_id="r1")
        assert (told.reason, told.metadata, told.retry_after_s) == (reason, {"request_id": "r1"}, None)
        assert [each.field for each in told.violations] == fields
        assert "secret" not in str(told)
    # Only what may succeed later says when to try again.
    assert failed(NotReady("draining")).retry_after_s is None
    told = failed(StoreUnavailable("away"), retry=True)
    assert told.retry_after_s is not None and 0.2 <= told.retry_after_s <= 1.0
    assert failed(StoreError("damaged"), retry=True).retry_after_s is None
    for short in (MemoryError("a secret"), EncodeError("a secret"), DecodeError("Arena alloc failed")):
        told = failed(short)
        assert (told.reason, told.retry_after_s is None) == ("OUT_OF_MEMORY", False)
        assert "secret" not in str(told) and "alloc" not in str(told) and is_own_fault(short)


def test_callers_are_not_told_where_the_store_is_or_what_numpy_says(tmp_path: Path) -> None:
    port = free_port()
    for url in (
        f"redis://shop-reader:s3cr3t@127.0.0.1:{port}/0",
        f"unix://shop-reader:s3cr3t@{tmp_path}/nobody.sock",
        f"cluster://shop-reader:s3cr3t@127.0.0.1:{port}",
        f"sentinel://127.0.0.1:{port}/shop",
    ):
        with pytest.raises(StoreUnavailable) as away:
            Store.open(url, 0.5)
        assert str(port) in str(away.value) or "nobody.sock" in str(away.value)
        for told in (str(failed(away.value)), Degradation.of("items", away.value).message().detail):
            assert "the store does not answer" in told
            assert not any(
                each in told for each in ("shop-reader", str(port), str(tmp_path), "127.0.0.1", "//")
            )
    with pytest.raises(MemoryError, match="Unable to allocate") as short:
        np.empty(1 << 55)
    answer = failed(short.value, request_id="r1")
    assert (answer.code.name, answer.reason) == ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY")
    assert "short of memory (request_id r1); see" in str(answer) and "allocate" not in str(answer)
    assert answer.retry_after_s is not None


def test_a_long_text_is_cut_so_that_the_details_reach_the_client() -> None:
    long_path = InvalidRequest('user.values["' + "x" * 5_000 + '"]', "no")
    for error in (FieldValueError("x" * 100_000), FieldValueError("€" * 100_000), long_path):
        context: Any = Ends()
        with pytest.raises(Ends):
            abort(context, error, "r" * 100_000)
        assert len(context.details().encode()) <= MAX_MESSAGE_BYTES + 3
        assert sum(len(value) for _, value in context.trailing_metadata()) < 4 * MAX_MESSAGE_BYTES


def test_a_client_gets_the_field_and_the_reason(shared_client: Client) -> None:
    with pytest.raises(RankFailed) as wrong:
        shared_client.rank(candidates=["a", ""], request_id="r1")
    empty = FieldViolation("item_ids[1]", "empty; an item id has at least one character")
    assert wrong.value.violations == (empty,)
    assert (wrong.value.reason, wrong.value.metadata) == ("INVALID_REQUEST", {"request_id": "r1"})
    with pytest.raises(RankFailed) as within:
        shared_client.explain(candidates=["a", ""])
    assert [each.field for each in within.value.violations] == ["request.item_ids[1]"]
    with pytest.raises(RankFailed) as unknown:
        shared_client.rank("other", candidates=["a"], request_id="r" * 10_000)
    assert (unknown.value.reason, unknown.value.violations) == ("MODEL_NOT_SERVED", ())
