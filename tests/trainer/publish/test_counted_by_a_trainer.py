"""`ftrie trainer` over events: what it counts online is what the events say, and what served badly is rolled back."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.spec.spec import parse_spec
from tests.model_store.models import model

WINDOW_S = 60
SPEC = f"""
[model]
name = "ads"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
item = "item"
[fields]
age = {{ side = "user" }}
brand = {{ side = "item" }}
[variants]
base = {{ share = 0.5 }}
plain = {{ share = 0.5, without = ["age"] }}
[join]
window = "{WINDOW_S}s"
"""
GUARD = '[guard]\nlogloss_rise = "off"\ncalibration = "off"\nonline_clicks = 50\n'
Event = dict[str, Any]


@pytest.fixture
def began() -> int:
    """The second of the first event: half an hour before the test, however late in a run of the suite it begins."""
    return int(time.time()) - 1800


def impressions(began: int, count: int, seed: int, version: int, ctr: float) -> list[Event]:
    """One a second from `began` on, of three items, answered by `version`."""
    chance = random.Random(seed)
    return [
        {
            "request_id": f"r{number}",
            "ts": began + number,
            "model": "ads",
            "version": version,
            "variant": chance.choice(["base", "plain"]),
            "user": {"age": chance.choice(["20", "30"])},
            "items": [
                {"id": f"i{place}", "position": place, "ctr": ctr, "features": {"brand": chance.choice("ab")}}
                for place in range(3)
            ],
        }
        for number in range(count)
    ]


def clicks(shown: list[Event], seed: int, chance: float) -> list[Event]:
    """Of each item with this chance; one in ten comes too late to count."""
    random_ = random.Random(seed)
    return [
        {"request_id": each["request_id"], "item": item["id"], "ts": each["ts"] + delay}
        for each in shown
        for item in each["items"]
        if random_.random() < chance
        for delay in [random_.choice([1] * 5 + [20] * 4 + [WINDOW_S + 30])]
    ]


def trained(folder: Path, store_url: str, spec: str, events: list[Event], *flags: str) -> int:
    (folder / "ads.toml").write_text(spec)
    log = folder / "events.jsonl"
    log.write_text("".join(json.dumps(each) + "\n" for each in sorted(events, key=lambda each: each["ts"])))
    state = f"--checkpoint={folder / 'state'}"
    return run(
        [
            "trainer",
            str(folder / "ads.toml"),
            f"--from={log}",
            f"--store={store_url}",
            "--once",
            state,
            *flags,
        ]
    )


def test_what_is_counted_is_what_the_events_say(began, tmp_path, store, store_url, capsys):
    shown = impressions(began, 300, seed=1, version=7, ctr=0.2)
    clicked = clicks(shown, seed=2, chance=0.15)
    assert trained(tmp_path, store_url, SPEC, [*shown, *clicked], "--no-publish") == 0
    times = {each["request_id"]: each["ts"] for each in shown}
    in_time = defaultdict(set)
    for each in clicked:
        if each["ts"] <= times[each["request_id"]] + WINDOW_S:
            in_time[each["request_id"]].add(each["item"])
    expected: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for each in shown:
        y = len(in_time[each["request_id"]])
        cell = expected[each["ts"] // 60, each["variant"]]
        for place, added in enumerate((1, y, 0.6)):
            cell[place] += added
    online = store.model("ads").online
    found = {
        (slot.minute, slot.variant): [
            cell.sums.requests,
            cell.sums.clicks,
            pytest.approx(cell.sums.ctr_nano / 1e9),
        ]
        for slot, cell in online.read(began // 60, began // 60 + 40, began // 60)
    }
    assert found == dict(expected)
    capsys.readouterr()
    since = datetime.fromtimestamp(began, UTC).isoformat()
    assert run(["experiment", "report", "ads", "--since", since, "--store", store_url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["all"]["requests"] == 300
    assert report["all"]["clicks"] == sum(len(items) for items in in_time.values())


def test_a_click_counts_for_the_team_that_placed_the_item_by_its_credit(
    began, tmp_path, store, store_url, capsys
):
    random_, shown = random.Random(8), impressions(began, 400, seed=6, version=7, ctr=0.2)
    for each in shown[:300]:
        each["variant"] = "base+plain"
        for item in each["items"]:
            item |= {
                "team": random_.choice(["base", "plain", "other"]),
                "credit": random_.choice([1, 0, 0.25, -0.5]),
            }
    shown[0]["items"][0] |= {"team": ["base"], "credit": "x"}  # not ours: no credit, and no bad event
    shown[1]["items"][0]["credit"] = 7
    clicked = clicks(shown, seed=7, chance=0.3)
    assert trained(tmp_path, store_url, SPEC, [*shown, *clicked], "--no-publish") == 0
    of = {(each["request_id"], item["id"]): item for each in shown for item in each["items"]}
    times = {each["request_id"]: each["ts"] for each in shown}
    credit: dict[str, list[float]] = {"base": [0.0, 0.0], "plain": [0.0, 0.0]}
    for key in {
        (e["request_id"], e["item"]) for e in clicked if e["ts"] <= times[e["request_id"]] + WINDOW_S
    }:
        item = of[key]
        if item.get("team") in ("base", "plain") and abs(item["credit"]) <= 1:
            credit[item["team"]][item["credit"] < 0] += abs(item["credit"])
    found = {"base": [0.0, 0.0], "plain": [0.0, 0.0]}
    requests = 0
    for slot, cell in store.model("ads").online.read(began // 60, began // 60 + 40, began // 60):
        assert not cell.credit or slot.variant == "base+plain"
        requests += cell.sums.requests
        for team, both in cell.credit.items():
            found[team] = [a + b * 1e-9 for a, b in zip(found[team], both.sum(1).tolist(), strict=True)]
    assert requests == 400
    assert found == {team: pytest.approx(both) for team, both in credit.items()}
    capsys.readouterr()
    since = datetime.fromtimestamp(began, UTC).isoformat()
    assert run(["experiment", "report", "ads", "--since", since, "--store", store_url, "--json"]) == 0
    (preference,) = json.loads(capsys.readouterr().out)["preferences"]
    own, base = (credit[team][0] + credit[other][1] for team, other in (("plain", "base"), ("base", "plain")))
    assert (preference["variant"], preference["base"]) == ("plain", "base")
    assert preference["share"] == pytest.approx(own / (own + base))


def test_probabilities_of_conversions_are_judged_by_conversions(began, tmp_path, store, store_url, capsys):
    ads = store.model("ads")
    spec = SPEC + 'positive = "conversion"\n'
    for _ in range(2):
        ads.publish_and_activate(model(spec=parse_spec(spec)))
    ads.guard.watch(candidate=2, good=1)
    shown = impressions(began, 600, seed=3, version=2, ctr=0.05)
    conversions = [each | {"event": "conversion"} for each in clicks(shown, seed=4, chance=0.055)]
    events = [*shown, *clicks(shown, seed=5, chance=0.4), *conversions]
    assert trained(tmp_path, store_url, spec + GUARD, events) == 0
    assert (ads.guard.record().rolled_back, ads.guard.record().good) == (0, 2)
    capsys.readouterr()
    since = datetime.fromtimestamp(began, UTC).isoformat()
    assert run(["experiment", "report", "ads", "--since", since, "--store", store_url, "--json"]) == 0
    assert 0.8 < json.loads(capsys.readouterr().out)["all"]["calibration"] < 1.25


def test_versions_whose_promises_do_not_come_true_are_rolled_back(began, tmp_path, store, store_url, capsys):
    ads = store.model("ads")
    for _ in range(2):
        ads.publish_and_activate(model(spec=parse_spec(SPEC)))
    ads.guard.watch(candidate=2, good=1)
    shown = impressions(began, 600, seed=3, version=2, ctr=0.6)
    events = [*shown, *clicks(shown, seed=4, chance=0.05)]
    assert trained(tmp_path, store_url, SPEC + GUARD, events) == 5  # its last version is held
    assert ads.active() == 1
    record = ads.guard.record()
    assert (record.rolled_back, record.target) == (1, 1)
    assert "online calibration since version 2: got " in ads.manifest(2).refused
    assert "ROLLED BACK from version " in capsys.readouterr().err
    assert ads.versions()[-1].version > 2  # learned on, published, and held in the cooldown
    # An operator's order is not undone by answers before it, whose windows end in the next run.
    assert run(["store", "activate", "ads", "2", "--force", "--store", store_url]) == 0
    later = [each | {"request_id": f"later {each['request_id']}", "ts": each["ts"] + 720} for each in shown]
    assert trained(tmp_path, store_url, SPEC + GUARD, [*events, *later]) == 0
    record = ads.guard.record()
    assert (record.rolled_back, record.candidate, ads.active() or 0) == (1, 2, ads.versions()[-1].version)


def test_answers_in_the_callers_order_are_counted_beside_the_models_and_reported(
    began, tmp_path, store, store_url, capsys
):
    shown = impressions(began, 1_500, seed=9, version=7, ctr=0.2)
    chance = random.Random(10)
    for number, each in enumerate(shown):
        each |= {"variant": "base", "ts": began + number // 2}
        if number < 1_200:
            first = int(chance.random() < 0.4)
            each["apprentice"] = {
                "first": first,
                "overlap": 2 + first,
                "clicks": 0.7 + 0.2 * first,
                "ids": ["x"],
            }
    shown[0]["apprentice"] = {
        "first": 1,
        "overlap": 9,
        "clicks": 0.7,
    }  # more than were shown: no figure of a server
    clicked = clicks(shown, seed=11, chance=0.2)
    assert trained(tmp_path, store_url, SPEC, [*shown, *clicked], "--no-publish") == 0
    capsys.readouterr()
    report = ["experiment", "report", "ads", "--store", store_url]
    report += ["--since", datetime.fromtimestamp(began, UTC).isoformat()]
    assert run([*report, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["all"]["requests"], list(found["variants"])) == (1_500, ["base"])
    of = found["apprentices"]["base"]
    some = shown[1:1_200]
    agreed = [each for each in some if each["apprentice"]["first"]]
    times = {each["request_id"]: each["ts"] for each in shown}
    in_time = {(e["request_id"], e["item"]) for e in clicked if e["ts"] <= times[e["request_id"]] + WINDOW_S}

    def rate(requests: list[Event]) -> float:
        ids = {each["request_id"] for each in requests}
        return sum(request in ids for request, _ in in_time) / (3 * len(requests))

    def total(name: str) -> float:
        return sum(float(each["apprentice"][name]) for each in some)

    assert of["requests"] == 1_199
    assert of["agrees"]["value"] == pytest.approx(len(agreed) / 1_199)
    assert of["overlap"]["value"] == pytest.approx(total("overlap") / (3 * 1_199))
    assert of["ctr"]["value"] == pytest.approx(rate(some))
    assert of["matched"]["value"] == pytest.approx(rate(agreed) / rate(some))
    assert of["direct"]["value"] == pytest.approx(total("clicks") / (0.6 * 1_199))
    assert of["missing"] == [], "it is calibrated, expects more of its order, and agrees on no worse requests"
    assert run(report) == 0
    assert "apprentice base: ready to decide" in capsys.readouterr().out
    store.model("ads").guard.note_rollback(7, 6, "it promised too much")
    assert run(report) == 0
    assert (
        "not ready: the guard went back from version 7 to 6: it promised too much" in capsys.readouterr().out
    )
