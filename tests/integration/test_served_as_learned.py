"""Every kind of feature at once, under load, while versions change: what is served is what the trainer computes."""

from __future__ import annotations

import csv
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from ftrie.api.messages import Explanation
from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.integration.processes import serving
from tests.integration.test_histories import stream, training
from tests.waiting import eventually

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
trust = { kind = "number", fixed_weight = -0.25 }
age = { side = "user", kind = "number", scale = "standard", missing = "key" }
city = { side = "user", main = false }
visits = { side = "user", kind = "number", bucket = [0, 3, 10] }
about = { side = "user", kind = "text", ngrams = 3 }
spent = { kind = "number", bucket = "log2_squared", missing = "key" }
hurry = { kind = "number", bucket = "log", clip = [-50, 50], main = false }
query = { kind = "text" }
price = { side = "item", kind = "number", bucket = "quantile:5" }
cost = { side = "item", column = "price", kind = "number", scale = "log1p", clip = [0, 500] }
rating = { side = "item", kind = "number", scale = "minmax", clip = [1, 5], missing = "key" }
title = { side = "item", kind = "text", most = 5, ngrams = 1 }
per_visit = { side = "user", kind = "number", bucket = "log", ratio = ["age", "visits"], missing = "key" }
per_star = { side = "item", kind = "number", bucket = "log", ratio = ["price", "rating"] }
affordable = { side = "item", kind = "number", bucket = "log", ratio = ["price", "spent"], main = false }
over = { side = "item", kind = "number", scale = "log1p", difference = ["price", "spent"] }
price_rank = { side = "item", kind = "number", list = "rank", of = "price" }
star_rank = { side = "item", kind = "number", bucket = [1, 2, 4], list = "rank", of = "rating", best = "max" }
value_rank = { side = "item", kind = "number", scale = "standard", list = "rank", of = "per_star", missing = "key" }
cheapest = { side = "item", kind = "number", bucket = "log", list = "min", of = "price" }
dearest = { side = "item", kind = "number", scale = "log1p", list = "max", of = "price" }
gap = { side = "item", kind = "number", bucket = "quantile:4", list = "gap", of = "price", missing = "key" }
star_gap = { side = "item", kind = "number", bucket = "log", list = "gap", of = "rating", best = "max" }
last_seen = { side = "user", kind = "set", history = "seen", measure = "last", last = 4 }
last_brands = { side = "user", kind = "set", history = "clicked", measure = "last", of = "brand", last = 3 }
counted = { side = "user", kind = "set", history = "seen", measure = "counts", half_life = "20s", scale = "sqrt" }
tastes = { side = "user", kind = "set", history = "clicked", measure = "counts", of = "brand", bucket = "log" }
bought = { side = "user", kind = "set", history = "converted", measure = "last" }
sights = { side = "user", kind = "number", bucket = [1, 50], history = "seen", measure = "count" }
clicks = { side = "user", kind = "number", bucket = "log", history = "clicked", measure = "count", within = "1h" }
quiet = { side = "user", kind = "number", scale = "log1p", history = "clicked", measure = "age", missing = "key" }
purchases = { side = "user", kind = "number", scale = "minmax", history = "converted", measure = "count" }
shown = { side = "item", kind = "number", bucket = "log", history = "seen", measure = "count" }
shown_ago = { side = "item", kind = "number", scale = "log1p", history = "seen", measure = "age", missing = "key" }
brand_clicks = { side = "item", kind = "number", bucket = "log", history = "clicked", measure = "count", of = "brand" }
brand_bought = { side = "item", kind = "number", scale = "log1p", history = "converted", measure = "age", of = "brand" }
[[crosses]]
fields = ["city", "title"]
[[crosses]]
fields = ["hurry", "brand"]
[[crosses]]
fields = ["affordable", "query"]
[[crosses]]
fields = ["query", "price_rank"]
[[crosses]]
fields = ["last_brands", "brand"]
[[crosses]]
fields = ["quiet", "shown", "star_rank"]
[join]
window = "20m"
[learner]
l1 = 0.0
"""
FIELDS = parse_spec(SPEC).fields
COMPUTED = [name for name, field in FIELDS.items() if field.ratio or field.difference or field.list]
"""What follows from the other values of a row or its request: a log without it is completed."""
HISTORIES = [name for name, field in FIELDS.items() if field.history]
KEYED = {name for name, field in FIELDS.items() if field.main}
"""The fields that have keys of their own."""
COOKIES, ITEMS, REQUESTS, SHOWN = 8, 24, 200, 5
JUNK_USER, JUNK_ITEM = "u0", "i0"
"""Their records have values that do not fit their fields."""
TITLES = ("Red running-SHOE, size 42", "blue Shoe* 100% = good", "Größe 'L' Jacke", "", "ΟΔΟΣ hat hat hat")
ROUNDING = 1e-12
"""How far sums of the same doubles in another order may differ, as a share of their size."""
Scores = dict[tuple[str, str], float]


class Shop:
    """Users, items and contexts of random values, some missing and some extreme."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.users = {
            f"u{n}": {
                "age": self.maybe(draw.randint(18, 90)),
                "city": self.maybe(f"c{n % 3}"),
                "visits": self.maybe(draw.choice(["-3", "0", "9", "1e300", "2.5"])),
                "about": draw.choice(TITLES),
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
        return {
            "spent": draw.choice(["-1", "0", "2", "2.5", "77", "4096", "1e15", ""]),
            "hurry": draw.choice(["0.1", "-7", "1e300", ""]),
            "trust": draw.choice(["0.3", "-0.7", "12.125", ""]),
            "query": draw.choice(["red shoe", "Shoe, red", "hat", "größe l", ""]),
        }

    def rows(self) -> Iterator[dict[str, str]]:
        """Those of a log: whole requests, a second apart; one of fifty has an invalid value, and is rejected."""
        draw = self.draw
        for number in range(REQUESTS):
            cookie, context = draw.choice(list(self.users)), self.context(draw)
            for item in draw.sample(list(self.items), SHOWN):
                row = {"click": str(int(draw.random() < 0.3)), "ts": str(1_700_000_000 + number)}
                row |= {"request": f"r{number}", "cookie": cookie, "item": item}
                row |= {**self.users[cookie], **context, **self.items[item]}
                if draw.random() < 0.02:
                    row[draw.choice(["rating", "age", "spent"])] = draw.choice(
                        ["nan", "-inf", "many", "1e999"]
                    )
                yield row

    def fill(self, store: Store) -> None:
        """Write the records of users and items, two with values that do not fit."""
        junk = {"visits": "many", "age": "nan"}, {"price": "1e999", "cost": "cheap", "rating": "-inf"}
        store.records.put_users({**self.users, JUNK_USER: self.users[JUNK_USER] | junk[0]}.items())
        store.records.put_items({**self.items, JUNK_ITEM: self.items[JUNK_ITEM] | junk[1]}.items())


class Visitors:
    """Threads that ask for rankings, click, buy and ask why, until so many versions and keys of all fields were seen.

    served: each score by version, request and item; explained: the explanations; names: their fields and crosses.
    """

    def __init__(self, shop: Shop, address: str, calls: int, versions: int) -> None:
        self.served: dict[int, Scores] = defaultdict(dict)
        self.explained: list[Explanation] = []
        self.names: set[str] = set()
        self._shop, self._address, self._calls, self._versions = shop, address, calls, versions
        self._seeds = [200 + number for number in range(4)]

    def run(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._run, self._seeds))

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        with Client(self._address, timeout_s=30) as client:
            until, calls = time.monotonic() + 60, 0
            while calls < self._calls or not (self._enough() or time.monotonic() > until):
                self._visit(client, draw)
                calls += 1
                time.sleep(0.02)

    def _enough(self) -> bool:
        return len(self.served) >= self._versions and self.names >= KEYED

    def _visit(self, client: Client, draw: random.Random) -> None:
        cookie = draw.choice([*self._shop.users, "nobody", ""])
        context = {name: text for name, text in self._shop.context(draw).items() if text}
        listed = draw.sample([*self._shop.items, "unknown"], draw.randint(1, 12))
        asked: dict[str, Any] = {"cookie": cookie, "context": context, "candidates": listed[1:]}
        asked["items"] = {
            listed[0]: draw.choice([{}, {"price": 9.5, "cost": 9.5}, {"rating": "", "brand": "b1"}])
        }
        answer = client.rank("shop", **asked)
        assert {each.part for each in answer.degraded} <= (
            {"user_features"} if cookie == JUNK_USER else set()
        )
        assert sorted(each.id for each in answer.items) == sorted(listed)
        self.served[answer.version].update(
            {(answer.request_id, each.id): each.score for each in answer.items}
        )
        if draw.random() < 0.5:
            liked = [answer.request_id, answer.items[0].id]
            events = [Feedback(*liked), Feedback(*liked, event="conversion")]
            client.feedback("shop", events[: draw.randint(1, 2)])
        if draw.random() < 0.3:
            explained = client.explain("shop", **asked)
            self.explained.append(explained)
            self.names |= {group.name for item in explained.items for group in item.groups}


