"""`Totals` and a server's status as Prometheus metrics.

A custom collector, because prometheus_client's own counters take a lock and a microsecond for each number, and its mode
for several processes writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.telemetry.families import (
    BUCKETS_MS,
    CALL_SECONDS,
    CANDIDATES,
    FAMILIES,
    FROM_DISK,
    ITEMS_KEPT,
    ITEMS_REFUSED,
    LAST_GOOD_FAILED,
    MODEL_PUBLISHED,
    MODEL_VERSION,
    NS,
    READY,
    REPLICA_LAG,
    STAGE_SECONDS,
    STORE_AWAY,
    SUM,
    UNKNOWN_USERS,
    USER_STORE_AWAY,
    WORKER_RESTARTS,
    WORKERS,
    Family,
)
from server.telemetry.meter import (
    BUCKETS_AT,
    CANDIDATES_AT,
    RANKING_AT,
    STORE_AT,
    TOOK_AT,
    UNKNOWN_AT,
    Labels,
    Meter,
    Row,
    Totals,
    bucket_name,
)
from server.telemetry.status import SupervisorStatus

_BOUNDS = [*(f"{ms / 1000:g}" for ms in BUCKETS_MS), "+Inf"]
_STAGES = (("store", STORE_AT), ("ranking", RANKING_AT))


class TotalsCollector(Collector):
    """Every metric of `families`, in that order, whether or not it has been counted yet."""

    def __init__(self, totals: Totals, before: Callable[[], None] = lambda: None) -> None:
        """before: called at the beginning of each scrape."""
        self._totals = totals
        self._before = before

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        self._before()
        answers = self._totals.answers()
        plain: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, number in (*self._totals.counts(), *self._totals.gauges()):
            plain.setdefault(name, []).append((labels, number))
        for family in FAMILIES.values():
            if family.name == CALL_SECONDS:
                yield _histogram(family, answers)
            elif family.kind == "histogram":
                yield _observed(family, plain.get(family.name, []))
            else:
                yield _plain(family, _of_answers(family.name, answers) or plain.get(family.name, []))


def registry(totals: Totals, before: Callable[[], None] = lambda: None) -> CollectorRegistry:
    """A registry with `totals` only."""
    made = CollectorRegistry(auto_describe=False)
    made.register(TotalsCollector(totals, before))
    return made


def _of_answers(name: str, answers: list[tuple[Labels, Row]]) -> list[tuple[Labels, float]]:
    """The samples of a counter that is kept in the answers' rows."""
    if name == CANDIDATES:
        return [(labels, row[CANDIDATES_AT]) for labels, row in answers]
    if name == UNKNOWN_USERS:
        return [(labels, row[UNKNOWN_AT]) for labels, row in answers]
    if name == STAGE_SECONDS:
        return [((*labels, stage), row[at] / NS) for labels, row in answers for stage, at in _STAGES]
    return []


def _plain(family: Family, samples: list[tuple[Labels, float]]) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    if not samples and not family.labels:
        samples = [((), 0.0)]
    for labels, number in samples:
        metric.add_metric(labels, number)
    return metric


def _histogram(family: Family, answers: list[tuple[Labels, Row]]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, row in answers:
        below, buckets = 0, []
        for bound, number in zip(_BOUNDS, row[BUCKETS_AT:], strict=True):
            below += number
            buckets.append((bound, float(below)))
        metric.add_metric(labels, buckets, row[TOOK_AT] / NS)
    return metric


def _observed(family: Family, samples: list[tuple[Labels, float]]) -> Metric:
    """A histogram of what `Meter.observe` has counted, whose last label is a bucket or SUM."""
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    counted: dict[Labels, dict[str, float]] = {}
    for labels, number in samples:
        counted.setdefault(labels[:-1], {})[labels[-1]] = number
    for labels, numbers in counted.items():
        below, buckets = 0.0, []
        for place in range(len(family.buckets) + 1):
            name = bucket_name(family.buckets, place)
            below += numbers.get(name, 0.0)
            buckets.append((name, below))
        metric.add_metric(labels, buckets, numbers.get(SUM, 0.0))
    return metric


def note_status(meter: Meter, status: SupervisorStatus) -> None:
    """Have the meter report the status as gauges; call it before each `take`."""
    not_served = status.not_served
    for model in status.models:
        meter.set(READY, model.name, value=float(model.name not in not_served))
        meter.set(STORE_AWAY, model.name, value=float(model.store_away))
        meter.set(ITEMS_KEPT, model.name, value=float(model.kept_items))
        meter.set(ITEMS_REFUSED, model.name, value=float(model.items_refused))
        meter.set(FROM_DISK, model.name, value=float(model.source == "disk"))
        meter.set(LAST_GOOD_FAILED, model.name, value=float(bool(model.disk_problem)))
        if model.version is not None:
            meter.set(MODEL_VERSION, model.name, value=model.version)
            meter.set(MODEL_PUBLISHED, model.name, value=model.published)
    for store in status.stores:
        if store.name == "users":
            meter.set(USER_STORE_AWAY, value=float(store.away))
        if store.lag_s is not None or not store.problem:
            meter.set(REPLICA_LAG, store.name, value=store.lag_s or 0.0)
    meter.set(WORKERS, value=sum(worker.state == "serving" for worker in status.workers))
    meter.set(WORKER_RESTARTS, value=sum(worker.restarts for worker in status.workers))
