"""docs/degradation.md, "Two models in one order": what an objective answers while the other model is not right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ftrie.api.messages import Ranking
from model_store.store import Store
from server.serve.ranking_service import SERVICE
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, serving
from tests.server import shop
from tests.server.ranking.test_two_models import purchase
from tests.waiting import eventually

OBJECTIVE = "ctr * purchase.ctr"
ASKED = {"candidates": list(shop.ITEMS), "variant": "base", "objective": OBJECTIVE}


@pytest.fixture
def two(valkey: Valkey, tmp_path: Path) -> Iterator[tuple[Running, Store]]:
    """A server of the models shop and purchase, the second of which has no version yet."""
    with (
        Store.open(valkey.url) as store,
        serving(valkey.url, tmp_path, "purchase", "--workers", "2") as running,
    ):
        yield running.await_ready(), store


def asked(running: Running) -> Ranking:
    """An answer, whose every number is checked against the models' definitions."""
    answer = running.client.rank("shop", **ASKED)
    for item in answer.items:
        rate = sigmoid(shop.expected_score(shop.ITEMS[item.id], 0))
        assert item.ctr == pytest.approx(rate)
        for other in (item.models or {}).values():
            scores = [shop.expected_score(shop.ITEMS[item.id], variant, 7) for variant in (0, 1)]
            assert any(other.score == pytest.approx(score) for score in scores)
            assert item.objective == item.ctr * other.ctr
    values = [item.ctr if item.objective is None else item.objective for item in answer.items]
    assert values == sorted(values, reverse=True)
    return answer


def sigmoid(score: float) -> float:
    return 1.0 / (1.0 + math.exp(-score))


def is_whole(running: Running, version: int) -> bool:
    answer = asked(running)
    found = {each.version for item in answer.items for each in (item.models or {}).values()}
    return not answer.degraded and found == {version}


def health_of_purchase(running: Running) -> int:
    with grpc.insecure_channel(running.address) as channel:
        request = health_pb2.HealthCheckRequest(service=f"{SERVICE}/purchase")
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=20).status)


def published(store: Store, running: Running, seed: int = 7) -> int:
    """A version of purchase, active and served by all workers."""
    versions = store.model("purchase")
    version = versions.publish(purchase(seed))
    versions.activate(version)
    eventually(lambda: all(is_whole(running, version) for _ in range(4)), "both models order")
    return version


def test_other_model_has_no_version(two: tuple[Running, Store], recovered: Recovered) -> None:
    running, store = two
    for _ in range(4):
        answer = asked(running)
        assert [item.models for item in answer.items] == [None] * len(shop.ITEMS)
        absent, without = map(str, answer.degraded)
        assert absent.startswith("other_models: purchase: model 'purchase' is ")
        assert without.endswith("no prediction of the model 'purchase'")
    assert health_of_purchase(running) == health_pb2.HealthCheckResponse.NOT_SERVING
    eventually(lambda: running.metric("ftrie_degraded_total", part="other_models") >= 4, "the count")
    versions = store.model("purchase")
    version = versions.publish(purchase(7))
    versions.activate(version)
    recovered.then(lambda: all(is_whole(running, version) for _ in range(4)), "both models order")
    assert health_of_purchase(running) == health_pb2.HealthCheckResponse.SERVING


def test_other_model_is_damaged_and_rolled_back(two: tuple[Running, Store], recovered: Recovered) -> None:
    running, store = two
    first, versions = published(store, running), store.model("purchase")
    damaged = versions.publish(purchase(8))
    store.client.delete(versions.keys.chunks(damaged, 1)[0])
    store.client.set(versions.keys.active, damaged)
    store.client.xadd(versions.keys.events, {"version": damaged})
    refused = {"model": "purchase", "reason": "damaged"}
    eventually(lambda: running.metric("ftrie_refused_versions_total", **refused) > 0, "a refusal")
    assert all(is_whole(running, first) for _ in range(4))
    assert health_of_purchase(running) == health_pb2.HealthCheckResponse.SERVING
    versions.activate(first)
    recovered.then(lambda: all(is_whole(running, first) for _ in range(4)), "the version before orders")


def test_store_goes_while_two_models_order(
    two: tuple[Running, Store], valkey: Valkey, recovered: Recovered
) -> None:
    running, store = two
    version = published(store, running)
    valkey.save()
    valkey.kill()
    eventually(lambda: running.metric("ftrie_store_away", model="shop") == 1, "the store away")
    assert all(is_whole(running, version) for _ in range(4)), "both are in memory, and the items too"
    valkey.start()
    recovered.then(lambda: running.metric("ftrie_store_away", model="shop") == 0, "the store is back")
