"""Every kind of feature at once, under load, while versions change: what is served is what the trainer computes."""

from __future__ import annotations

import csv
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.client.client import Client
from ftrie.client.feedback import Feedback
from model_store.store import Store
from tests.degradation.system import eventually
from tests.integration.processes import ftrie, serving
from tests.integration.test_histories import stream, training

SPEC = """
[model]
name = "shop"
[input]
label = "click"
timestamp = "ts"
request = "request"
cookie = "cookie"
item = "item"
[fields]
item = { side = "item" }
brand = { side = "item" }
prior = { side = "item", kind = "number", fixed_weight = 0.5 }
age = { side = "user", kind = "number", scale = "standard", missing = "key" }
city = { side = "user", main = false }
visits = { side = "user", kind = "number", bucket = [0, 3, 10] }
spent = { kind = "number", bucket = "log2_squared", missing = "key" }
query = { kind = "text" }
price = { side = "item", kind = "number", bucket = "quantile:5" }
cost = { side = "item", column = "price", kind = "number", scale = "log1p", clip = [0, 500] }
rating = { side = "item", kind = "number", scale = "minmax", clip = [1, 5], missing = "key" }
title = { side = "item", kind = "text", most = 5 }
per_star = { side = "item", kind = "number", bucket = "log", ratio = ["price", "rating"] }
over = { side = "item", kind = "number", scale = "standard", difference = ["price", "spent"] }
price_rank = { side = "item", kind = "number", list = "rank", of = "price" }
star_rank = { side = "item", kind = "number", bucket = [1, 2, 4], list = "rank", of = "rating", best = "max" }
cheapest = { side = "item", kind = "number", bucket = "log", list = "min", of = "price" }
dearest = { side = "item", kind = "number", scale = "log1p", list = "max", of = "price" }
gap = { side = "item", kind = "number", bucket = "quantile:4", list = "gap", of = "price", missing = "key" }
star_gap = { side = "item", kind = "number", bucket = "log", list = "gap", of = "rating", best = "max" }
brands = { side = "user", kind = "set", history = "clicked", measure = "last", of = "brand", last = 3 }
seen_items = { side = "user", kind = "set", history = "seen", measure = "last", last = 4 }
clicks = { side = "user", kind = "number", bucket = "log", history = "clicked", measure = "count", within = "1h" }
quiet = { side = "user", kind = "number", scale = "log1p", history = "clicked", measure = "age" }
seen_before = { side = "item", kind = "number", bucket = "log", history = "seen", measure = "count" }
brand_clicks = { side = "item", kind = "number", bucket = "log", history = "clicked", measure = "count", of = "brand" }
[[crosses]]
fields = ["city", "title"]
[[crosses]]
fields = ["query", "price_rank"]
[[crosses]]
fields = ["brands", "brand"]
[join]
window = "20m"
[learner]
l1 = 0.0
"""
COMPUTED = ("per_star", "over", "price_rank", "star_rank", "cheapest", "dearest", "gap", "star_gap")
"""What follows from the other values of a row or its request: a log without it is completed."""
COOKIES, ITEMS, REQUESTS, SHOWN, VERSIONS = 8, 24, 400, 5, 4
TITLES = ("Red running-SHOE, size 42", "blue Shoe* 100% = good", "Größe 'L' Jacke", "", "ΟΔΟΣ hat hat hat")


