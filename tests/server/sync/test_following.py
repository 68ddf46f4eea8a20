"""The server follows the active version: swaps, damaged versions, a store that goes and comes back."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist

import grpc
import pytest
import structlog

from ftrie.client.client import Client, RankFailed
from model_store.errors import StoreError
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

CANDIDATES = list(shop.ITEMS)


def item_1(client: Client) -> float:
    return client.rank(candidates=["item-1"], variant="base").items[0].score


def wanted(seed: int) -> object:
    return pytest.approx(shop.expected_score(shop.ITEMS["item-1"], 0, seed))


def test_the_active_version_is_served_when_it_comes_changes_and_is_rolled_back(
    store: Store, start: Callable[[], Server]
) -> None:
    store.client.set("ftrie:item:no hash", "text")  # keys that are no items keep no version from being served
    store.client.hset("ftrie:item:", "brand", "b1")
    server = start()
    first = shop.fill(store)
    assert server.ready.wait(180)
    assert server.current.served is not None
    assert len(server.current.served.catalogue) == len(shop.ITEMS)
    with Client(server.address, timeout_s=20.0) as client:
        assert client.rank(candidates=["item-1"]).version == first
        version = shop.publish(store, seed=2)
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)
        assert item_1(client) == wanted(seed=2)
        assert store.model(shop.NAME).rollback() == first
        eventually(lambda: client.rank(candidates=CANDIDATES).version == first)
        assert item_1(client) == wanted(seed=1)


def test_versions_of_another_link_are_served_changed_and_rolled_back(client: Client, store: Store) -> None:
    alpha, beta, versions = 0.4, 0.5, store.model(shop.NAME)
    learner = f'[learner]\nalgorithm = "adpredictor"\nalpha = {alpha}\nbeta = {beta}\n'
    parsed = parse_spec(shop.SPEC + learner)
    spec = parsed.resolve(["click", "device", *parsed.fields])
    first, second = (replace(shop.artefact(seed), spec=spec) for seed in (2, 3))
    delta = second.changes_since(first, version=versions.publish_and_activate(first))
    changed = versions.publish_and_activate(delta)
    eventually(lambda: client.rank(candidates=["item-1"]).version == changed)

    explained = client.explain(candidates=["item-1"], variant="base").items[0].item
    score = shop.expected_score(shop.ITEMS["item-1"], 0, seed=3)
    keys = [key for key in FeaturePlan.of(spec).keys(shop.ITEMS["item-1"]) if key[2] & 1]
    rate = float(shop.artefact().rate[0])
    variance = sum((rate if key in shop.masks() else alpha) * x * x for key, x, _ in keys)
    assert explained.score == pytest.approx(score)
    assert explained.uncertainty == pytest.approx(math.sqrt(variance))
    assert explained.ctr == pytest.approx(NormalDist().cdf(score / math.sqrt(beta**2 + variance)), abs=1e-9)
    ranked = client.rank(candidates=["item-1"], variant="base").items[0]
    assert ranked == replace(explained, uncertainty=None), "a plain answer has none"

    versions.activate(1)
    eventually(lambda: client.rank(candidates=["item-1"]).version == 1)
    plain = client.rank(candidates=["item-1"]).items[0]
    assert plain.ctr == pytest.approx(1 / (1 + math.exp(-plain.score)))


def test_the_first_version_is_served_when_it_comes(store: Store, start: Callable[[], Server]) -> None:
    server = start()
    version = shop.fill(store)
    assert server.ready.wait(180)
    with Client(server.address) as client:
        assert client.rank(candidates=["item-1"]).version == version


def test_a_store_that_was_emptied_leaves_the_model_in_service_until_a_number_is_given_out_again(
    client: Client, store: Store
) -> None:
    before = client.rank(candidates=CANDIDATES, variant="base").items
    with structlog.testing.capture_logs() as logs:
        store.client.flushall()
        eventually(lambda: bool(logs))
        assert client.rank(candidates=CANDIDATES, variant="base").items == before
        assert shop.fill(store, seed=2) == 1
        eventually(lambda: item_1(client) == wanted(seed=2))
        eventually(lambda: any(line["event"] == "serving" for line in logs))
    reports = [line for line in logs if line["event"] == "no version is active any more"]
    assert [(line["still_serving"], line["log_level"]) for line in reports] == [(1, "error")]


def test_a_store_that_died_is_found_again(start: Callable[..., Server]) -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}"
        with Store.open(url) as store:
            shop.fill(store)
            server = start(url)
            assert server.ready.wait(180)
            os.kill(store.client.info("server")["process_id"], signal.SIGKILL)
        with Client(server.address) as client:
            assert client.rank(cookie="u1", candidates=CANDIDATES).version == 1
            with Store.open(url) as again:
                version = shop.fill(again, seed=2)
                eventually(lambda: item_1(client) == wanted(seed=2))
                eventually(lambda: client.rank(cookie="u1", candidates=["item-1"]).degraded == ())
            assert client.rank(candidates=["item-1"]).version == version
        server.drain(refuse=False)
        server.shutdown()


def test_a_server_waits_for_a_store_that_is_away_but_for_no_url_that_is_none(
    start: Callable[..., Server],
) -> None:
    server = start("redis://127.0.0.1:1")
    with Client(server.address) as client, pytest.raises(RankFailed) as failed:
        client.rank(candidates=["item-1"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(StoreError, match="expected redis://"):
        start("http://127.0.0.1:1")


def test_swaps_under_load_fail_no_call_and_no_answer_mixes_versions(server: Server, store: Store) -> None:
    versions = {server.current.served.version: 1} if server.current.served else {}
    stop = threading.Event()
    answers: list[tuple[int, tuple[float, ...]]] = []
    failures: list[Exception] = []

    def load() -> None:
        with Client(server.address) as client:
            while not stop.is_set():
                try:
                    answer = client.rank(cookie="u1", candidates=CANDIDATES, variant="base")
                    scores = {item.id: item.score for item in answer.items}
                    answers.append((answer.version, tuple(scores[item] for item in CANDIDATES)))
                except Exception as error:
                    failures.append(error)

    clients = [threading.Thread(target=load) for _ in range(3)]
    for thread in clients:
        thread.start()
    eventually(lambda: answers != [])
    for seed in range(2, 6):
        version = shop.publish(store, seed)
        versions[version] = seed
        eventually(lambda version=version: answers[-1][0] == version)  # type: ignore[misc]
    stop.set()
    for thread in clients:
        thread.join()
    assert failures == []
    assert {version for version, _ in answers} == set(versions)
    for version, seed in versions.items():
        scores_of_it = tuple(
            shop.expected_score({"device": "u1", **shop.USERS["u1"], **shop.ITEMS[item]}, 0, seed)
            for item in CANDIDATES
        )
        given = {scores for answered, scores in answers if answered == version}
        assert len(given) == 1, "two answers of one version differ"
        assert given.pop() == pytest.approx(scores_of_it, abs=1e-6)