def trained_scores(artefact: Artefact, events: list[dict[str, Any]], folder: Path) -> Scores:
    """By the trainer's code, of each item of each impression that is not unknown."""
    model, log, predictions = folder / "model.arrow", folder / "shown.jsonl", folder / "scores.csv"
    artefact.write(model)
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    words = ["evaluate", model, log, "--format", "events", "--predictions", predictions]
    assert run([str(word) for word in words]) == 0
    shown: dict[str, list[str]] = defaultdict(list)
    with predictions.open() as file:
        for row in csv.DictReader(file):
            shown[row["line"]].append(row["score"])
    found = Scores()
    for line, event in enumerate(events, 1):
        items = [item["id"] for item in event["items"] if not item.get("unknown")]
        for item, score in zip(items, shown[str(line)], strict=True):
            found[event["request_id"], item] = float(score)
    return found


def without(names: list[str], event: Mapping[str, Any]) -> dict[str, Any]:
    """An impression without these features."""

    def some(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in names}

    items = [{**item, "features": some(item["features"])} for item in event["items"]]
    return {**event, "user": some(event["user"]), "context": some(event["context"]), "items": items}


def check_explained(explained: Explanation, artefact: Artefact) -> None:
    """Each key has its version's weight, and all of them make the score; what is left over is rounding only."""
    keys = map(artefact.key, range(artefact.rows))
    weights = dict(zip(keys, artefact.weights_of(0).tolist(), strict=True))
    for item in explained.items:
        parts = [key for group in item.groups if group.name != "rounding" for key in group.keys]
        for key in parts:
            assert key.weight == weights[key.key] and key.contribution == key.weight * key.x
        size = sum(abs(key.contribution) for key in parts)
        total = sum(key.contribution for key in parts)
        assert abs(total - item.item.score) <= ROUNDING * max(1.0, size)


