"""Replays of real logs, and of what a server has logged: joined whole, learned twice alike, estimated as shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.api.client import Client
from ftrie.api.messages import Thompson
from model_store.store import Store
from tests.integration.processes import ftrie, serving

OPEN_BANDIT = "examples/open_bandit.toml"
HOTELS = """
[model]
name = "hotels"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
item = "hotel"
[fields]
platform = {}
device = {}
hotel = { side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
position = {}
[[crosses]]
fields = ["platform", "hotel"]
"""
SHOP = """
[model]
name = "shop"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
item = "item"
[fields]
age = { side = "user" }
item = { side = "item" }
[learner]
alpha = 0.3
l1 = 0.0
"""


def estimates_of(*arguments: str | Path) -> dict[str, Any]:
    """The estimates of `ftrie replay … --json`, and the policies by name."""
    found: dict[str, Any] = json.loads(ftrie("replay", *arguments, "--json"))["estimates"]
    return {**found, "by_name": {policy["name"]: policy for policy in found["policies"]}}


def overlap(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two 95 % intervals have a click rate in common."""
    return max(one["low"], other["low"]) <= min(one["high"], other["high"])


@pytest.mark.slow
def test_policies_are_estimated_from_fashion_items_shown_at_random(open_bandit_folder, tmp_path):
    """Given a log of random items, uniform is what it did; from Thompson sampling's log, it is told within error."""
    thompson = open_bandit_folder.parent / "bts_men"
    items, model = thompson / "item_context.csv", tmp_path / "bts.arrow"
    ftrie("train", OPEN_BANDIT, thompson / "men.csv.gz", "--items", items, "--save", model)
    policies: list[str | Path] = ["--policy", "logged", "--policy", "uniform"]
    learned: list[str | Path] = ["--policy", model, "--choose", "softmax:1"]
    random = estimates_of(
        OPEN_BANDIT, open_bandit_folder / "men.csv.gz", "--items", items, *policies, *learned
    )
    shown = estimates_of(OPEN_BANDIT, thompson / "men.csv.gz", "--items", items, *policies)

    assert (random["rows"], random["candidates"], random["decision"]) == (10_000, 34, "row")
    logged, uniform = (random["by_name"][name] for name in ("logged", "uniform"))
    assert uniform["estimates"] == logged["estimates"] and uniform["support"]["largest"] == 1.0
    assert logged["estimates"]["ips"]["value"] == pytest.approx(46 / 10_000)
    assert shown["by_name"]["logged"]["estimates"]["ips"]["value"] == pytest.approx(69 / 10_000)
    assert overlap(shown["by_name"]["uniform"]["estimates"]["snips"], logged["estimates"]["snips"])
    for variant in ("base", "plain"):
        of_model = random["by_name"][f"bts.arrow@{variant} softmax:1"]
        assert of_model["support"]["mean"] == pytest.approx(1.0, abs=0.02)
        assert of_model["support"]["ess"] > 5_000 and list(of_model["positions"]) == ["1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "requests", "hours"), [("simulated_events", 1000, (3, 4)), ("trivago_folder", 6842, (23, 24))]
)
def test_a_replay_of_hotels_learns_what_the_trainer_learned(request, tmp_path, source, requests, hours):
    """Given lists and clicks, when they are replayed, all are joined, and the model is the trainer's."""
    spec = tmp_path / "hotels.toml"
    spec.write_text(HOTELS)
    folder: Path = request.getfixturevalue(source)
    logs = [next(folder.glob(f"{name}.jsonl*")) for name in ("impressions", "clicks")]
    found = json.loads(ftrie("replay", spec, *logs, "--save", tmp_path / "replayed.arrow", "--json"))
    assert (found["join"]["impressions"], found["join"]["positives"]) == (requests, requests)
    assert (
        found["examples"] == found["join"]["rows"] == found["join"]["positives"] + found["join"]["negatives"]
    )
    assert found["rejected"] == 0 and hours[0] * 3600 < found["span_s"] <= hours[1] * 3600
    sources = [argument for log in logs for argument in ("--from", log)]
    places = ("--store", f"embedded:{tmp_path / 'store'}", "--checkpoint", tmp_path / "state")
    ftrie("trainer", spec, *sources, *places, "--once", "--no-publish", "--save", tmp_path / "trained.arrow")
    assert (tmp_path / "replayed.arrow").read_bytes() == (tmp_path / "trained.arrow").read_bytes()


@pytest.mark.slow
def test_the_propensities_of_a_server_under_thompson_sampling_are_used_as_they_are(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Given lists of two that a server drew, weights are the policy's chance by the chance that it logged."""
    items = [f"i{number}" for number in range(6)]
    random = np.random.default_rng(4)
    rates = dict(zip(items, (0.6, 0.5, 0.4, 0.3, 0.2, 0.1), strict=True))
    spec, log = tmp_path / "shop.toml", tmp_path / "log.csv"
    spec.write_text(SHOP)
    catalogue = tmp_path / "items.csv"
    catalogue.write_text("\n".join(["item", *items]) + "\n")
    drawn = [str(each) for each in random.choice(items, 120)]
    lines = [f"r{row},{row},20,{item},{int(random.random() < rates[item])}" for row, item in enumerate(drawn)]
    log.write_text("\n".join(["request_id,ts,age,item,click", *lines]) + "\n")
    ftrie("train", spec, log, "--store", store_url, "--activate")
    shown, clicks = tmp_path / "shown.jsonl", tmp_path / "clicks.jsonl"

    flags = ("--impressions", f"file:{shown}")
    with (
        serving("shop", store_url, *flags) as address,
        Client(address, timeout_s=20) as client,
        clicks.open("w") as file,
    ):
        for _ in range(150):
            answer = client.rank(
                "shop", candidates=items, user={"age": "20"}, top_k=2, exploration=Thompson(width=8.0)
            )
            for item in answer.items:
                if random.random() < rates[item.id]:
                    file.write(json.dumps({"request_id": answer.request_id, "item": item.id}) + "\n")
    impressions = [json.loads(line) for line in shown.read_text().splitlines()]
    assert len(impressions) == 150
    when = {each["request_id"]: each["ts"] for each in impressions}
    clicked = [json.loads(line) for line in clicks.read_text().splitlines()]
    clicks.write_text(
        "".join(json.dumps({**each, "ts": when[each["request_id"]]}) + "\n" for each in clicked)
    )

    pairs = {(each["request_id"], each["item"]) for each in clicked}
    rows = [
        (each["request_id"], item["id"], item["propensity"]) for each in impressions for item in each["items"]
    ]
    weights = np.array([2 / 6 / propensity for _, _, propensity in rows])
    rewards = np.array([float((request, item) in pairs) for request, item, _ in rows])
    found = estimates_of(
        *(spec, shown, clicks, "--policy", "uniform", "--policy", "shop:1", "--store", store_url),
        *("--items", catalogue),
    )
    uniform, greedy = found["policies"]
    assert (found["rows"], found["requests"], found["size"]) == (300, 150, 2.0)
    assert uniform["estimates"]["ips"]["value"] == pytest.approx((weights * rewards).mean())
    assert uniform["estimates"]["snips"]["value"] == pytest.approx((weights * rewards).sum() / weights.sum())
    assert abs(greedy["support"]["mean"] - 1.0) < 4 * greedy["support"]["error"]
