"""The dashboard's figures: the minutes in memory are those of the store, metrics pages of servers become rates."""

from __future__ import annotations

import gc
import json
import math
import random
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from ftrie.api.messages import Options
from ftrie.dashboard import feed as feed_module
from ftrie.dashboard import minutes as module
from ftrie.dashboard import scrape
from ftrie.dashboard import shared as recent_module
from ftrie.dashboard.feed import Feed
from ftrie.dashboard.minutes import Minutes
from ftrie.dashboard.pages.experiments import EXPECTED, EXPLORED, ExperimentFigures, _preferred, exploring
from ftrie.dashboard.pages.layout import percent
from ftrie.dashboard.pages.learning import settled_range
from ftrie.dashboard.pages.system import latency_colours
from ftrie.dashboard.pages.try_it import TryIt, _side_by_side
from ftrie.dashboard.scrape import (
    ServerState,
    ServerWatch,
    TrainerWatch,
    grown,
    histogram,
    per_bucket,
    percentile,
    samples_of,
)
from ftrie.dashboard.shared import Models, Recent
from ftrie.draw.charts import SERIES, intervals
from ftrie.outcomes import outcomes
from model_store.errors import FtrieError
from model_store.store import Store
from model_store.versions.online_metrics import OnlineCell, Slot
from server.telemetry.prometheus import MetricsPage
from tests.clocks import ManualClock
from tests.model_store import models
from tests.server import shop
from tests.server.ranking.test_two_models import purchase
from tests.waiting import eventually
from tests.worlds import online_cell

NOW = 0


@pytest.fixture(autouse=True)
def _this_minute() -> None:
    """The time of each test: the whole file may be imported long before."""
    global NOW
    NOW = int(time.time()) // 60


Cells = dict[tuple[int, str], OnlineCell]


