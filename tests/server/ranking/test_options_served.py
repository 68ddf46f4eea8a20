"""Objectives, filters, caps, exploration and explanations over a real channel, on a real store."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest

from ftrie.client.client import Client, Degradation, RankFailed
from ftrie.client.messages import AnyOf, Between, NoneOf, Thompson, UpperConfidenceBound
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
ALL = list(shop.ITEMS)
BIDS = {item: 1.0 + number % 5 for number, item in enumerate(ALL)}
RATE = 0.1  # of every key of the shop's models


@pytest.fixture
def shop_store(store: Store) -> Store:
    """The shop, its items with a bid and a seller beside the model's fields; two have no bid."""
    shop.fill(store)
    extra = {item: {"bid": str(bid), "seller": f"s{int(bid) % 2}"} for item, bid in BIDS.items()}
    del extra["item-10"]["bid"], extra["item-11"]["bid"]
    store.records.put_items((item, {**shop.ITEMS[item], **extra[item]}) for item in ALL)
    return store


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


def test_a_wrong_objective_names_the_character(client: Client) -> None:
    with pytest.raises(
        RankFailed, match="objective: at character 7: got 'bid', expected an operator"
    ) as raised:
        client.rank(**asked(objective="(ctr) bid"))
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_filters_leave_out_what_fails_them(client: Client) -> None:
    def kept(*filters: Any) -> set[str]:
        return {item.id for item in client.rank(**asked(filters=filters)).items}

    assert kept(AnyOf("brand", ["b1", "b2"])) == {i for i in ALL if shop.ITEMS[i]["brand"] in ("b1", "b2")}
    assert kept(NoneOf("seller", ["s0"])) == {i for i in ALL if BIDS[i] % 2 == 1}
    assert kept(Between("bid", 2, 3)) == {i for i in ALL[:10] if 2 <= BIDS[i] <= 3}
    assert kept(AnyOf("tags", ["red"])) == {i for i in ALL if shop.ITEMS[i]["tags"] == '["red"]'}
    assert kept(AnyOf("brand", ["b1"]), Between("bid", least=4)) == {
        i for i in ALL[:10] if shop.ITEMS[i]["brand"] == "b1" and BIDS[i] >= 4
    }


def test_caps_bound_what_shares_a_value(client: Client) -> None:
    order = [item.id for item in client.rank(**asked()).items]
    answer = client.rank(**asked(caps={"brand": 1, "seller": 2}, top_k=3))
    brands: list[str] = []
    sellers: list[float] = []
    for item in order:
        brand, seller = shop.ITEMS[item]["brand"], BIDS[item] % 2
        if brand not in brands and sellers.count(seller) < 2:
            brands.append(brand)
            sellers.append(seller)
    assert [shop.ITEMS[item.id]["brand"] for item in answer.items] == brands[:3]


def test_options_see_items_spelled_out_and_items_that_the_catalogue_lacks(
    shop_store: Store, client: Client
) -> None:
    shop_store.records.put_items([("late", {"brand": "b1", "bid": "9", "seller": "s9"})])
    spelled = {"mine": {"brand": "b1", "bid": 7.5}}
    answer = client.rank(
        context=CONTEXT,
        candidates=["item-0", "late"],
        items=spelled,
        objective="bid",
        filters=[Between("bid", 0, 9)],
    )
    assert [(item.id, item.objective) for item in answer.items] == [
        ("late", 9.0),
        ("mine", 7.5),
        ("item-0", 1.0),
    ]


def used_keys(client: Client, item: str) -> float:
    """How many keys the model holds for an item of the request; each has the same rate, x apart."""
    groups = client.explain(**asked(candidates=[item])).items[0].groups
    return sum(abs(key.x) for group in groups if group.name != "rounding" for key in group.keys)


def test_ucb_orders_by_score_and_uncertainty(client: Client) -> None:
    answer = client.rank(**asked(exploration=UpperConfidenceBound(3.0)))
    for item in answer.items:
        assert item.uncertainty == pytest.approx(RATE * used_keys(client, item.id), rel=1e-6)
    raised = [item.score + 3.0 * (item.uncertainty or 0.0) for item in answer.items]
    assert raised == sorted(raised, reverse=True)
    assert {item.propensity for item in answer.items} == {1.0}


