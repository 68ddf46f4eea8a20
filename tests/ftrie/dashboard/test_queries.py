"""What the pages show is what the store has: each query beside plain Python over the same events and models."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from ftrie.api.messages import Options
from ftrie.api.store import load
from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.pages.experiments import MOST_POINTS, experiment_figures, group_of
from ftrie.dashboard.pages.features import Explorer
from ftrie.dashboard.pages.learning import SliceQuery, Slices, fields_of, metric_rows
from ftrie.dashboard.pages.models import chain_text, version_lines
from ftrie.dashboard.pages.try_it import TryIt, changed, moves
from ftrie.dashboard.shared import Models, Recent, RecentTraffic, served_of
from ftrie.draw.charts import thinned
from model_store.errors import FtrieError
from model_store.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def feed(traded: str) -> Iterator[Feed]:
    """A feed of the traded market that has read everything."""
    found = Feed(traded)
    found.start()

    found.refreshed(30.0)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def state(feed: Feed) -> ModelState:
    return feed.model("market")


def events(traded: str) -> tuple[list[dict[str, Any]], set[tuple[str, str]]]:
    """Every item that was shown, with its impression, and what was clicked."""
    with Store.open(traded) as store:
        impressions, reports = (
            [json.loads(each) for each in stream.latest(1_000_000)]
            for stream in (store.impressions("market"), store.clicks("market"))
        )
    shown = [{**item, "event": event} for event in impressions for item in event["items"]]
    clicks = [each for each in reports if each.get("event", "click") == "click"]
    return shown, {(each["request_id"], each["item"]) for each in clicks}


def test_outcomes_are_those_of_the_minutes_in_the_store(feed: Feed, state: ModelState, traded: str) -> None:
    stop = int(time.time()) // 60 + 1
    found = experiment_figures(state, feed.minutes("market"), stop - 40_000, stop, 0.05)
    with Store.open(traded) as store:
        cells = list(store.model("market").online.read(stop - 40_000, stop, stop - 1))
    wanted: Counter[tuple[str, str]] = Counter()
    for slot, cell in cells:
        for name in ("requests", "shown", "clicks", "conversions"):
            wanted[slot.variant, name] += getattr(cell.sums, name)
    assert set(found.outcomes.variants) == {"base", "plain"} == {variant for variant, _ in wanted}
    assert found.outcomes.mismatch_p is None or found.outcomes.mismatch_p > 0.001
    for (variant, name), total in wanted.items():
        assert getattr(found.outcomes.variants[variant].sums, name) == total
    assert found.outcomes.base == "base" and state.shares == {"base": 0.8, "plain": 0.2}
    known = all(each.ctr.error for each in found.outcomes.variants.values())
    assert sum(found.outcomes.chances.values()) == pytest.approx(
        float(known)
    )  # the market was open for seconds
    per_series: Counter[str] = Counter(row["series"] for row in found.rows)
    assert 1 <= per_series["base"] <= 3 and found.group_minutes == 1
    for count in (1, 60, 361, 1_440, 44_640):  # a chart has few points
        for series in (1, 2, 32):
            assert series * math.ceil(count / group_of(count, series)) <= MOST_POINTS


def test_versions_and_metrics_are_those_of_the_manifests(feed: Feed, state: ModelState, traded: str) -> None:
    lines = version_lines(feed, state)
    with Store.open(traded) as store:
        versions = store.model("market")
        assert [int(line[0].split()[0]) for line in lines] == [info.version for info in versions.versions()][
            ::-1
        ]
        for line in lines:
            metrics = versions.manifest(int(line[0].split()[0])).metrics["base"]
            assert line[5] == f"{metrics['logloss']:.5f}"
    assert [line[0] for line in lines if "●" in line[0]] == [f"{state.active} ●"]
    assert str(state.active) in chain_text(state, state.active or 0)
    rows = metric_rows(state, "logloss", 1_000)
    assert len(rows) == 2 * len(lines)
    assert list(thinned(rows, 3)) == rows[-2:]


def test_a_difference_is_that_of_the_library_and_keys_with_a_weight_are_counted(
    feed: Feed, state: ModelState, traded: str
) -> None:
    older, newer = state.versions[0].version, state.versions[-1].version
    found = Models(feed).difference(state, older, newer, "plain")
    wanted = load(f"market:{newer}", traded).diff(load(f"market:{older}", traded), "plain")
    assert found.table == wanted.table and (found.added, found.removed) == (wanted.added, wanted.removed)
    counted = Models(feed).nonzero(state, state.active or 0)
    artefact = load(f"market:{state.active}", traded).artefact
    variants = enumerate(artefact.spec.variants)
    assert counted == {name: int(np.count_nonzero(artefact.weights_of(bit))) for bit, name in variants}


def test_branches_and_searches_find_every_key_once(feed: Feed, state: ModelState, traded: str) -> None:
    explorer = Explorer(Models(feed))
    artefact = load(f"market:{state.active}", traded).artefact
    keys = [artefact.key(row).decode() for row in range(artefact.rows)]
    seen: list[str] = []
    waiting = [""]
    while waiting:
        found = explorer.under(state, waiting.pop())
        assert found.keys == sum(key.startswith(found.prefix) for key in keys)
        for branch in found.branches:
            if branch.keys == 1:
                seen.append(next(key for key in keys if key.startswith(branch.prefix)))
            elif branch.prefix != found.prefix:
                waiting.append(branch.prefix)
            else:
                seen.append(branch.prefix)
    assert sorted(seen) == sorted(keys)
    for text in ("games", "age", "=", "s", "*", "no such", ""):
        found_keys = explorer.search(state, text)
        wanted = [key for key in keys if text and text in key]
        assert found_keys.keys == len(wanted)
        assert [each.key for each in found_keys.first] == wanted[:100]


def test_exposure_and_calibration_are_those_of_the_streams(feed: Feed, traded: str) -> None:
    served = Recent(feed, "market").served()
    shown, clicked = events(traded)
    counts = Counter(item["id"] for item in shown)
    assert served.exposure.impressions == len(shown)
    assert {each.item: each.shown for each in served.exposure.items} == counts
    for each in served.exposure.items:
        requests = [item["event"]["request_id"] for item in shown if item["id"] == each.item]
        assert each.clicks == sum((request, each.item) in clicked for request in requests)
        assert sum(each.variants.values()) == each.shown
        assert each.low <= each.clicks / each.shown <= each.high
    assert set(served.exposure.never) | set(counts) >= set(counts)
    assert served.exposure.catalogue >= len(counts)
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in served.calibration:
        groups[row["series"]].append(row)
    assert set(groups) == {"base", "plain"}
    for variant, rows in groups.items():
        rated = sorted(item["ctr"] for item in shown if item["event"]["variant"] == variant)
        assert rows[0]["predicted"] >= rated[0] and rows[-1]["predicted"] <= rated[-1]
        assert [row["predicted"] for row in rows] == sorted(row["predicted"] for row in rows)


def test_what_nobody_saw_is_not_counted_as_shown() -> None:
    items = [{"id": each, "ctr": 0.1} for each in "abcd"]
    shown: list[dict[str, Any]] = [{"request_id": f"r{n}", "items": items} for n in range(3)]
    shown[2]["event"] = "deferred"
    told = [
        {"request_id": "r0", "event": "seen", "position": 2},
        {"request_id": "r0", "item": "d"},
        {"request_id": "r1", "event": "seen", "item": "c"},
        {"request_id": "r1", "event": "conversion", "item": "a"},
        {"request_id": "r2", "event": "seen", "item": "a"},
    ]
    for only_seen, activated, expected in (
        (True, [], {"a": 2, "b": 1, "c": 1, "d": 1}),
        (False, [], {"a": 2, "b": 2, "c": 2, "d": 2}),
        (True, [{"request_id": "r2", "event": "activated"}], {"a": 3, "b": 1, "c": 1, "d": 1}),
    ):
        payloads = [
            [json.dumps(event).encode() for event in events] for events in (shown, [*told, *activated])
        ]
        traffic = RecentTraffic(0.0, tuple(payloads[0]), tuple(payloads[1]), (), TemporaryDirectory())
        found = served_of(traffic, {"a", "e"}, only_seen).exposure
        assert {each.item: each.shown for each in found.items} == expected
        assert found.never == ("e",) and sum(each.clicks for each in found.items) == 1


def test_slices_are_those_of_the_rows(feed: Feed, state: ModelState, traded: str) -> None:
    slices = Slices(Models(feed), Recent(feed, "market"), ())
    assert state.spec is not None and {"age", "device", "category"} <= set(fields_of(state.spec))
    grid = slices.grid(state, SliceQuery("category", least=1), "click_rate")
    shown, clicked = events(traded)
    rows: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for item in shown:
        rows[item["features"]["category"]] += 1
        hits[item["features"]["category"]] += (item["event"]["request_id"], item["id"]) in clicked
    found = {cell.name: cell for cell in grid.cells if cell.variant == "base"}
    assert set(found) == set(rows)
    # Clicks after the window do not count, nor do requests whose items were unknown.
    for name, cell in found.items():
        assert 0.9 * rows[name] <= cell.rows <= rows[name]
        assert 0.9 * hits[name] <= cell.clicks <= hits[name]
        assert cell.value == pytest.approx(cell.clicks / cell.rows)

    whole = slices.grid(state, SliceQuery("category", crossed="device", least=1), "logloss")
    within = slices.grid(state, SliceQuery("device", within=("category", "games"), least=1), "logloss")
    wanted = {cell.name: cell.rows for cell in whole.cells if cell.name.startswith("games*")}
    assert wanted and {cell.name: cell.rows for cell in within.cells} == wanted
    masked = slices.grid(state, SliceQuery("category", least=10**9), "calibration")
    assert {(cell.text, cell.value) for cell in masked.cells} == {("too few", None)}
    worst = slices.grid(state, SliceQuery("age", least=1), "calibration").cells
    highest = [max(c.badness for c in worst if c.name == cell.name) for cell in worst[::2]]
    assert highest == sorted(highest, reverse=True) and len(highest) >= 4


def test_a_request_is_ranked_by_every_variant_as_by_the_library(feed: Feed, traded: str) -> None:
    trial = TryIt(feed, Models(feed), "market")
    form = trial.form()
    assert set(form.user) == {"age", "gender"} and form.context == ("device",)
    assert set(form.values) == {"age", "gender", "device"}
    assert set(form.values["age"]) == {"18-24", "25-34", "35-49", "50+"}
    request: Options = {"user": {"age": "18-24"}, "context": {"device": "mobile"}, "candidates": form.items}
    request["top_k"] = 5
    answer = trial.ask(request, "base")
    found = answer.rankings
    with Store.open(traded) as store:
        ranker = load("market", traded).ranker(items=store, users=store)
        for variant, ranking in found.items():
            asked = {"age": "18-24"}, {"device": "mobile"}, list(form.items)
            wanted = [(item.id, item.ctr) for item in ranker.rank(*asked, top_k=5, variant=variant).items]
            assert [(item.id, item.ctr) for item in ranking.items] == wanted
    best = found["base"].items[0]
    explained = answer.explained
    assert explained is not None and explained.item.id == best.id and answer.unknown == ()
    assert sum(group.sum for group in explained.groups) == pytest.approx(explained.item.score, abs=1e-9)
    assert explained.item.score == best.score
    other = trial.ask(changed(request, "user", "age", "50+"), "base").rankings
    version, moved = trial.compare(request, changed(request, "user", "age", "50+"), "base")
    assert version == answer.version and moved == moves(found["base"], other["base"])
    assert [move.item for move in moved if move.after] == [item.id for item in other["base"].items]
    odd: Options = {"cookie": "nobody", "user": {"age": "18-42"}, "context": {"device": "mobile"}}
    odd["candidates"] = ["nothing", *form.items]
    assert trial.ask(odd, "base", form.items[0]).unknown == (
        "item 'nothing': not in the store",
        "cookie 'nobody': the store has no record of this user",
        "age '18-42': no weight",
    )
    with pytest.raises(FtrieError, match="no candidates"):
        trial.ask({}, "base")