@pytest.mark.slow
def test_every_feature_is_served_as_it_is_learned(tmp_path, store, store_url):
    """In `make test`, tests/server/events/test_same_keys.py compares the keys of a server's lines with a trainer's."""
    shop, versions = Shop(2), 6
    spec, log = tmp_path / "shop.toml", tmp_path / "log.csv"
    spec.write_text(SPEC)
    rows = list(shop.rows())
    with log.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    shop.fill(store)
    assert run(["train", str(spec), str(log), "--activate", "--store", store_url]) == 0
    learning = ("--init-from", "active", "--publish-every", "1s", "--keep", "1000")
    patient = ("--impressions", "store", "--user-ttl", "0.5", "--store-budget", "5000")
    with (
        training(spec, store_url, tmp_path / "trainer", *learning),
        serving("shop", store_url, *patient) as address,
    ):
        visitors = Visitors(shop, address, 150, versions)
        visitors.run()
        requests = sum(len({request for request, _ in each}) for each in visitors.served.values())
        eventually(lambda: len(stream(store, "impressions")) == requests, "all impressions")
    assert len(visitors.served) >= versions

    events = [event for _, event in stream(store, "impressions")]
    values = [event["user"] | item["features"] for event in events for item in event["items"]]
    assert not [name for name in HISTORIES if not any(each.get(name) for each in values)]
    artefacts = {version: store.model("shop").materialise(version) for version in visitors.served}
    logs = events, [without(COMPUTED, event) for event in events]
    for version, served in visitors.served.items():
        mine = {key: score for key, score in served.items() if key[1] != "unknown"}
        for log_of_all in logs:
            # Some of other versions too: a log of one answer may lack a column.
            impressions = [each for n, each in enumerate(log_of_all) if each["version"] == version or n < 30]
            trained = trained_scores(artefacts[version], impressions, tmp_path)
            for key, score in mine.items():
                assert score == pytest.approx(trained[key], rel=ROUNDING, abs=ROUNDING), (version, key)

    for explained in visitors.explained:
        if explained.version not in artefacts:
            artefacts[explained.version] = store.model("shop").materialise(explained.version)
        check_explained(explained, artefacts[explained.version])
    assert FIELDS.keys() & visitors.names == KEYED
