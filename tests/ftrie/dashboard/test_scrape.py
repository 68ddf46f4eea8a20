"""Metrics pages of real servers become rates and percentiles; one that is away keeps what it said last."""

from __future__ import annotations

import json
import math
import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from ftrie.dashboard import scrape
from ftrie.dashboard.scrape import (
    ServerWatch,
    TrainerWatch,
    grown,
    histogram,
    per_bucket,
    percentile,
    samples_of,
)
from server.telemetry.http import MetricsPage


@pytest.fixture
def registry() -> CollectorRegistry:
    """Some of a server's metrics."""
    return CollectorRegistry()


def test_rates_are_of_what_was_counted_between_two_reads(registry: CollectorRegistry) -> None:
    calls = Histogram("ftrie_call_seconds", "", ("model",), registry=registry, buckets=(0.001, 0.002, 0.004))
    errors = Counter("ftrie_errors", "", ("model",), registry=registry)
    page = MetricsPage(
        "127.0.0.1", 0, registry, lambda: {"ready": True, "models": [{"name": "shop", "version": 3}]}
    )
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


def test_what_is_no_metrics_page_is_a_problem(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
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
