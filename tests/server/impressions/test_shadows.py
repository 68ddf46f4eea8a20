"""Shadow variants of a running server: scored from the same walk as the answer, and only logged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftrie.client.client import Client
from ftrie.client.messages import Ranking
from model_store.errors import OutputError
from model_store.store import Store
from server.settings import Settings
from server.telemetry.families import SHADOW_LOGGED
from tests.integration.processes import FTRIE, ROOT, serving
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

ASKED = {"cookie": "u1", "candidates": list(shop.ITEMS), "context": {"hour": shop.HOURS[0]}}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "shadows.jsonl"


@pytest.fixture
def client(shop_store: Store, store_url: str, log: Path) -> Iterator[Client]:
    """A client of a server with a shadow log, whose shop has `plain` as a shadow."""
    stored = shop_store.model(shop.NAME).experiments.change(lambda e: replace(e, shadows=("plain",)))
    server = Server(Settings((shop.NAME,), store_url, drain_s=1.0, store_budget_s=0.2, shadow_log=str(log)))
    server.startup()
    try:
        assert server.ready.wait(180)
        eventually(lambda: server.current.assignment.experiment == stored)
        with Client(server.address, timeout_s=20.0) as connected:
            yield connected
    finally:
        server.drain()
        server.shutdown()
    counted = {name: n for name, _, n in server.totals.counts()}
    assert counted.get(SHADOW_LOGGED, 0) <= len(log.read_text().splitlines())


def logged(log: Path, count: int = 1) -> list[dict[str, object]]:
    """The log's lines, once there are so many."""
    eventually(lambda: len(log.read_text().splitlines()) >= count)
    return [json.loads(line) for line in log.read_text().splitlines()]


def scores(ranking: Ranking) -> dict[str, float]:
    return {item.id: item.score for item in ranking.items}


@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"candidates": ["item-1", "nobody knows", "item-2"]}])
def test_a_shadow_is_logged_bit_for_bit_as_it_had_answered(
    client: Client, log: Path, more: dict[str, object]
) -> None:
    asked = {**ASKED, **more}
    answer = client.rank(**asked, request_id="r1", variant="base")  # type: ignore[arg-type]
    forced = client.rank(**asked, request_id="r2", variant="plain")  # type: ignore[arg-type]
    whole = scores(client.rank(**{**asked, "top_k": None}, request_id="r3", variant="plain"))  # type: ignore[arg-type]
    [line] = logged(log)
    ids = [item.id for item in answer.items]
    assert line == {
        "time": line["time"],
        "request_id": "r1",
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


def test_the_answer_is_the_same_with_and_without_shadows(client: Client, shop_store: Store) -> None:
    shadowed = client.rank(**ASKED, request_id="r", variant="base")  # type: ignore[arg-type]
    example = {"device": "u1", **shop.USERS["u1"], "hour": shop.HOURS[0]}
    for item in shadowed.items:
        expected = shop.expected_score({**example, **shop.ITEMS[item.id]}, 0)
        assert item.score == pytest.approx(expected, abs=1e-5)
    assert [item.id for item in shadowed.items] == sorted(
        scores(shadowed), key=lambda item: (-scores(shadowed)[item], list(shop.ITEMS).index(item))
    )


def test_an_order_by_an_objective_is_shadowed_by_scores(client: Client, shop_store: Store, log: Path) -> None:
    plain = client.rank(**ASKED, variant="plain", top_k=2)  # type: ignore[arg-type]
    best = client.rank(**ASKED, variant="base", top_k=1).items[0].id  # type: ignore[arg-type]
    shop_store.model(shop.NAME).experiments.change(lambda e: replace(e, objective="-score"))

    def worst_first() -> bool:
        return client.rank(**ASKED, variant="base").items[-1].id == best  # type: ignore[arg-type]

    eventually(worst_first)
    answer = client.rank(**ASKED, request_id="r", variant="base", top_k=2)  # type: ignore[arg-type]
    eventually(lambda: '"r"' in log.read_text())
    line = next(line for line in logged(log) if line["request_id"] == "r")
    assert line["ids"] == [item.id for item in answer.items]
    assert line["shadows"]["plain"]["ids"] == [item.id for item in plain.items]  # type: ignore[index]


def test_once_the_experiment_has_no_shadows_nothing_is_logged(
    client: Client, shop_store: Store, log: Path
) -> None:
    client.rank(**ASKED, variant="base")  # type: ignore[arg-type]
    logged(log)
    experiments = shop_store.model(shop.NAME).experiments
    experiments.change(lambda e: replace(e, shadows=(), shares={"plain": 1.0}))
    eventually(
        lambda: client.rank(cookie="u1", candidates=["item-1"]).variant == "plain"
    )  # by the spec: base
    client.rank(**ASKED, variant="base", request_id="without")  # type: ignore[arg-type]
    experiments.change(lambda e: replace(e, shadows=("plain",)))

    def is_logged_again() -> bool:
        client.rank(**ASKED, variant="base", request_id="with")  # type: ignore[arg-type]
        return '"with"' in log.read_text()

    eventually(is_logged_again)  # lines come in the order of the answers, and a moment after them
    assert '"without"' not in log.read_text()


@pytest.mark.slow
def test_two_workers_write_one_log_of_whole_lines(shop_store: Store, store_url: str, log: Path) -> None:
    shop_store.model(shop.NAME).experiments.change(lambda e: replace(e, shadows=("plain",)))
    flags = ["--workers", "2", "--shadow-log", str(log)]
    requests = [f"r{n}" for n in range(40)]
    with serving(shop.NAME, store_url, *flags) as address:
        for request_id in requests:  # a connection each, so that the kernel deals them to both workers
            with Client(address, timeout_s=20.0) as client:
                client.rank(**ASKED, request_id=request_id, variant="base")  # type: ignore[arg-type]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["request_id"] for line in lines) == sorted(requests)


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_told_at_the_start(
    shop_store: Store, store_url: str, tmp_path: Path
) -> None:
    flags = ["serve", shop.NAME, "--store", store_url, "--port", "0"]
    ended = subprocess.run(
        [*FTRIE, *flags, "--shadow-log", str(tmp_path / "no" / "log")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == OutputError.exit_code
    assert "cannot write the shadow log" in ended.stderr and "Traceback" not in ended.stderr