class Shop:
    """Users, items and a context of random values, some missing and some extreme."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.users = {
            f"u{n}": {
                "age": self.maybe(draw.randint(18, 90)),
                "city": self.maybe(f"c{n % 3}"),
                "visits": self.maybe(draw.choice(["-3", "0", "9", "1e300", "2.5"])),
            }
            for n in range(COOKIES)
        }
        self.items = {f"i{n}": self._item(n) for n in range(ITEMS)}

    def maybe(self, text: object) -> str:
        return "" if self.draw.random() < 0.2 else str(text)

    def _item(self, number: int) -> dict[str, str]:
        draw = self.draw
        price = self.maybe(draw.choice([round(draw.lognormvariate(3, 2), 2), 0, -5, "1e-300", "7e17"]))
        return {
            "brand": self.maybe(f"b{number % 5}"),
            "prior": self.maybe(round(draw.gauss(-2, 1), 3)),
            "price": price,
            "cost": price,
            "rating": self.maybe(draw.choice([0.5, 1, 3.25, 4, 4, 9])),
            "title": TITLES[number % len(TITLES)],
        }

    def context(self, draw: random.Random) -> dict[str, str]:
        spent = draw.choice(["-1", "0", "2", "2.5", "77", "4096", "1e15", ""])
        return {"spent": spent, "query": draw.choice(["red shoe", "Shoe, red", "hat", "größe l", ""])}

    def rows(self) -> Iterator[dict[str, str]]:
        """Those of a log: whole requests, a second apart."""
        draw = self.draw
        for number in range(REQUESTS):
            cookie, context = draw.choice(list(self.users)), self.context(draw)
            for item in draw.sample(list(self.items), SHOWN):
                row = {"click": str(int(draw.random() < 0.3)), "ts": str(1_700_000_000 + number)}
                row |= {"request": f"r{number}", "cookie": cookie, "item": item}
                yield {**row, **self.users[cookie], **context, **self.items[item]}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


class Visitors:
    """Threads that ask for rankings and click until some versions have answered.

    served: each score by version, request and item.
    """

    def __init__(self, shop: Shop, address: str, threads: int, calls: int, seed: int) -> None:
        self.served: dict[int, dict[tuple[str, str], float]] = defaultdict(dict)
        self.explained = 0
        self._shop, self._address, self._calls = shop, address, calls
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(seed * 100 + n,)) for n in range(threads)]

    def run(self) -> None:
        """To their end."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        try:
            with Client(self._address, timeout_s=30) as client:
                until, calls = time.monotonic() + 60, 0
                while calls < self._calls or (len(self.served) < VERSIONS and time.monotonic() < until):
                    self._visit(client, draw)
                    calls += 1
                    time.sleep(0.01)
        except BaseException as error:
            self._failed.append(error)

    def _visit(self, client: Client, draw: random.Random) -> None:
        cookie = draw.choice([*self._shop.users, "nobody"])
        listed = draw.sample(list(self._shop.items), draw.randint(1, 12))
        context = {name: text for name, text in self._shop.context(draw).items() if text}
        asked: dict[str, Any] = {"cookie": cookie, "context": context, "candidates": listed}
        answer = client.rank("shop", **asked)
        assert not answer.degraded
        assert len(answer.items) == len(listed)
        self.served[answer.version] |= {(answer.request_id, each.id): each.score for each in answer.items}
        if draw.random() < 0.5:
            client.report("shop", [Feedback(answer.request_id, answer.items[0].id)])
        if draw.random() < 0.2:
            explained = client.explain("shop", **asked)
            for item in explained.items:
                parts = [key.contribution for group in item.groups for key in group.keys]
                assert reduce(add, parts, 0.0) == item.item.score
                self.explained += 1


def scores(model: Path, log: Path) -> list[np.float32]:
    """Of the rows of an event log, by the trainer's code, in ascending order."""
    predictions = log.with_suffix(".csv")
    ftrie("evaluate", model, log, "--format", "events", "--predictions", predictions)
    with predictions.open() as file:
        return sorted(np.float32(row["score"]) for row in csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_feature_is_served_as_it_is_learned(
    tmp_path: Path, store: Store, store_url: str, seed: int
) -> None:
    shop = Shop(seed)
    spec = tmp_path / "shop.toml"
    spec.write_text(SPEC)
    log = write(tmp_path / "log.csv", list(shop.rows()))
    ftrie("train", spec, log, "--activate", "--store", store_url)
    known = {"items": ("item", shop.items), "users": ("cookie", shop.users)}
    for name, (key, records) in known.items():
        listed = [{key: each, **values} for each, values in records.items()]
        ftrie("store", "load", name, write(tmp_path / f"{name}.csv", listed), "--store", store_url)
    store.client.delete("ftrie:{shop}:impressions", "ftrie:{shop}:clicks")
    flags = ("--init-from", "active", "--publish-every", "500ms", "--keep", "1000")
    with (
        training(spec, store_url, tmp_path / "trainer", *flags),
        serving("shop", store_url, "--impressions", "store", "--user-ttl", "0.5") as address,
    ):
        visitors = Visitors(shop, address, threads=4, calls=150, seed=seed)
        visitors.run()
        shown = sum(len({request for request, _ in each}) for each in visitors.served.values())
        eventually(lambda: len(stream(store, "impressions")) == shown, "all impressions")
    assert len(visitors.served) >= VERSIONS
    assert visitors.explained > 100

    events = [event for _, event in stream(store, "impressions")]
    histories = [item["features"].get("seen_before") for event in events for item in event["items"]]
    assert sum(value is not None and value > 0 for value in histories) > len(histories) / 4
    for version, served in visitors.served.items():
        model = tmp_path / f"{version}.arrow"
        store.model("shop").materialise(version).write(model)
        of_version = [event for event in events if event["version"] == version]
        wanted = sorted(map(np.float32, served.values()))
        logged = tmp_path / f"{version}.jsonl"
        logged.write_text("".join(json.dumps(event) + "\n" for event in of_version))
        assert scores(model, logged) == wanted
        for event in of_version:
            for values in (event["user"], event["context"], *(item["features"] for item in event["items"])):
                for name in COMPUTED:
                    values.pop(name, None)
        computed = tmp_path / f"{version}-computed.jsonl"
        computed.write_text("".join(json.dumps(event) + "\n" for event in of_version))
        assert scores(model, computed) == wanted
