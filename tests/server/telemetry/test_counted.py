"""What a serving process counts of its calls, as its supervisor adds it up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ftrie.api.client import Client, RankFailed
from ftrie.api.feedback import Feedback, ReportFailed
from model_store.metrics import Family
from model_store.store import Store
from server.ranking.users import USER_CACHE
from server.sync.model_sync import FRESHNESS
from server.telemetry.meter import DEGRADED, ERRORS, UNKNOWN_USERS
from server.telemetry.prometheus import registry
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually


def count(server: Server, name: Family | str, **labels: str) -> float:
    return sum(
        sample.value
        for metric in registry(server.totals).collect()
        for sample in metric.samples
        if sample.name == str(name) and labels.items() <= sample.labels.items()
    )


KNOWN: tuple[dict[str, Any], ...] = (
    {"cookie": "u1"},  # by the store's record
    {"cookie": "nobody", "user": {"age": "20"}},
    {"user": {"likes": ["red"]}},
    {},  # says nothing of a user
    {"context": {"distance": 2.5}},
)
UNKNOWN: tuple[dict[str, Any], ...] = (
    {"cookie": "nobody"},
    {"user": {"age": "99"}},
    {"cookie": "nobody", "user": {"age": "99", "likes": ["mauve"]}, "context": {"distance": 2.5}},
)


def test_calls_are_counted_by_what_is_asked_and_said(server: Server, client: Client, store: Store) -> None:
    candidates = list(shop.ITEMS)
    for more in ({}, {"objective": "ctr * price"}):
        for said in (*KNOWN, *UNKNOWN):
            client.rank(candidates=candidates, variant="base", **said, **more)
        client.rank(candidates=candidates, variant="plain", **UNKNOWN[0], **more)
    client.explain(candidates=candidates[:2], variant="base", **UNKNOWN[0])
    ranked = 2 * (len(KNOWN) + len(UNKNOWN) + 1)
    base, plain = ({"model": shop.NAME, "version": "1", "variant": name} for name in shop.VARIANTS)
    eventually(lambda: count(server, "ftrie_call_seconds_count") == ranked)
    assert count(server, "ftrie_call_seconds_count", **plain) == 2
    assert count(server, "ftrie_candidates_total", **plain) == 2 * len(candidates)
    stages = [count(server, "ftrie_stage_seconds_total", stage=s, **plain) for s in ("store", "ranking")]
    assert 0 < sum(stages) < count(server, "ftrie_call_seconds_sum", **plain)
    # Answers whose user has no key in the model, and where users came from: u1 and nobody are read once.
    assert count(server, UNKNOWN_USERS, **base) == 2 * len(UNKNOWN)
    assert count(server, UNKNOWN_USERS, **plain) == 2
    assert count(server, USER_CACHE, result="miss") == 2
    assert count(server, USER_CACHE, result="hit") == 2 * 4 + 1 - 2, "one cookie comes with all its fields"
    assert count(server, DEGRADED) == 0

    shop.publish(store, 2)
    store.client.hset("ftrie:user:u2", "age", "x" * 5000)
    eventually(lambda: client.rank(candidates=["item-1"], variant="base").version == 2)
    answer = client.rank(cookie="u2", candidates=["item-1"], variant="base")
    assert [each.part for each in answer.degraded] == ["user_features"]
    wrong: list[Any] = [
        {"candidates": []},
        {"model": "no such", "candidates": ["a"]},
        {"candidate_set": "none"},
    ]
    for arguments in wrong:
        with pytest.raises(RankFailed):
            client.rank(**arguments)
    with pytest.raises(RankFailed):
        client.explain(candidates=[])
    with pytest.raises(ReportFailed):
        client.feedback("no such", [Feedback("r", "item-1")])
    eventually(lambda: count(server, ERRORS) == 5)
    # By method and status, and never under a name from a request.
    assert count(server, ERRORS, method="Rank") == 3
    assert count(server, ERRORS, method="Explain", model=shop.NAME, status="INVALID_ARGUMENT") == 1
    assert count(server, ERRORS, method="Report", model="", status="NOT_FOUND") == 1
    assert count(server, ERRORS, method="Rank", model=shop.NAME, status="INVALID_ARGUMENT") == 1
    assert count(server, ERRORS, method="Rank", model=shop.NAME, status="NOT_FOUND") == 1
    assert count(server, ERRORS, method="Rank", model="", status="NOT_FOUND") == 1
    assert count(server, DEGRADED, model=shop.NAME, part="user_features") == 1
    assert count(server, "ftrie_call_seconds_count", version="2") >= 2
    assert count(server, "ftrie_call_seconds_count", **plain) == 2


def test_a_swap_is_observed_by_the_age_of_the_newest_event_in_a_version(server: Server, store: Store) -> None:
    versions = store.model(shop.NAME)

    def serve(seed: int, through_us: int | None) -> None:
        version = versions.publish(shop.artefact(seed), through_us=through_us)
        versions.activate(version)
        wanted = version, through_us or 0
        eventually(lambda: (server.status()[0].version, server.status()[0].through_us) == wanted)

    def observed(what: str) -> float:
        server.totals.add("supervisor", server.meter.take())
        return count(server, f"{FRESHNESS}_{what}", model=shop.NAME)

    assert server.status()[0].through_us == 0
    now_us = time.time_ns() // 1000
    serve(2, now_us - 40_000_000)
    assert observed("count") == 1  # the shop's first model was not learned from a stream
    assert 40.0 <= observed("sum") < 60.0
    serve(3, now_us - 50_000_000)  # nothing newer in it
    serve(4, None)
    assert observed("count") == 1
    serve(5, now_us - 5_000_000)
    assert observed("count") == 2
    assert 45.0 <= observed("sum") < 75.0
