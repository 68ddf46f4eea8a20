"""Real ad impressions, from the log to the answer: trained, published, served, ranked, swapped under load."""

from __future__ import annotations

import csv
import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrie.client.client import Client
from model_store.store import Store
from tests.integration.processes import Oracle, ftrie, serving

SPEC = "examples/avazu.toml"
MODEL = "avazu"
ITEM_FIELDS = ("C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21")
USER_FIELDS = ("device_ip", "device_model", "device_type")
CONTEXT_FIELDS = (
    "banner_pos",
    "C1",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_conn_type",
)
Row = dict[str, str]
Published = tuple[list[Row], dict[str, Row], dict[str, Row]]


def rows_of(log: Path) -> list[Row]:
    with gzip.open(log, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def context_of(row: Row) -> Row:
    return {"hour": row["hour"], "weekday": row["hour"], **{name: row[name] for name in CONTEXT_FIELDS}}


def load(kind: str, records: dict[str, Row], folder: Path, store_url: str) -> None:
    file = folder / f"{kind}.jsonl"
    file.write_text("".join(json.dumps({"id": key, **record}) + "\n" for key, record in records.items()))
    ftrie("store", "load", kind, file, "--id-column", "id", "--store", store_url)


@pytest.fixture
def published(avazu_log: Path, tmp_path: Path, store_url: str) -> Published:
    """The model trained and active; the log's rows, and the items and users that were loaded from them."""
    report = tmp_path / "report.json"
    ftrie("train", SPEC, avazu_log, "--store", store_url, "--publish", "--activate", "--report", report)
    figures = json.loads(report.read_text())
    assert (figures["version"], figures["rejected"]) == (1, 0)
    rows = rows_of(avazu_log)
    assert figures["rows"] == len(rows)
    items = {row["C14"]: {name: row[name] for name in ITEM_FIELDS} for row in rows}
    users = {row["device_id"]: {name: row[name] for name in USER_FIELDS} for row in rows}
    load("items", items, tmp_path, store_url)
    load("users", users, tmp_path, store_url)
    return rows, items, users


@pytest.mark.slow
def test_served_scores_are_the_sums_of_the_published_weights(
    published: Published, store: Store, store_url: str
) -> None:
    rows, items, users = published
    oracle = Oracle.of(store, MODEL, 1)
    candidates = list(items)[:200]
    with serving(MODEL, store_url) as address, Client(address, timeout_s=20) as client:
        for row in rows[:: len(rows) // 20]:
            cookie, context = row["device_id"], context_of(row)
            for variant in oracle.plan.variants:
                answer = client.rank(
                    MODEL, cookie=cookie, candidates=candidates, context=context, variant=variant
                )
                example = {"device_id": cookie, **users[cookie], **context}
                wanted = {c: oracle.score({**example, **items[c]}, variant) for c in candidates}
                assert {i.id: i.score for i in answer.items} == pytest.approx(wanted, abs=1e-9)
                assert (answer.degraded, answer.unknown_items, answer.unknown_fields) == ((), (), ())


@pytest.mark.slow
def test_a_row_of_the_log_spelled_out_scores_as_its_own_keys(
    published: Published, store: Store, store_url: str
) -> None:
    oracle = Oracle.of(store, MODEL, 1)
    with serving(MODEL, store_url) as address, Client(address, timeout_s=20) as client:
        for row in published[0][:300]:
            item: dict[str, Any] = {name: row[name] for name in ITEM_FIELDS}
            user = {name: row[name] for name in (*USER_FIELDS, "device_id")}
            answer = client.rank(
                MODEL, items={"it": item}, user=user, context=context_of(row), variant="base"
            )
            wanted = oracle.score({**row, "weekday": row["hour"]}, "base")
            assert answer.items[0].score == pytest.approx(wanted, abs=1e-9)


@pytest.mark.slow
def test_the_rank_command_prints_ids_and_rates(published: Published, store_url: str) -> None:
    row, items = published[0][0], list(published[1])[:3]
    with serving(MODEL, store_url) as address:
        context = [
            word for name, value in context_of(row).items() for word in ("--context", f"{name}={value}")
        ]
        flags = ("--address", address, "--cookie", row["device_id"], "--candidates", ",".join(items))
        answer = json.loads(ftrie("rank", MODEL, *flags, *context, "--top-k", "2", "--json"))
    assert answer["cookie"] == row["device_id"]
    rates = [rate for entry in answer["ctr"] for rate in entry.values()]
    assert len(rates) == 2
    assert 1 > rates[0] >= rates[1] > 0
    assert {item for entry in answer["ctr"] for item in entry} <= set(items)


@pytest.mark.slow
def test_swaps_under_load_fail_no_call_and_each_answer_is_of_one_version(
    published: Published, store: Store, store_url: str, avazu_log: Path, tmp_path: Path
) -> None:
    rows, items, users = published
    half = tmp_path / "half.csv"
    half.write_bytes(b"".join(gzip.decompress(avazu_log.read_bytes()).splitlines(keepends=True)[:8000]))
    ftrie("train", SPEC, half, "--store", store_url, "--publish")
    candidates, context = list(items)[:50], context_of(rows[0])
    cookie = rows[0]["device_id"]
    example = {"device_id": cookie, **users[cookie], **context}
    wanted = {}
    for version in (1, 2):
        oracle = Oracle.of(store, MODEL, version)
        wanted[version] = {c: oracle.score({**example, **items[c]}, "base") for c in candidates}
    assert wanted[1] != pytest.approx(wanted[2], abs=1e-6)

    seen: list[int] = []
    wrong: list[object] = []
    stop = threading.Event()

    def ask(address: str) -> None:
        with Client(address, timeout_s=20) as client:
            while not stop.is_set():
                try:
                    answer = client.rank(
                        cookie=cookie, candidates=candidates, context=context, variant="base"
                    )
                except Exception as error:
                    wrong.append(error)
                    return
                if {i.id: i.score for i in answer.items} != pytest.approx(wanted[answer.version], abs=1e-9):
                    wrong.append(answer)
                seen.append(answer.version)

    with serving(MODEL, store_url) as address:
        threads = [threading.Thread(target=ask, args=(address,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for version in (2, 1, 2, 1, 2):
            store.model(MODEL).activate(version)
            _wait(lambda version=version: bool(wrong) or version in seen[-1:])  # type: ignore[misc]
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert set(seen) == {1, 2}


def _wait(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if holds():
            return
        pause.wait(0.01)
    pytest.fail("the server did not follow the active version within 30 s")
