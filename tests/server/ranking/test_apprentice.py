"""Apprentice mode and an experiment's exploration over a real channel, and what they leave in the impressions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrie.api.client import Client
from ftrie.api.messages import NoneOf, Thompson
from model_store.store import Store
from model_store.versions.experiments import Explore
from server.serve.ranking_service import APPRENTICE, EXPECTED, EXPLORED
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

ALL = list(shop.ITEMS)
REQUESTS = 200


def change(server: Server, store: Store, **parts: Any) -> None:
    wanted = store.model(shop.NAME).experiments.change(lambda before: replace(before, **parts))
    eventually(lambda: server.current.assignment.experiment == wanted)


def counted(server: Server, family: Any) -> dict[tuple[str, ...], float]:
    return dict(server.totals.samples()[family.name])


def test_apprentice_mode_serves_the_callers_order_and_logs_how_near_the_models_is(
    shop_store: Store, start: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "impressions.jsonl"
    server = start(impressions=(f"file:{file}",))
    assert server.ready.wait(180)
    shop_store.records.put_items([("late", shop.ITEMS["item-3"])])  # the server's catalogue lacks it
    shop_store.records.put_candidates("page", ALL[:3])
    with Client(server.address, timeout_s=20.0) as client:
        asked: dict[str, Any] = {"cookie": "u1", "top_k": 4}
        own = [item.id for item in client.rank(candidates=ALL, **asked).items]
        change(server, shop_store, apprentice=True, explore=Explore("thompson", 5.0), shares={"base": 1.0})
        answer = client.rank(candidates=ALL[::-1], request_id="as asked", **asked)
        assert [item.id for item in answer.items] == ALL[::-1][:4]
        assert all(item.propensity is None for item in answer.items)
        mixed = ["item-5", "late", "item-2", "late", "item-7"]
        assert [item.id for item in client.rank(candidates=mixed, cookie="u1").items] == mixed
        filters = [NoneOf("brand", ["b3"])]
        filtered = client.rank(candidates=ALL[::-1], filters=filters, request_id="filtered", **asked)
        assert [item.id for item in filtered.items] == ["item-10", "item-9", "item-8", "item-6"]
        best_first = client.rank(candidates=own, request_id="agrees", **asked)
        assert [item.id for item in best_first.items] == own
        # What has no order of its own, or is for looking at, is in the model's order; the first says so.
        of_set = client.rank(candidate_set="page", cookie="u1")
        assert [item.score for item in of_set.items] == sorted((i.score for i in of_set.items), reverse=True)
        assert [each.part for each in of_set.degraded] == ["candidate_set"]
        assert [item.id for item in client.rank(candidates=ALL, variant="base", **asked).items] == own
        change(server, shop_store, apprentice=False, explore=None)
        assert [item.id for item in client.rank(candidates=ALL, **asked).items] == own
    server.end()
    assert counted(server, APPRENTICE) == {(shop.NAME, "same"): 1.0, (shop.NAME, "other"): 3.0}
    lines = {line["request_id"]: line for line in map(json.loads, file.read_text().splitlines())}
    by_id = {item.id: item.ctr for item in [*best_first.items, *answer.items, *filtered.items]}
    asked_own = lines["as asked"]["apprentice"]
    assert asked_own["ids"] == own
    assert (asked_own["first"], asked_own["overlap"]) == (own[0] == ALL[-1], len({*own} & {*ALL[-4:]}))
    assert asked_own["clicks"] == pytest.approx(sum(by_id[item] for item in own), rel=1e-12)
    assert lines["agrees"]["apprentice"] == {**asked_own, "first": 1, "overlap": 4}
    assert set(lines["filtered"]["apprentice"]["ids"]).isdisjoint({"item-3", "item-7", "item-11"})


def test_an_experiment_explores_within_its_budget_and_a_request_may_override_it(
    shop_store: Store, server: Server, client: Client
) -> None:
    change(server, shop_store, explore=Explore("thompson", 2.0, share=0.25), shares={"base": 1.0})
    asked: dict[str, Any] = {"cookie": "u1", "candidates": ALL, "top_k": 3}
    greedy = [item.id for item in client.rank(**asked, exploration=Thompson(0.0)).items]
    answers = [client.rank(**asked, request_id=f"r{number}") for number in range(REQUESTS)]
    assert [a.items for a in answers[:20]] == [
        client.rank(**asked, request_id=f"r{number}").items for number in range(20)
    ], "by its id alone"
    others = [a for a in answers if [item.id for item in a.items] != greedy]
    assert 0 < len(others) <= 0.4 * REQUESTS
    propensities = {item.id: item.propensity for answer in answers for item in answer.items}
    assert all(propensities[item] > 0.75 for item in greedy)  # type: ignore[operator]
    assert all(0.0 < p < 0.3 for item, p in propensities.items() if item not in greedy)  # type: ignore[operator]
    always = client.rank(**asked, request_id="r1", exploration=Thompson(2.0))
    assert all(item.propensity != propensities.get(item.id) for item in always.items)

    def all_counted() -> bool:
        return sum(counted(server, EXPLORED).values()) == REQUESTS + 20

    eventually(all_counted)
    found = counted(server, EXPLORED)
    assert 0.1 <= found[shop.NAME, "yes"] / (REQUESTS + 20) <= 0.4
    clicks = counted(server, EXPECTED)
    assert clicks[shop.NAME, "greedy"] > clicks[shop.NAME, "served"] > 0.0
