"""Objectives, filters, caps, exploration and explanations over a real channel: each reaches the ranker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from ftrie.api.client import Client, Degradation, RankFailed
from ftrie.api.messages import AnyOf, Between, NoneOf, Thompson, UpperConfidenceBound
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import serving

CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
ALL = list(shop.ITEMS)
BIDS = {item: 1.0 + number % 5 for number, item in enumerate(ALL)}
RATE = 0.1  # of every key of the shop's models


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Store, Client]]:
    """The shop, its items with a bid and a seller beside the model's fields, two without a bid; and a client."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        shop.fill(store)
        extra = {item: {"bid": str(bid), "seller": f"s{int(bid) % 2}"} for item, bid in BIDS.items()}
        del extra["item-10"]["bid"], extra["item-11"]["bid"]
        store.records.put_items((item, {**shop.ITEMS[item], **extra[item]}) for item in ALL)
        with serving(store.url, store_budget_s=2.0) as server, Client(server.address, 20.0) as client:
            yield store, client


@pytest.fixture
def client(served: tuple[Store, Client]) -> Client:
    return served[1]


def asked(**more: Any) -> dict[str, Any]:
    return {"cookie": "u1", "candidates": ALL, "context": CONTEXT, "variant": "base", **more}


def test_an_objective_of_the_request_orders_by_a_field_outside_the_model(client: Client) -> None:
    plain = {item.id: item for item in client.rank(**asked()).items}
    answer = client.rank(**asked(objective="ctr * bid"))
    worth = {item: plain[item].ctr * BIDS[item] for item in ALL[:10]}
    assert [item.id for item in answer.items[:10]] == sorted(worth, key=lambda item: -worth[item])
    assert [item.objective for item in answer.items[:10]] == [worth[item.id] for item in answer.items[:10]]
    assert {item.id for item in answer.items[10:]} == {"item-10", "item-11"}
    assert [item.objective for item in answer.items[10:]] == [None, None]
    assert all((i.ctr, i.score) == (plain[i.id].ctr, plain[i.id].score) for i in answer.items), "bit for bit"
    detail = "2 of 12 candidates have no value and are ranked last: no number in 'bid'"
    assert answer.degraded == (Degradation("NO_OBJECTIVE_VALUE", "objective", detail),)
    assert client.rank(**asked(objective="ctr * (bid ?? 1)")).degraded == ()


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("rank", {"objective": "(ctr) bid"}, "objective: at character 7: got 'bid', expected an operator"),
        # Before it is ranked, which would find that one is not a number.
        (
            "explain",
            {"candidates": [f"i{number}" for number in range(101)], "context": {"distance": "far"}},
            "101 candidates; the limit for an explanation is 100",
        ),
        ("explain", {"candidates": ["a", ""]}, r"item_ids\[1\]: empty"),
        ("explain", {"variant": "gone"}, "no variant 'gone'"),
    ],
)
def test_nonsense_is_refused(client: Client, method: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RankFailed, match=message) as raised:
        getattr(client, method)(**asked(**arguments))
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_filters_and_caps_bound_what_is_returned(client: Client) -> None:
    filters = [AnyOf("brand", ["b1", "b2"]), NoneOf("seller", ["s0"]), Between("bid", least=2)]
    answer = client.rank(**asked(filters=filters))
    bids = {item: bid for item, bid in list(BIDS.items())[:10] if bid % 2 == 1 and bid >= 2}
    kept = {item for item in bids if shop.ITEMS[item]["brand"] in ("b1", "b2")}
    assert {item.id for item in answer.items} == kept != set()
    best: dict[str, str] = {}
    for item in client.rank(**asked()).items:
        best.setdefault(shop.ITEMS[item.id]["brand"], item.id)
    capped = client.rank(**asked(caps={"brand": 1}, top_k=3))
    assert [item.id for item in capped.items] == [*best.values()][:3]


def test_options_see_items_spelled_out_and_those_not_in_the_catalogue(served: tuple[Store, Client]) -> None:
    store, client = served
    store.records.put_items([("late", {"brand": "b1", "bid": "9", "seller": "s9", "tags": '["red"]'})])
    spelled = {"mine": {"brand": "b1", "bid": 7.5, "tags": {"red": -2.0}}}
    more = {"items": spelled, "objective": "bid", "filters": [Between("bid", 0, 9)]}
    answer = client.explain(**asked(candidates=["item-0", "late", "gone"], **more))
    found = [(each.item.id, each.item.objective) for each in answer.items]
    assert found == [("late", 9.0), ("mine", 7.5), ("item-0", 1.0)]
    assert answer.unknown_items == ("gone",)
    assert all(added_up(each.groups) == each.item.score for each in answer.items)
    tags = next(group for group in answer.items[1].groups if group.name == "tags")
    assert [(key.key, key.x) for key in tags.keys] == [(b"tags=red", -2.0)]


def test_exploration_raises_or_draws_scores(client: Client) -> None:
    answer = client.explain(**asked(exploration=UpperConfidenceBound(3.0)))
    for each in answer.items:
        keys = [key for group in each.groups if group.name != "rounding" for key in group.keys]
        assert each.item.uncertainty == pytest.approx(RATE * sum(abs(key.x) for key in keys), rel=1e-6)
    raised = [each.item.score + 3.0 * (each.item.uncertainty or 0.0) for each in answer.items]
    assert raised == sorted(raised, reverse=True)
    assert {each.item.propensity for each in answer.items} == {1.0}
    drawn = [
        client.rank(**asked(exploration=Thompson(0.5), top_k=4, request_id=f"r{number % 10}")).items
        for number in range(20)
    ]
    assert drawn[:10] == drawn[10:], "by the request's id"
    assert len({tuple(item.id for item in items) for items in drawn}) > 1
    assert all(0.0 < (item.propensity or 0.0) < 1.0 for items in drawn for item in items)


def added_up(groups: Any) -> float:
    total = 0.0
    for group in groups:
        for key in group.keys:
            total += key.contribution
    return total


def test_an_explanation_is_of_the_same_answer_with_its_options_key_by_key(client: Client) -> None:
    more = {"objective": "ctr * bid", "filters": [Between("bid", 2)], "top_k": 2, "request_id": "r"}
    for options in ({}, {**more, "exploration": Thompson(1.0)}):
        answer = client.explain(**asked(**options))
        assert [each.item for each in answer.items] == list(client.rank(**asked(**options)).items)
        for each in answer.items:
            assert added_up(each.groups) == each.item.score
            groups = [group for group in each.groups if group.name != "rounding"]
            for key in (key for group in groups for key in group.keys):
                assert (key.weight, key.contribution) == (shop.weight(key.key, 1), key.weight * key.x)
                assert key.learning_rate == pytest.approx(RATE)

    def names(variant: str) -> set[str]:
        item = client.explain(**asked(candidates=["item-1"], variant=variant)).items[0]
        return {group.name for group in item.groups} - {"rounding"}

    assert "tags" in names("base")
    assert names("plain") == names("base") - {"tags", "likes*tags", "age*brand"}