@pytest.fixture
def written(store: Store) -> Cells:
    """Three days of some minutes of two variants in the store, and the hours before the last day."""
    draw, online = random.Random(4), store.model("shop").online
    cells = {
        (NOW - draw.randrange(0, 3 * 1_440 - 120), variant): online_cell(
            seed=n, requests=50, shown=300, clicks=20
        )
        for n in range(300)
        for variant in ("base", "plain")
    }
    online.write(cells)
    online.add_up(range((NOW - 3 * 1_440) // 60, NOW // 60 - 2))
    return cells


def added(cells: Cells, begin: int, stop: int) -> dict[str, list[list[int]]]:
    """The sums by variant of the minutes from begin to before stop."""
    found: dict[str, OnlineCell] = {}
    for (minute, variant), each in cells.items():
        if begin <= minute < stop:
            found[variant] = found.get(variant, OnlineCell.empty()) + each
    return {variant: cell.buckets.tolist() for variant, cell in found.items()}


def totals(minutes: Minutes, begin: int, stop: int) -> dict[str, list[list[int]]]:
    """The same of the cells in memory."""
    return added(
        {(slot.minute, slot.variant): cell for slot, cell in minutes.cells(begin, stop)}, begin, stop
    )


def test_all_is_there_at_once_and_groups_add_up_to_the_total(store: Store, written: Cells) -> None:
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    hour = (NOW // 60 - 24) * 60
    for begin, stop in (
        (NOW - 1_400, NOW + 1),
        (NOW - 10, NOW),
        (hour - 2_400, NOW + 1),
        (hour - 600, hour - 60),
    ):
        assert totals(minutes, begin, stop) == added(written, begin, stop)
    begin, stop, size = hour - 2_400, NOW + 1, 480
    groups = list(minutes.groups(begin, stop, size))
    assert [group[:2] for group in groups] == sorted(group[:2] for group in groups)
    for minute, variant, each in groups:
        assert each.buckets.tolist() == added(written, minute, minute + size)[variant]
    assert sum(cell.sums.requests for _, _, cell in groups) == sum(
        cell.sums.requests for (minute, _), cell in written.items() if begin <= minute < stop
    )


def test_what_the_trainer_changes_later_is_read_again(
    store: Store, written: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    changed = {
        (NOW, "base"): online_cell(requests=1_000, shown=1_000),
        (NOW - 60, "new"): online_cell(requests=7),
    }
    online.write(changed)
    minutes.follow(online)
    assert totals(minutes, NOW, NOW + 1) == added({**written, **changed}, NOW, NOW + 1)
    assert "new" not in totals(minutes, NOW - 60, NOW - 59)
    monkeypatch.setattr(module, "ALL_EVERY_S", 0.0)
    minutes.follow(online)
    assert totals(minutes, NOW - 60, NOW - 59) == added({**written, **changed}, NOW - 60, NOW - 59)


@pytest.mark.parametrize("window", [150, 1_200, 4_000], ids=["hours", "a day", "days"])
def test_outcomes_of_a_long_join_window_come_to_minutes_that_were_read_empty(
    store: Store, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 0.0)
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    for now, closed in (
        (NOW + 60, NOW - window - 60),
        (NOW + 120, NOW - window),
    ):  # the first, then on with time
        online.write({(closed, "base"): online_cell(requests=7)})
        online.add_up(range(closed // 60, closed // 60 + 1))
        monkeypatch.setattr(module, "_now", lambda now=now: now)
        minutes.follow(online)
        hour = closed // 60 * 60
        found = [cell.sums.requests for _, cell in minutes.cells(hour, hour + 60)]
        assert sum(found) >= 7


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_rates_are_of_what_was_counted_between_two_reads_also_where_there_is_a_proxy(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    calls = Histogram("ftrie_call_seconds", "", ("model",), registry=registry, buckets=(0.001, 0.002, 0.004))
    errors = Counter("ftrie_errors", "", ("model",), registry=registry)
    health = {"ready": True, "models": [{"name": "shop", "version": 3}]}
    page = MetricsPage("127.0.0.1", 0, registry, lambda: health)
    try:
        watch, clock = ServerWatch(page.address), ManualClock()
        monkeypatch.setattr(scrape, "time", clock)
        watch.scrape()
        assert not watch.state.problem and watch.state.models == [{"name": "shop", "version": 3}]
        for _ in range(30):
            calls.labels("shop").observe(0.0015)
        errors.labels("shop").inc(6)
        watch.scrape()
        assert not watch.state.rates and not watch.state.moments  # too soon: a call would be many a second
        clock.advance(scrape.LEAST_S)
        clock.jump(-3600.0)
        watch.scrape()
        state = watch.state
        assert state.total("ftrie_errors_total") == 6
        between = scrape.LEAST_S
        assert math.isclose(state.rate("ftrie_errors_total", model="shop") * between, 6.0)
        assert state.rate("ftrie_errors_total", model="other") == 0.0
        assert math.isclose(state.moments[-1].calls * between, 30.0)
        assert state.moments[-1].percentiles[0] == pytest.approx(0.0015)
    finally:
        page.close()
    watch.scrape()
    assert page.address in watch.state.problem
    assert watch.state.total("ftrie_errors_total") == 6  # what was known stays


def test_what_is_no_page_is_a_problem(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    for body in (b"{", b"\xff\xfe", b"ftrie_x{le= 3", json.dumps([1]).encode()):
        monkeypatch.setattr(scrape, "fetched", lambda address, path, body=body: body)
        server, trainer = ServerWatch("a:1"), TrainerWatch("a:1")
        server.scrape()
        trainer.scrape()
        assert server.state.problem.startswith("no answer from a:1")
        assert trainer.state.problem.startswith("no answer from a:1")
    deep = b"[" * 200_000
    monkeypatch.setattr(scrape, "fetched", lambda address, path: deep if path == "/healthz" else b"")
    server = ServerWatch("a:1")
    server.scrape()
    assert server.state.problem.startswith("no answer from a:1")


@pytest.fixture
def no_http() -> Iterator[str]:
    """The address of a server that does not speak HTTP, such as a gRPC port."""

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(b"\0\0\x12\x04\0\0\0\0\0\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield "{}:{}".format(*server.server_address)
        server.shutdown()


def test_neither_a_wrong_metrics_address_nor_a_damaged_model_ends_the_feed(
    store: Store, store_url: str, no_http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "NAMES_EVERY_S"):
        monkeypatch.setattr(feed_module, name, 0.05)
    for name in ("shop", "zoo"):
        store.model(name).publish_and_activate(models.model())
    wrong = [no_http, "host:x", "[::1", ""]
    feed = Feed(store_url, wrong, wrong)
    feed.start()
    try:
        feed.refreshed(30.0)
        assert feed.names == ("shop", "zoo") and not feed.problem
        for peer in (*feed.servers, *feed.trainers):
            assert peer.problem.startswith(f"no answer from {peer.address}: ")
        store.client.set(store.impressions("shop").key, "?")
        store.client.set("ftrie:{no name!}:versions", "?")
        before = feed.model("zoo").at
        feed.refreshed(30.0)
        assert not feed.problem and store.impressions("shop").key in feed.model("shop").problem
        assert feed.model("zoo").at > before and not feed.model("zoo").problem
    finally:
        feed.stop()


def test_a_counter_that_starts_again_counts_from_zero_and_percentiles_are_linear_within_a_bucket() -> None:
    assert grown(10.0, 12.0) == 2.0
    assert grown(10.0, 3.0) == 3.0
    lines = [f'h_bucket{{le="{le}"}} {n}\n' for le, n in ((1, 0), (2, 50), (4, 100), ("+Inf", 100))]
    buckets = histogram(samples_of("# TYPE h histogram\n" + "".join(lines)), "h")
    assert percentile(buckets, 0.25) == 1.5
    assert percentile(buckets, 0.75) == 3.0
    assert percentile({1.0: 0.0, math.inf: 5.0}, 0.5) == 1.0  # above the last bound nothing is known
    assert percentile({}, 0.5) is None
    assert per_bucket(buckets)[:3] == [(0.0, 1.0, 0.0), (1.0, 2.0, 50.0), (2.0, 4.0, 50.0)]


@pytest.fixture
def feed(store: Store, store_url: str) -> Iterator[Feed]:
    """A feed of a store with the shop, its items and users."""
    shop.fill(store)
    found = Feed(store_url)
    found.start()
    eventually(lambda: found.names == (shop.NAME,))
    yield found
    found.stop()


def test_files_of_traffic_that_is_read_stay_as_they_are(
    store: Store, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_module, "RENEWED_S", 0.0)
    recent = Recent(feed, shop.NAME)
    store.impressions(shop.NAME).append([b'{"n":1}'])
    before = recent.traffic()
    store.impressions(shop.NAME).append([b'{"n":2}'])
    after = recent.traffic()
    texts = [Path(traffic.files[0]).read_text() for traffic in (before, after)]
    assert texts == ['{"n":1}\n', '{"n":1}\n{"n":2}\n']
    gone = before.files[0]
    del before
    gc.collect()
    assert not Path(gone).exists() and Path(after.files[0]).exists()


def test_rankings_are_tried_over_the_items_as_they_are_now(store: Store, feed: Feed) -> None:
    eventually(lambda: feed.model(shop.NAME).active == 1)
    trial = TryIt(feed, Models(feed), shop.NAME)
    for record in (shop.ITEMS["item-1"], shop.ITEMS["item-2"]):
        store.records.put_items([("item-1", record)])
        found = trial.ask({"candidates": ["item-1"]}, "base").rankings
        assert found["base"].items[0].score == pytest.approx(shop.expected_score(record, 0))


def test_an_order_by_two_models_shows_what_both_predict(
    store: Store, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "NAMES_EVERY_S", 0.1)
    versions = store.model("purchase")
    versions.activate(versions.publish(purchase()))
    eventually(lambda: feed.model(shop.NAME).active == 1 and "purchase" in feed.names)
    eventually(lambda: feed.model("purchase").active == 1)
    trial = TryIt(feed, Models(feed), shop.NAME)
    # By the cookie, as without one each request draws the other model's variant.
    request: Options = {"cookie": "u1", "candidates": [*shop.ITEMS], "objective": "ctr * purchase.ctr"}
    answer = trial.ask(request, "base")
    columns, rows = _side_by_side(answer.rankings)
    assert columns[:4] == ["rank", "base", "CTR base", "purchase.ctr"]
    best = answer.rankings["base"].items[0]
    assert best.models is not None and best.objective == best.ctr * best.models["purchase"].ctr
    assert rows[0][1:4] == [best.id, percent(best.ctr, 3), percent(best.models["purchase"].ctr, 3)]
    assert answer.explained is not None and answer.explained.item.models == best.models
    with pytest.raises(FtrieError, match="it names the model 'gone'"):
        trial.ask({**request, "objective": "gone.ctr"}, "base")


def test_values_that_begin_far_away_do_not_flatten_the_rest() -> None:
    assert settled_range([0.42, 0.41] * 3) is None
    course = [3.0, 1.2, *(0.42 + 0.001 * (n % 3) for n in range(40))]
    axis = settled_range(course)
    assert axis is not None and 0.40 < axis[0] < 0.42 and 0.422 < axis[1] < 0.44
    assert settled_range(course[2:]) is None


def test_a_variant_and_a_server_have_one_colour_on_every_chart() -> None:
    one, two = ServerState("a:1"), ServerState("b:1")
    colours = latency_colours([one, two])
    assert [number % len(SERIES) for number in colours.values()] == [0, 0, 1, 1]
    rows = [{"name": "plain", "value": 0.1, "low": 0.0, "high": 0.2}]
    (scale,) = {
        str(layer["encoding"]["color"]["scale"])
        for layer in intervals(rows, value_title="lift", colours={"base": 0, "plain": 1})["layer"]
    }
    assert scale == str({"domain": ["base", "plain"], "range": list(SERIES[:2])})


def test_what_exploration_did_is_read_from_all_servers() -> None:
    def of(explored: float, plain: float, greedy: float, served: float, model: str = "ads") -> ServerState:
        rates = {
            EXPLORED: {
                (("explored", "yes"), ("model", model)): explored,
                (("explored", "no"), ("model", model)): plain,
            },
            EXPECTED: {
                (("model", model), ("order", "greedy")): greedy,
                (("model", model), ("order", "served")): served,
            },
        }
        return ServerState("a:1", rates=rates)

    servers = [of(10.0, 30.0, 5.0, 4.9), of(10.0, 50.0, 5.0, 5.0), of(50.0, 0.0, 1.0, 0.0, model="other")]
    said = "In the last seconds 20.0% of the answers did, which cost 1.00% of the expected clicks."
    assert exploring(servers, "ads") == said
    assert exploring(servers[:0], "ads") == "No answer has followed that in the last seconds."


def test_each_interleaved_variant_has_its_share_of_the_credit_and_its_interval() -> None:
    credit = {
        name: np.full((2, 64), each, np.int64) for name, each in (("base", 10**9), ("plain", 3 * 10**9))
    }
    for each in credit.values():
        each[0] += np.arange(64) * 10**7
        each[1] = 0
    cell = replace(online_cell(requests=6_400, shown=32_000, clicks=3_000), credit=credit)
    found = outcomes([(Slot(1, 1, "base+plain"), cell)], {"base": 0.5, "plain": 0.5}, "base", 0.05)
    columns, [row] = _preferred(ExperimentFigures(found, {}, [], 1))
    shown = dict(zip(columns, row, strict=True))
    assert (shown["variant"], shown["against"], shown["requests"]) == ("plain", "base", "6,400")
    assert shown["share of the credit"] == "71.6 %"
    low, high = (float(end.split()[0]) for end in shown["always valid 95 %"].split(" to "))
    assert 50.0 < low < 71.6 < high and shown["p"] < "0.05" and int(shown["needed"].replace(",", "")) > 0
