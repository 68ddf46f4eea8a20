"""Objectives that use another served model: against what each of the models answers alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from ftrie.api.client import Client, RankFailed
from ftrie.api.messages import Thompson
from ftrie.api.ranker import Ranker
from model_store.artefact.artefact import Artefact
from model_store.store import Store
from model_store.versions.audit import By
from server.ranking.experiments import change_experiment
from tests.server import shop
from tests.server.one_process import Server, serving
from tests.waiting import eventually

CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
BOTH = "ctr * purchase.ctr * price"
BY = By("tests", "test_two_models")


def purchase(seed: int = 7) -> Artefact:
    """Another model over the shop's fields, with other weights."""
    made = shop.artefact(seed)
    section = made.spec.model.model_copy(update={"name": "purchase"})
    return replace(made, spec=made.spec.model_copy(update={"model": section}))


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Store, Server, Client]]:
    """A server of the models shop and purchase, with items that came after it had read the others."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        shop.fill(store)
        versions = store.model("purchase")
        versions.activate(versions.publish(purchase()))
        with (
            serving(store.url, "shop", "purchase", impressions=("store",), store_budget_s=2.0) as server,
            Client(server.address, 20.0) as client,
        ):
            yield store, server, client


def asked(**more: Any) -> dict[str, Any]:
    return {"cookie": "u1", "candidates": list(shop.ITEMS), "context": CONTEXT, **more}


def price(item: str) -> float:
    return float(shop.ITEMS[item]["price"])


def alone(client: Client, model: str, **more: Any) -> dict[str, float]:
    return {item.id: item.ctr for item in client.rank(model, **asked(**more)).items}


def test_candidates_are_ordered_by_both_models_and_each_value_is_in_the_answer(
    two: tuple[Store, Server, Client],
) -> None:
    _, _, client = two
    clicks, bought = alone(client, "shop"), alone(client, "purchase")
    by_both = client.rank("shop", **asked(objective=BOTH))
    worth = {item: clicks[item] * bought[item] * price(item) for item in shop.ITEMS}
    assert [item.id for item in by_both.items] == sorted(worth, key=lambda item: -worth[item])
    assert not by_both.degraded
    for answer in (
        by_both.items,
        [each.item for each in client.explain("shop", **asked(objective=BOTH)).items],
    ):
        for item in answer:
            assert item.models is not None
            other = item.models["purchase"]
            assert (item.ctr, other.ctr, other.version) == (clicks[item.id], bought[item.id], 1)
            assert item.objective == item.ctr * other.ctr * price(item.id)


def test_a_logged_answer_reproduces_its_order(two: tuple[Store, Server, Client]) -> None:
    store, _, client = two
    client.rank("shop", **asked(objective=BOTH, request_id="logged", top_k=5))

    def logged() -> list[Any]:
        lines = map(json.loads, store.impressions("shop").read((0, 0), 1_000).payloads)
        return [event for event in lines if event["request_id"] == "logged"]

    eventually(lambda: bool(logged()))
    (event,) = logged()
    assert event["objective"] == BOTH
    values = [
        item["ctr"] * item["models"]["purchase"]["ctr"] * item["features"]["price"] for item in event["items"]
    ]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)
    assert event["items"][0]["models"]["purchase"].keys() == {"version", "variant", "ctr"}


def test_each_model_finds_the_items_in_its_own_order(two: tuple[Store, Server, Client]) -> None:
    """Late items move behind the others, in the one model's candidates and maybe not in the other's."""
    store, _, client = two
    late = {"late": {"brand": "b1", "price": "3.0"}, "later": {"brand": "b2", "price": "9.0"}}
    store.records.put_items(late.items())
    more = {
        "candidates": ["late", "item-1", "gone", "later", "item-2", "item-1"],
        "items": {"mine": {"brand": "b3", "price": 5.0}, "item-2": {"brand": "b0"}},
    }
    found = client.rank("shop", **asked(objective="purchase.ctr", **more))
    expected = client.rank("purchase", **asked(**more))
    assert len(found.items) == 8
    assert sorted((item.id, item.objective) for item in found.items) == sorted(
        (item.id, item.ctr) for item in expected.items
    )


def test_a_model_that_is_not_served_here(two: tuple[Store, Server, Client]) -> None:
    store, _, client = two
    with pytest.raises(RankFailed, match="it names the model 'gone'; this server serves") as raised:
        client.rank("shop", **asked(objective="ctr * gone.ctr"))
    assert raised.value.code is grpc.StatusCode.NOT_FOUND
    # An experiment is for all requests: they are answered, by the click rate, and say what is missing.
    versions = store.model("shop")
    change_experiment(versions, lambda before: replace(before, objective="ctr * gone.ctr"), by=BY)
    plain = [item.id for item in client.rank("shop", **asked(objective="ctr")).items]

    try:
        eventually(lambda: bool(client.rank("shop", **asked()).degraded))
        answer = client.rank("shop", **asked())
        assert [item.id for item in answer.items] == plain
        assert [item.models for item in answer.items] == [None] * len(plain)
        assert [each.part for each in answer.degraded] == ["other_models", "objective"]
        assert "no prediction of the model 'gone'" in str(answer.degraded[1])
        change_experiment(versions, lambda before: replace(before, objective="ctr * (gone.ctr ?? 1)"), by=BY)
        eventually(lambda: len(client.rank("shop", **asked()).degraded) == 1)
        whole = client.rank("shop", **asked())
        assert [item.objective for item in whole.items] == [item.ctr for item in whole.items]
    finally:
        change_experiment(versions, lambda before: replace(before, objective=""), by=BY)


def test_the_same_in_this_process_with_its_propensities() -> None:
    records = {item: dict(record) for item, record in shop.ITEMS.items()}
    other = Ranker(purchase(), records, shop.USERS, version=3)
    ranker = Ranker(shop.artefact(), records, shop.USERS, beside={"purchase": other})
    request = asked(top_k=3, objective=BOTH, exploration=Thompson(4.0))
    bought = {item.id: item.ctr for item in other.rank(**asked()).items}
    first = ranker.rank(**request, request_id="first")
    assert all(item.models and item.models["purchase"].ctr == bought[item.id] for item in first.items)
    shown = [item.id for n in range(3_000) for item in ranker.rank(**request, request_id=f"r{n}").items]
    for item in first.items:
        assert item.propensity == pytest.approx(shown.count(item.id) / 3_000, abs=0.04)
    other.update(purchase(8), version=4)
    again = ranker.rank(**request, request_id="first")
    assert {item.models["purchase"].version for item in again.items if item.models} == {4}
    assert np.isfinite([item.objective or np.nan for item in again.items]).all()
