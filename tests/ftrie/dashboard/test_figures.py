"""The dashboard's figures: the minutes in memory are those of the store, metrics pages of servers become rates."""

from __future__ import annotations

import json
import math
import random
import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from ftrie.dashboard import minutes as module
from ftrie.dashboard import scrape
from ftrie.dashboard.minutes import Minutes
from ftrie.dashboard.scrape import (
    ServerWatch,
    TrainerWatch,
    grown,
    histogram,
    per_bucket,
    percentile,
    samples_of,
)
from model_store.store import Store
from model_store.versions.online_metrics import Cell, OnlineSums
from server.telemetry.http import MetricsPage

NOW = 0


@pytest.fixture(autouse=True)
def _this_minute() -> None:
    """The time of each test: the whole file may be imported long before."""
    global NOW
    NOW = int(time.time()) // 60


def sums(draw: random.Random) -> OnlineSums:
    requests = draw.randrange(1, 50)
    clicks = draw.randrange(0, requests)
    return OnlineSums(requests, 6 * requests, clicks, 0, clicks * 10**9, 36 * requests, clicks, 6 * clicks)


@pytest.fixture
def written(store: Store) -> dict[Cell, OnlineSums]:
    """Three days of some minutes, of two variants and several versions, in the store."""
    draw = random.Random(4)
    cells = {
        (NOW - draw.randrange(0, 3 * 1_440), draw.randrange(1, 4), variant): sums(draw)
        for _ in range(300)
        for variant in ("base", "plain")
    }
    store.model("shop").online.write(cells)
    return cells


def added(cells: dict[Cell, OnlineSums], begin: int, stop: int) -> dict[str, OnlineSums]:
    """The sums by variant of the minutes from begin to before stop."""
    found: dict[str, OnlineSums] = {}
    for (minute, _, variant), each in cells.items():
        if begin <= minute < stop:
            found[variant] = found.get(variant, OnlineSums()) + each
    return found


def totals(minutes: Minutes, begin: int, stop: int) -> dict[str, OnlineSums]:
    """The same of the minutes in memory."""
    return {variant: each for (_, _, variant), each in minutes.total(begin, stop)}


def test_the_last_day_is_there_at_once_the_rest_soon_and_groups_add_up_to_the_total(
    store: Store, written: dict[Cell, OnlineSums]
) -> None:
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    assert totals(minutes, NOW - 1_400, NOW + 1) == added(written, NOW - 1_400, NOW + 1)
    assert not minutes.is_complete
    while not minutes.is_complete:
        minutes.follow(online)
    for begin, stop in ((NOW - 5_000, NOW + 1), (NOW - 2_000, NOW - 1_000), (NOW - 10, NOW)):
        assert totals(minutes, begin, stop) == added(written, begin, stop)
    assert minutes.first(NOW - 5_000, NOW + 1) == min(minute for minute, _, _ in written)

    begin, stop, size = NOW - 4_320, NOW + 1, 450
    groups = list(minutes.groups(begin, stop, size))
    assert [group[:2] for group in groups] == sorted(group[:2] for group in groups)
    whole: dict[str, OnlineSums] = {}
    for minute, variant, each in groups:
        assert each == added(written, minute, minute + size)[variant]
        whole[variant] = whole.get(variant, OnlineSums()) + each
    assert whole == added(written, begin, stop + size)


def test_what_the_trainer_changes_later_is_read_again(
    store: Store, written: dict[Cell, OnlineSums], monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    changed = {(NOW, 9, "base"): OnlineSums(requests=1_000, shown=1_000)}
    changed[NOW - 60, 9, "new"] = OnlineSums(requests=7)
    online.write(changed)
    minutes.follow(online)
    assert totals(minutes, NOW, NOW + 1) == added({**written, **changed}, NOW, NOW + 1)
    assert "new" not in totals(minutes, NOW - 60, NOW - 59)
    monkeypatch.setattr(module, "ALL_EVERY_S", 0.0)
    minutes.follow(online)
    assert totals(minutes, NOW - 60, NOW - 59) == added({**written, **changed}, NOW - 60, NOW - 59)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_rates_are_of_what_was_counted_between_two_reads(registry: CollectorRegistry) -> None:
    calls = Histogram("ftrie_call_seconds", "", ("model",), registry=registry, buckets=(0.001, 0.002, 0.004))
    errors = Counter("ftrie_errors", "", ("model",), registry=registry)
    health = {"ready": True, "models": [{"name": "shop", "version": 3}]}
    page = MetricsPage("127.0.0.1", 0, registry, lambda: health)
    try:
        watch = ServerWatch(page.address)
        watch.scrape()
        assert not watch.state.problem and watch.state.models == [{"name": "shop", "version": 3}]
        for _ in range(30):
            calls.labels("shop").observe(0.0015)
        errors.labels("shop").inc(6)
        began = watch.state.at
        watch.scrape()
        assert not watch.state.rates and not watch.state.moments  # too soon: a call would be many a second
        time.sleep(scrape.LEAST_S)
        watch.scrape()
        state = watch.state
        assert state.total("ftrie_errors_total") == 6
        between = state.moments[0].at - began
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
