"""Rank over a real channel, on a real store: what is answered, and where each feature comes from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import structlog

from ftrie.client.client import Client, RankFailed
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
ALL = list(shop.ITEMS)


def expected(cookie: str, item: str, variant: int = 0, **fields: Any) -> float:
    user = {"device": cookie, **shop.USERS.get(cookie, {})} if cookie else {}
    return shop.expected_score({**user, **CONTEXT, **shop.ITEMS.get(item, {}), **fields}, variant)


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("cookie", ["u1", "u2", "nobody", ""])
def test_a_score_is_the_sum_of_the_weights_of_its_keys(client: Client, cookie: str, variant: int) -> None:
    answer = client.rank(
        shop.NAME, cookie=cookie, candidates=ALL, context=CONTEXT, variant=("base", "plain")[variant]
    )
    assert {i.id: i.score for i in answer.items} == pytest.approx(
        {item: expected(cookie, item, variant) for item in ALL}, abs=1e-6
    )
    assert [i.ctr for i in answer.items] == pytest.approx(
        [1 / (1 + math.exp(-i.score)) for i in answer.items]
    )


def test_the_best_come_first_and_top_k_cuts(client: Client) -> None:
    every = client.rank(cookie="u1", candidates=ALL, context=CONTEXT)
    best = client.rank(cookie="u1", candidates=ALL, context=CONTEXT, top_k=3)
    assert [i.score for i in every.items] == sorted((i.score for i in every.items), reverse=True)
    assert best.items == every.items[:3]


def test_equal_scores_keep_the_order_of_the_candidates(client: Client) -> None:
    answer = client.rank(candidates=["z", "item-1", "a", "m"], items={"q": {}})
    assert [i.id for i in answer.items if i.id != "item-1"] == ["z", "a", "m", "q"]


def test_an_item_spelled_out_scores_as_the_same_item_by_id(client: Client) -> None:
    features: dict[str, Any] = {"brand": "b1", "tags": ["blue", "green"], "price": 3.0}
    answer = client.rank(cookie="u1", candidates=["item-1"], items={"my own": features}, context=CONTEXT)
    assert {i.id for i in answer.items} == {"item-1", "my own"}
    assert answer.items[0].score == pytest.approx(answer.items[1].score)


def test_what_is_given_of_an_item_overrides_what_the_catalogue_has_field_by_field(client: Client) -> None:
    def score(item: str, **features: Any) -> float:
        answer = client.rank(cookie="u1", items={item: features}, context=CONTEXT, variant="base")
        assert answer.unknown_fields == answer.unknown_items == ()
        return answer.items[0].score

    assert score("item-1") == pytest.approx(expected("u1", "item-1"))
    assert score("item-1", price=48.0) == pytest.approx(expected("u1", "item-1", price="48"))
    assert score("item-1", tags=["red"], brand="b3") == pytest.approx(
        expected("u1", "item-1", tags=["red"], brand="b3")
    )
    assert score("item-1", brand="") == pytest.approx(expected("u1", "item-1", brand=None))
    assert score("no such", price=48.0) == pytest.approx(expected("u1", "no such", price="48"))


def test_an_item_that_only_the_store_has_is_not_asked_for_when_it_is_spelled_out(
    client: Client, store: Store
) -> None:
    store.client.hset("ftrie:item:new", mapping={"brand": "b2"})
    answer = client.rank(cookie="u1", items={"new": {"price": 6.0}}, context=CONTEXT, variant="base")
    assert answer.items[0].score == pytest.approx(expected("u1", "new", price="6"))


def test_a_candidate_set_is_ranked_like_its_members(client: Client) -> None:
    by_set = client.rank(cookie="u1", candidate_set="front page", context=CONTEXT)
    by_id = client.rank(cookie="u1", candidates=["item-3", "item-1", "item-2"], context=CONTEXT)
    assert by_set.items == by_id.items


def test_inline_features_override_stored_ones_and_context_overrides_both(client: Client) -> None:
    def score(**sides: Any) -> float:
        return client.rank(cookie="u1", candidates=["item-1"], variant="base", **sides).items[0].score

    assert score(user={"age": "30"}, context=CONTEXT) == pytest.approx(expected("u1", "item-1", age="30"))
    assert score(user={"age": "30"}, context={**CONTEXT, "age": "40"}) == pytest.approx(
        expected("u1", "item-1", age="40")
    )
    assert score(user={"age": ""}, context=CONTEXT) == pytest.approx(expected("u1", "item-1", age=None))


def test_the_cookie_is_the_value_of_the_cookie_s_own_field(client: Client) -> None:
    answer = client.rank(cookie="u1", candidates=["item-1"], variant="base", user={"device": "u2"})
    known = client.rank(cookie="u1", candidates=["item-1"], variant="base")
    difference = shop.expected_score({"device": "u2"}, 0) - shop.expected_score({"device": "u1"}, 0)
    assert answer.items[0].score - known.items[0].score == pytest.approx(difference)


def test_the_members_of_a_weighted_set_count_as_much_as_their_x(client: Client, store: Store) -> None:
    def score(cookie: str, item: str, **sides: Any) -> float:
        answer = client.rank(cookie=cookie, candidates=[item], context=CONTEXT, variant="base", **sides)
        return answer.items[0].score

    likes = {"red": 0.5, "blue": -2.0, "green": 0.0}
    wanted = expected("u1", "item-1", likes=likes)
    assert wanted != pytest.approx(expected("u1", "item-1", likes=["red", "blue"]))
    assert score("u1", "item-1", user={"likes": likes}) == pytest.approx(wanted)
    store.records.put_users([("u3", {"age": "20", "likes": '{"red": 0.5, "blue": -2}'})])
    assert score("u3", "item-1") == pytest.approx(expected("u3", "item-1", age="20", likes=likes))

    tags = {"blue": 3, "red": -1.5}
    answer = client.rank(
        cookie="u1", items={"new": {"brand": "b1", "tags": tags}}, context=CONTEXT, variant="base"
    )
    assert answer.items[0].score == pytest.approx(expected("u1", "new", brand="b1", tags=tags))


def test_what_the_model_does_not_know_is_listed_and_the_rest_scored(client: Client) -> None:
    answer = client.rank(
        cookie="u1",
        candidates=["item-1", "no such"],
        context={**CONTEXT, "moon": "full"},
        user={"mood": "good"},
        variant="base",
    )
    assert answer.unknown_items == ("no such",)
    assert sorted(answer.unknown_fields) == ["mood", "moon"]
    assert {i.id: i.score for i in answer.items}["no such"] == pytest.approx(expected("u1", "no such"))


def test_a_stored_name_that_the_model_does_not_use_is_nobody_s_fault(client: Client) -> None:
    assert client.rank(cookie="u1", candidates=["item-1"]).unknown_fields == ()


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


def test_loading_items_renews_the_catalogue(client: Client, store: Store, server: Server) -> None:
    def score() -> float:
        return client.rank(cookie="u1", candidates=["item-1"], context=CONTEXT, variant="base").items[0].score

    store.records.put_items([("item-1", {"brand": "b3"})])
    changed = expected("u1", "item-1", brand="b3", tags=None, price=None)
    eventually(lambda: score() == pytest.approx(changed))


def test_the_answer_says_who_made_it(client: Client) -> None:
    answer = client.rank(shop.NAME, cookie="u1", candidates=["item-1"], request_id="r-17", variant="plain")
    assert (answer.request_id, answer.cookie, answer.model) == ("r-17", "u1", shop.NAME)
    assert (answer.version, answer.variant, answer.degraded) == (1, "plain", ())


def test_a_request_without_an_id_gets_one(client: Client) -> None:
    ids = {client.rank(candidates=["item-1"]).request_id for _ in range(20)}
    assert len(ids) == 20
    assert all(len(i) == 32 for i in ids)


def test_a_cookie_keeps_its_variant_and_both_variants_occur(client: Client) -> None:
    seen = {
        f"c{n}": {client.rank(cookie=f"c{n}", candidates=["item-1"]).variant for _ in range(2)}
        for n in range(30)
    }
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
    ],
)
def test_a_broken_limit_names_the_field(client: Client, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RankFailed) as failed:
        client.rank(**arguments)
    assert failed.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"INVALID_ARGUMENT: {message}" in str(failed.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "other", "candidates": ["a"]}, "this server serves 'shop', not 'other'"),
        ({"candidate_set": "no such"}, "the store has no set 'no such'"),
    ],
)
def test_an_unknown_model_or_set_is_not_found(
    client: Client, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(RankFailed, match=message) as failed:
        client.rank(**arguments)
    assert failed.value.code is grpc.StatusCode.NOT_FOUND


def test_ten_thousand_candidates_are_allowed(client: Client) -> None:
    assert len(client.rank(candidates=ALL * 833 + ALL[:4]).items) == 10_000


def test_a_candidate_set_of_the_wrong_kind_is_a_failed_precondition(client: Client, store: Store) -> None:
    store.client.set("ftrie:candidates:odd", "text")
    with pytest.raises(RankFailed) as failed:
        client.rank(candidate_set="odd")
    assert failed.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_a_stored_value_that_does_not_fit_is_left_out_and_said(client: Client, store: Store) -> None:
    store.client.hset("ftrie:user:u1", "age", "x" * 5000)
    answer = client.rank(cookie="u1", candidates=["item-1"], context=CONTEXT, variant="base")
    assert str(answer.degraded[0]).startswith("user_features: left out age: the key would be")
    assert answer.items[0].score == pytest.approx(expected("u1", "item-1", age=None))


def test_a_user_record_of_the_wrong_kind_costs_only_the_user_s_features(client: Client, store: Store) -> None:
    store.client.delete("ftrie:user:u1")
    store.client.set("ftrie:user:u1", "text")
    answer = client.rank(cookie="u1", candidates=["item-1"])
    assert str(answer.degraded[0]).startswith("user_features: ")


def test_a_late_item_with_a_misfit_loses_that_value_alone_and_the_others_nothing(
    client: Client, store: Store
) -> None:
    store.client.hset("ftrie:item:bent", mapping={"brand": "b2", "price": "dear"})
    store.client.hset("ftrie:item:late", mapping={"brand": "b3", "price": "6", "stock": "9"})
    answer = client.rank(cookie="u1", candidates=["bent", "late"], context=CONTEXT, variant="base")
    scores = {i.id: i.score for i in answer.items}
    assert scores["bent"] == pytest.approx(expected("u1", "bent", brand="b2"))
    assert scores["late"] == pytest.approx(expected("u1", "late", brand="b3", price="6"))
    assert tuple(map(str, answer.degraded)) == (
        "items: 'bent': left out price: got 'dear', expected a number",
    )
    assert (answer.unknown_items, answer.unknown_fields) == ((), ())


def test_an_empty_member_of_a_candidate_set_costs_late_items_nothing(client: Client, store: Store) -> None:
    store.client.hset("ftrie:item:late", "brand", "b3")
    store.client.rpush("ftrie:candidates:holed", "", "late")
    answer = client.rank(candidate_set="holed", variant="base")
    assert {i.id: i.score for i in answer.items}["late"] == pytest.approx(
        expected("", "late", brand="b3", hour=None, distance=None)
    )
    assert (answer.degraded, answer.unknown_items) == ((), ("",))


def test_a_name_that_no_item_has_is_listed(client: Client) -> None:
    features = {"brand": "b1", "colour": "red", "age": "20"}
    answer = client.rank(items={"a": features, "b": {"colour": "blue"}}, context={"colour": "x"})
    assert sorted(answer.unknown_fields) == ["age", "colour"]


@pytest.mark.parametrize("data", [b"\x2a\x02\xff\xfe", b"\xde\xad\xbe\xef"])
def test_bytes_that_are_no_request_are_the_callers_fault(client: Client, data: bytes) -> None:
    with grpc.insecure_channel(client.address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/ctr.v1.RankingService/Rank")(data, timeout=20)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details().startswith("request: not a ctr.v1.RankRequest")


def test_before_a_version_is_active_calls_are_unavailable(start: Callable[[], Server]) -> None:
    server = start()
    with Client(server.address) as client, pytest.raises(RankFailed, match="still loading") as failed:
        client.rank(candidates=["a"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE


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