def test_thompson_is_decided_by_the_request_id_and_its_propensities_are_frequencies(client: Client) -> None:
    def ask(request_id: str) -> Any:
        return client.rank(**asked(exploration=Thompson(0.5), top_k=4, request_id=request_id))

    assert ask("one").items == ask("one").items
    hits: dict[str, int] = {}
    said: dict[str, float] = {}
    for number in range(400):
        for item in ask(f"r{number}").items:
            hits[item.id] = hits.get(item.id, 0) + 1
            said[item.id] = item.propensity or 0.0
    for item_id, propensity in said.items():
        noise = 4.5 * math.sqrt(propensity * (1 - propensity) / 400) + 0.012
        assert hits[item_id] / 400 == pytest.approx(propensity, abs=noise)


def test_the_experiments_objective_holds_where_a_request_names_none(
    shop_store: Store, server: Server, client: Client
) -> None:
    from model_store.versions.experiments import Experiment

    shop_store.model(shop.NAME).experiments.write(Experiment(objective="-score"))
    eventually(lambda: client.rank(**asked()).items[0].objective is not None)
    down = client.rank(**asked()).items
    assert [item.score for item in down] == sorted(item.score for item in down)
    up = client.rank(**asked(objective="score")).items
    assert [item.id for item in up] == [item.id for item in reversed(down)]


# --- Explain ---------------------------------------------------------------------------------------------------------


def added_up(groups: Any) -> float:
    total = 0.0
    for group in groups:
        for key in group.keys:
            total += key.contribution
    return total


def test_contributions_add_up_to_the_score_exactly(client: Client) -> None:
    plain = client.rank(**asked())
    answer = client.explain(**asked())
    assert [each.item for each in answer.items] == list(plain.items)
    for each in answer.items:
        assert added_up(each.groups) == each.item.score
        for group in each.groups:
            assert all(key.contribution == key.weight * key.x for key in group.keys)
            if group.name != "rounding":
                assert all(key.weight == shop.weight(key.key, 1) for key in group.keys)
                assert all(key.learning_rate == pytest.approx(RATE) for key in group.keys)


def test_groups_are_fields_and_crosses_and_a_variants_own(client: Client) -> None:
    def names(variant: str) -> set[str]:
        item = client.explain(**asked(candidates=["item-1"], variant=variant)).items[0]
        return {group.name for group in item.groups} - {"rounding"}

    assert "tags" in names("base")
    assert names("plain") == names("base") - {"tags", "likes*tags", "age*brand"}


def test_an_explanation_takes_the_options_of_a_ranking(client: Client) -> None:
    more = asked(
        objective="ctr * bid", filters=[Between("bid", 2)], top_k=2, exploration=Thompson(1.0), request_id="r"
    )
    assert [each.item for each in client.explain(**more).items] == list(client.rank(**more).items)


def test_spelled_out_late_and_unknown_items_are_explained(shop_store: Store, client: Client) -> None:
    shop_store.records.put_items([("late", {"brand": "b1", "tags": '["red"]'})])
    answer = client.explain(
        **asked(candidates=["late", "gone", "item-1"], items={"mine": {"brand": "b1", "tags": {"red": -2.0}}})
    )
    assert {each.item.id for each in answer.items} == {"late", "gone", "item-1", "mine"}
    assert answer.unknown_items == ("gone",)
    for each in answer.items:
        assert added_up(each.groups) == each.item.score
    mine = next(each for each in answer.items if each.item.id == "mine")
    tags = next(group for group in mine.groups if group.name == "tags")
    assert [(key.key, key.x) for key in tags.keys] == [(b"tags=red", -2.0)]


def test_an_explanation_of_many_candidates_and_of_nonsense_is_refused(client: Client) -> None:
    with pytest.raises(RankFailed, match="101 candidates; the limit for an explanation is 100") as raised:
        # Before it is ranked, which would find a number that is none.
        client.explain(candidates=[f"i{number}" for number in range(101)], context={"distance": "far"})
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(RankFailed, match=r"item_ids\[1\]: empty"):
        client.explain(candidates=["a", ""])
    with pytest.raises(RankFailed, match="no variant 'gone'"):
        client.explain(candidates=["a"], variant="gone")


def test_an_unreadable_explain_request_is_the_callers_fault(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary("/ctr.v1.RankingService/Explain")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\xff\xff", timeout=20)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- What a plain request pays ---------------------------------------------------------------------------------------
