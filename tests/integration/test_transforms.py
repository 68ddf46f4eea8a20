"""Transforms of numbers, missing values and texts, of users, items and context: learned, published, served, logged."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from ftrie.client.client import Client
from model_store.features.values import Value
from model_store.store import Store
from tests.integration.processes import Oracle, ftrie, serving

SPEC = """
[model]
name = "goods"
[input]
label = "click"
timestamp = "ts"
request = "request"
cookie = "cookie"
item = "item"
[fields]
age = { side = "user", kind = "number", scale = "standard", missing = "key" }
city = { side = "user", main = false }
visits = { side = "user", kind = "number", bucket = [0, 3, 10] }
spent = { kind = "number", bucket = "log2_squared", missing = "key" }
query = { kind = "text" }
price = { side = "item", kind = "number", bucket = "quantile:5" }
cost = { side = "item", column = "price", kind = "number", scale = "log1p", clip = [0, 500] }
rating = { side = "item", kind = "number", scale = "minmax", clip = [1, 5], missing = "key" }
title = { side = "item", kind = "text", most = 5 }
sold = { side = "item", kind = "number", bucket = "log", missing = "key", main = false }
[[crosses]]
fields = ["city", "title"]
[[crosses]]
fields = ["query", "sold"]
[[crosses]]
fields = ["spent", "rating"]
[learner]
l1 = 0.0
"""
USER, CONTEXT = ("age", "city", "visits"), ("spent", "query")
ITEM = (
    "price",
    "cost",
    "rating",
    "title",
    "sold",
)  # a server takes values by field: cost has a column of price
COLUMNS = ("click", "ts", "request", "cookie", "item", *USER, *CONTEXT, "price", "rating", "title", "sold")
TITLES = ("Red running-SHOE, size 42", "blue Shoe* 100% = good", "Größe 'L' Jacke", "", "ΟΔΟΣ hat hat hat")


def goods(seed: int) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]], list[dict[str, str]]]:
    """Users by cookie, items by id, and rows of a log; many values are missing."""
    draw = random.Random(seed)

    def maybe(text: object) -> str:
        return "" if draw.random() < 0.2 else str(text)

    users = {
        f"u{n}": {"age": maybe(draw.randint(18, 90)), "city": maybe(f"c{n % 3}"), "visits": maybe(n % 14)}
        for n in range(12)
    }
    items = {
        f"i{n}": {
            "price": maybe(round(draw.lognormvariate(3, 2), 2)),
            "rating": maybe(draw.choice([0.5, 1, 3.25, 4, 5, 9])),
            "title": TITLES[n % len(TITLES)],
            "sold": maybe(draw.choice([0, 1, 17, 100_000])),
        }
        for n in range(15)
    }
    items = {item: {**features, "cost": features["price"]} for item, features in items.items()}
    rows = []
    for n in range(3000):
        cookie, item = draw.choice(list(users)), draw.choice(list(items))
        context = {
            "spent": maybe(draw.choice([-1, 0, 2, 2.5, 77, 4096, 1e15])),
            "query": maybe(draw.choice(["red shoe", "Shoe, red", "hat", "größe l"])),
        }
        row = {"click": str(int(draw.random() < 0.3)), "ts": str(1_700_000_000 + n), "request": f"r{n}"}
        rows.append({**row, "cookie": cookie, "item": item, **users[cookie], **context, **items[item]})
    return users, items, rows


def write(path: Path, columns: tuple[str, ...], rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def given(values: Mapping[str, str], names: tuple[str, ...], numbers: tuple[str, ...]) -> dict[str, Value]:
    """The values that are there, some of the numbers as numbers."""
    return {name: float(values[name]) if name in numbers else values[name] for name in names if values[name]}


@pytest.mark.slow
def test_scores_of_the_server_are_those_of_the_trainer(tmp_path: Path, store: Store, store_url: str) -> None:
    users, items, rows = goods(seed=5)
    spec, log, model = tmp_path / "goods.toml", tmp_path / "log.csv", tmp_path / "model.arrow"
    spec.write_text(SPEC)
    write(log, COLUMNS, rows)
    ftrie("train", spec, log, "--activate", "--store", store_url, "--save", model)
    ftrie("evaluate", model, log, "--predictions", tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open() as file:
        trained = [float(row["score"]) for row in csv.DictReader(file)]
    oracle = Oracle.of(store, "goods", 1)
    listed = [{"item": item, **features} for item, features in items.items()]
    ftrie("store", "load", "items", write(tmp_path / "i.csv", ("item", *ITEM), listed), "--store", store_url)
    known = [{"cookie": cookie, **features} for cookie, features in users.items()]
    ftrie("store", "load", "users", write(tmp_path / "u.csv", ("cookie", *USER), known), "--store", store_url)

    shown, served = tmp_path / "shown.jsonl", dict[tuple[str, str], float]()
    flags = ("--impressions", f"file:{shown}")
    with serving("goods", store_url, *flags) as address, Client(address, timeout_s=20) as client:
        for row, wanted in list(zip(rows, trained, strict=True))[:: len(rows) // 60]:
            context = given(row, CONTEXT, ("spent",))
            inline = {row["item"]: given(row, ITEM, ("price", "cost", "rating"))}
            user = given(row, USER, ("age",))
            in_request = client.rank(items={"other": inline[row["item"]]}, user=user, context=context)
            in_store = client.rank(candidates=[*items, "unknown"], cookie=row["cookie"], context=context)
            explained = client.explain(candidates=[row["item"]], cookie=row["cookie"], context=context)
            scores = {each.id: each.score for each in in_store.items}
            assert in_request.items[0].score == pytest.approx(wanted, abs=1e-9)
            assert scores[row["item"]] == pytest.approx(wanted, abs=1e-9)
            assert sum(group.sum for group in explained.items[0].groups) == pytest.approx(wanted, abs=1e-9)
            example = {**users[row["cookie"]], **context}
            assert scores == pytest.approx(
                {item: oracle.score({**example, **items.get(item, {})}, "base") for item in scores}, abs=1e-9
            )
            for answer in (in_request, in_store):
                assert not answer.degraded
                served |= {(answer.request_id, each.id): each.score for each in answer.items}
    # What was logged makes the scores again that were served.
    ftrie("evaluate", model, shown, "--predictions", tmp_path / "again.csv")
    with (tmp_path / "again.csv").open() as file:
        again = sorted(float(row["score"]) for row in csv.DictReader(file))
    logged = [
        served[event["request_id"], item["id"]]
        for event in map(json.loads, shown.read_text().splitlines())
        for item in event["items"]
        if not item.get("unknown")
    ]
    assert again == pytest.approx(sorted(logged), abs=1e-9)
