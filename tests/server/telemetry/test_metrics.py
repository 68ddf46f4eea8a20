"""The meter, the totals and the page: nothing is lost, nothing is counted twice, nothing falls."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from model_store.errors import StoreUnavailable
from server.errors import Degradation
from server.ranking.users import USER_CACHE
from server.serve.grpc_server import IN_PROGRESS
from server.sync.model_sync import FRESHNESS
from server.telemetry.meter import DEGRADED, ERRORS, FAMILIES, OLDER, VERSIONS_KEPT, Meter, Totals, declare
from server.telemetry.prometheus import MetricsPage, registry

AWAY = Degradation.of("items", StoreUnavailable("away"))


def answer(meter: Meter, version: int = 1, degraded: tuple[Degradation, ...] = ()) -> None:
    meter.answered("shop", version, "plain", 200, 0, 5, 7, degraded, "r1")


def over_json(taken: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(taken))
    return copied


def samples(totals: Totals) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in registry(totals).collect()
        for sample in metric.samples
    }


def test_what_many_threads_count_while_it_is_taken_is_taken_exactly_once() -> None:
    meter, totals = Meter(), Totals()
    each, threads = 2000, 4
    counting = [
        threading.Thread(target=lambda: [answer(meter, degraded=(AWAY,)) for _ in range(each)])
        for _ in range(threads)
    ]
    for thread in counting:
        thread.start()
    while any(thread.is_alive() for thread in counting):
        totals.add("w1", over_json(meter.take()))
    totals.add("w1", over_json(meter.take()))
    found = samples(totals)
    labels = ("shop", "1", "plain")
    assert found["ftrie_call_seconds_count", labels] == each * threads
    assert found["ftrie_candidates_total", labels] == 200 * each * threads
    assert found["ftrie_stage_seconds_total", (*labels, "store")] == pytest.approx(5e-9 * each * threads)
    assert found["ftrie_stage_seconds_total", (*labels, "ranking")] == pytest.approx(7e-9 * each * threads)
    assert found[DEGRADED.name, ("shop", "items")] == each * threads
    assert meter.take()["answers"] == [], "threads that have ended are forgotten once they were taken"


def test_a_dead_worker_s_counts_stay_and_its_gauges_go() -> None:
    totals = Totals()
    for source in ("w1", "w2"):
        meter = Meter()
        answer(meter)
        meter.failed("shop", "Rank", "INTERNAL")
        meter.set(IN_PROGRESS, value=3)
        totals.add(source, over_json(meter.take()))
    assert samples(totals)[IN_PROGRESS.name, ()] == 6
    totals.gone("w1")
    found = samples(totals)
    assert found[IN_PROGRESS.name, ()] == 3
    assert found["ftrie_call_seconds_count", ("shop", "1", "plain")] == 2
    assert found[ERRORS.name, ("shop", "Rank", "INTERNAL")] == 2


def test_only_the_latest_versions_have_series_and_the_sum_never_falls() -> None:
    meter, totals = Meter(), Totals()
    order = [1, 2, 3, 4, 5, 6, 2, 7]  # a rollback to 2, then on
    for done, version in enumerate(order, 1):
        answer(meter, version)
        totals.add("w1", meter.take())
        counts = {k: v for k, v in samples(totals).items() if k[0] == "ftrie_call_seconds_count"}
        assert sum(counts.values()) == done
        assert len(counts) <= VERSIONS_KEPT + 1
    versions = {labels[1]: value for (_, labels), value in counts.items()}
    assert versions == {OLDER: 4.0, "5": 1.0, "6": 1.0, "2": 1.0, "7": 1.0}


def test_what_was_observed_is_in_its_bucket_and_in_the_sum_of_all_processes() -> None:
    totals = Totals()
    for source, values in (("w1", (0.05, 0.1, 700.0)), ("w2", (0.2,))):
        meter = Meter()
        for value in values:
            meter.observe(FRESHNESS, "shop", value=value)
        answer(meter)  # begun when the clock was 0: longer than any bucket
        totals.add(source, over_json(meter.take()))
    found = samples(totals)
    buckets = [found[f"{FRESHNESS}_bucket", ("shop", bound)] for bound in ("0.1", "0.25", "600", "+Inf")]
    assert buckets == [2, 3, 3, 4]
    assert found[f"{FRESHNESS}_count", ("shop",)] == 4
    assert found[f"{FRESHNESS}_sum", ("shop",)] == pytest.approx(700.35)
    assert found["ftrie_call_seconds_bucket", ("shop", "1", "plain", "+Inf")] == 2
    assert found["ftrie_call_seconds_bucket", ("shop", "1", "plain", "2.5")] == 0


def test_a_metric_is_declared_once_and_reported_with_the_labels_declared() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        declare(USER_CACHE.name, (), "again")
    meter = Meter()
    meter.count(USER_CACHE)  # a label is missing
    with pytest.raises(ValueError, match="its labels are"):
        meter.take()


@contextmanager
def page_of(totals: Totals, health: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    page = MetricsPage("127.0.0.1", 0, registry(totals), lambda: health)
    try:
        yield lambda path, **headers: urllib.request.urlopen(
            urllib.request.Request(f"http://{page.address}{path}", headers=headers), timeout=20
        )
    finally:
        page.close()


def test_the_page_has_every_metric_in_either_form_and_health_beside() -> None:
    health, meter, totals = {"ready": True, "models": {"shop": 1}}, Meter(), Totals()
    with page_of(totals, health) as ask:
        with ask("/metrics") as answered:
            families = {each.name for each in text_string_to_metric_families(answered.read().decode())}
        assert families == {name.removesuffix("_total") for name in FAMILIES}
        answer(meter, degraded=(AWAY,))
        totals.add("w1", meter.take())
        with ask("/metrics", Accept="application/openmetrics-text; version=1.0.0") as answered:
            assert answered.headers["Content-Type"].startswith("application/openmetrics-text")
            read = openmetrics.text_string_to_metric_families(answered.read().decode())
        found = {sample.name for family in read for sample in family.samples}
        assert {"ftrie_call_seconds_bucket", "ftrie_candidates_total", "ftrie_degraded_total"} <= found
        with ask("/healthz") as answered:
            assert json.load(answered) == health
        health["ready"] = False
        with pytest.raises(urllib.error.HTTPError) as failed:
            ask("/healthz")
        assert failed.value.code == 503
        assert json.load(failed.value) == health
