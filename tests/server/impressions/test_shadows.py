"""Shadow variants of a running server: scored from the same walk as the answer, and only logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrie.client.client import Client
from ftrie.client.messages import Ranking
from model_store.store import Store
from server.telemetry.families import SHADOW_LOGGED
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

ASKED: dict[str, Any] = {"cookie": "u1", "candidates": list(shop.ITEMS), "context": {"hour": shop.HOURS[0]}}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "shadows.jsonl"


@pytest.fixture
def client(shop_store: Store, start: Callable[..., Server], log: Path) -> Iterator[Client]:
    """A client of a server with a shadow log, whose shop has `plain` as a shadow."""
    stored = shop_store.model(shop.NAME).experiments.change(lambda e: replace(e, shadows=("plain",)))
    server = start(shadow_log=str(log))
    assert server.ready.wait(180)
    eventually(lambda: server.current.assignment.experiment == stored)
    with Client(server.address, timeout_s=20.0) as connected:
        yield connected
    counted = {name: n for name, _, n in server.totals.counts()}
    assert counted.get(SHADOW_LOGGED, 0) <= len(log.read_text().splitlines())


def logged(log: Path, count: int = 1) -> list[dict[str, object]]:
    """The log's lines, once there are so many."""
    eventually(lambda: len(log.read_text().splitlines()) >= count)
    return [json.loads(line) for line in log.read_text().splitlines()]


def scores(ranking: Ranking) -> dict[str, float]:
    return {item.id: item.score for item in ranking.items}


def test_a_shadow_is_logged_bit_for_bit_as_it_had_answered_and_the_answer_stays_the_same(
    client: Client, log: Path
) -> None:
    others: dict[str, Any] = {"candidates": ["item-1", "nobody knows", "item-2"]}
    for n, asked in enumerate((ASKED, ASKED | {"top_k": 3}, ASKED | others)):
        answer = client.rank(**asked, request_id=f"r{n}", variant="base")
        forced = client.rank(**asked, request_id="forced", variant="plain")
        whole = scores(client.rank(**{**asked, "top_k": None}, request_id="whole", variant="plain"))
        line = logged(log, n + 1)[-1]
        ids = [item.id for item in answer.items]
        assert line == {
            "time": line["time"],
            "request_id": f"r{n}",
            "model": "shop",
            "version": 1,
            "variant": "base",
            "ids": ids,
            "scores": [item.score for item in answer.items],
            "shadows": {
                "plain": {
                    "ids": [item.id for item in forced.items],
                    "scores": [item.score for item in forced.items],
                    "shown_scores": [whole[item] for item in ids],
                }
            },
        }
        example = {"device": "u1", **shop.USERS["u1"], "hour": shop.HOURS[0]}
        for item in answer.items:
            expected = shop.expected_score({**example, **shop.ITEMS.get(item.id, {})}, 0)
            assert item.score == pytest.approx(expected, abs=1e-5)
    assert len(logged(log)) == 3


def test_an_order_by_an_objective_is_shadowed_by_scores_and_without_shadows_nothing_is_logged(
    client: Client, shop_store: Store, log: Path
) -> None:
    experiments = shop_store.model(shop.NAME).experiments
    plain = client.rank(**ASKED, variant="plain", top_k=2)
    best = client.rank(**ASKED, variant="base", top_k=1).items[0].id
    experiments.change(lambda e: replace(e, objective="-score"))
    eventually(lambda: client.rank(**ASKED, variant="base").items[-1].id == best)
    answer = client.rank(**ASKED, request_id="r", variant="base", top_k=2)
    eventually(lambda: '"r"' in log.read_text())
    line: Any = next(line for line in logged(log) if line["request_id"] == "r")
    assert line["ids"] == [item.id for item in answer.items]
    assert line["shadows"]["plain"]["ids"] == [item.id for item in plain.items]

    experiments.change(lambda e: replace(e, shadows=(), shares={"plain": 1.0}))
    eventually(
        lambda: client.rank(cookie="u1", candidates=["item-1"]).variant == "plain"
    )  # by the spec: base
    client.rank(**ASKED, variant="base", request_id="without")
    experiments.change(lambda e: replace(e, shadows=("plain",)))

    def is_logged_again() -> bool:
        client.rank(**ASKED, variant="base", request_id="with")
        return '"with"' in log.read_text()

    eventually(is_logged_again)  # lines come in the order of the answers, and a moment after them
    assert '"without"' not in log.read_text()
