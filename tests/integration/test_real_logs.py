"""Real clicks, from the log to the answer: trained, published, served, ranked, swapped under load."""

from __future__ import annotations

import csv
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ftrie import Spec, train
from ftrie.api.client import Client
from model_store.store import Store
from tests.integration.processes import Oracle, ftrie, serving
from tests.waiting import eventually

ITEM = [f"C{number}" for number in range(14, 22)]
USER = ("device_ip", "device_model", "device_type")
CONTEXT = (
    *("banner_pos", "C1", "site_id", "site_domain", "site_category"),
    *("app_id", "app_domain", "app_category", "device_conn_type"),
)
Row = dict[str, str]


def rows_of(log: Path) -> list[Row]:
    with gzip.open(log, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def some(row: Row, names: list[str] | tuple[str, ...]) -> Row:
    return {name: row[name] for name in names}


def load(kind: str, records: dict[str, Row], folder: Path, store_url: str) -> None:
    file = folder / f"{kind}.jsonl"
    file.write_text("".join(json.dumps({"id": key, **record}) + "\n" for key, record in records.items()))
    ftrie("store", "load", kind, file, "--id-column", "id", "--store", store_url)


def test_the_example_and_what_init_writes_predict_later_days_better_than_the_example_s_plain_variant(
    avazu_log: Path, tmp_path: Path
) -> None:
    head, *rows = gzip.decompress(avazu_log.read_bytes()).decode().splitlines()
    hour = head.split(",").index("hour")
    days = [row.split(",")[hour][:6] for row in rows]
    logs = {}
    for name, of in (("first", lambda day: day < "141026"), ("rest", lambda day: day >= "141026")):
        logs[name] = tmp_path / f"{name}.csv"
        logs[name].write_text(
            "\n".join([head, *(row for row, day in zip(rows, days, strict=True) if of(day))])
        )
    found = {}
    for name, spec in (("example", Spec("examples/avazu.toml")), ("init", Spec.infer(logs["first"]))):
        evaluation = train(spec, logs["first"]).model.evaluate(logs["rest"])
        found[name] = {variant: each.logloss for variant, each in evaluation.variants.items()}
    assert max(found["example"]["base"], *found["init"].values()) < found["example"]["plain"]


@pytest.mark.slow
def test_real_impressions_are_served_by_the_weights_published_also_while_versions_change(
    avazu_log: Path, tmp_path: Path, store: Store, store_url: str
) -> None:
    spec, half = "examples/avazu.toml", tmp_path / "half.csv"
    half.write_bytes(b"".join(gzip.decompress(avazu_log.read_bytes()).splitlines(keepends=True)[:8000]))
    trained = ftrie("train", spec, avazu_log, "--store", store_url, "--activate", "--json")
    ftrie("train", spec, half, "--store", store_url, "--publish")
    figures, rows = json.loads(trained), rows_of(avazu_log)
    assert (figures["version"], figures["rejected"], figures["rows"]) == (1, 0, len(rows))
    items = {row["C14"]: some(row, ITEM) for row in rows}
    users = {row["device_id"]: some(row, USER) for row in rows}
    load("items", items, tmp_path, store_url)
    load("users", users, tmp_path, store_url)
    oracles = {version: Oracle.of(store, "avazu", version) for version in (1, 2)}

    def context_of(row: Row) -> Row:
        return {"hour": row["hour"], **some(row, CONTEXT)}

    def wanted(row: Row, candidates: list[str], variant: str, version: int = 1) -> dict[str, float]:
        example = {"device_id": row["device_id"], **users[row["device_id"]], **context_of(row)}
        return {c: oracles[version].score({**example, **items[c]}, variant) for c in candidates}

    candidates, first = list(items)[:200], rows[0]
    with serving("avazu", store_url) as address, Client(address, timeout_s=20) as client:
        for row in rows[:: len(rows) // 20]:
            for variant in oracles[1].plan.variants:
                asked = {"candidates": candidates, "context": context_of(row), "variant": variant}
                answer = client.rank("avazu", cookie=row["device_id"], **asked)
                scores = {each.id: each.score for each in answer.items}
                assert scores == pytest.approx(wanted(row, candidates, variant), abs=1e-9)
                assert (answer.degraded, answer.unknown_items, answer.unknown_fields) == ((), (), ())
        for row in rows[:100]:  # spelled out
            given = {"items": {"it": some(row, ITEM)}, "user": some(row, (*USER, "device_id"))}
            answer = client.rank("avazu", context=context_of(row), variant="base", **given)
            score = oracles[1].score(row, "base")
            assert answer.items[0].score == pytest.approx(score, abs=1e-9)
        words = [
            word for name, value in context_of(first).items() for word in ("--context", f"{name}={value}")
        ]
        flags = (
            "--address",
            address,
            "--cookie",
            first["device_id"],
            "--candidates",
            ",".join(candidates[:3]),
        )
        printed = json.loads(ftrie("rank", "avazu", *flags, *words, "--top-k", "2", "--json"))
        assert printed["cookie"] == first["device_id"]
        (one, rate), (other, lower) = (each for entry in printed["ctr"] for each in entry.items())
        assert 1 > rate >= lower > 0 and {one, other} <= set(candidates[:3])

        few, seen, stop = candidates[:50], list[int](), threading.Event()
        by_version = {version: wanted(first, few, "base", version) for version in (1, 2)}
        assert by_version[1] != pytest.approx(by_version[2], abs=1e-6)

        def ask() -> None:
            asked = {"candidates": few, "context": context_of(first), "variant": "base"}
            with Client(address, timeout_s=20) as other:
                while not stop.is_set():
                    answer = other.rank(cookie=first["device_id"], **asked)
                    scores = {each.id: each.score for each in answer.items}
                    assert scores == pytest.approx(by_version[answer.version], abs=1e-9)
                    seen.append(answer.version)

        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            try:
                for version in (2, 1, 2):
                    store.model("avazu").activate(version)
                    eventually(lambda version=version: version in seen[-1:], f"version {version} served")
            finally:
                stop.set()
            for each in asking:
                each.result()
    assert set(seen) == {1, 2}


@pytest.mark.slow
def test_items_from_their_file_are_ranked_as_the_log_was_learned(open_bandit_folder, store, store_url):
    log, catalogue = open_bandit_folder / "men.csv.gz", open_bandit_folder / "item_context.csv"
    ftrie("train", "examples/open_bandit.toml", log, "--items", catalogue, "--store", store_url, "--activate")
    ftrie("store", "load", "items", catalogue, "--id-column", "item_id", "--store", store_url)
    with catalogue.open(encoding="utf-8") as file:
        of_item = [f"item_feature_{number}" for number in range(4)]
        items = {row["item_id"]: some(row, of_item) for row in csv.DictReader(file)}
    oracle, rows = Oracle.of(store, "open_bandit", 1), rows_of(log)
    with serving("open_bandit", store_url) as address, Client(address, timeout_s=20) as client:
        for row in rows[:: len(rows) // 40]:
            user = some(row, [f"user_feature_{number}" for number in range(4)])
            context = {"position": row["position"], "hour": row["timestamp"]}
            answer = client.rank(candidates=[*items], user=user, context=context, variant="base", top_k=34)
            wanted = {
                item: oracle.score({**user, **context, **features, "item_id": item}, "base")
                for item, features in items.items()
            }
            assert {i.id: i.score for i in answer.items} == pytest.approx(wanted, abs=1e-9)
            assert [i.ctr for i in answer.items] == sorted((i.ctr for i in answer.items), reverse=True)
            assert (answer.unknown_items, answer.unknown_fields, answer.degraded) == ((), (), ())
