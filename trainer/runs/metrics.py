"""A trainer's Prometheus metrics: its latest status as counters and gauges. docs/trainer.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from model_store.errors import InputError
from model_store.locks import port_taken
from trainer.runs.status import Status


class Family(NamedTuple):
    """One metric: name, counter or gauge, its labels beside `model`, help text."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_VARIANT = ("variant",)
FAMILIES = (
    Family("ftrie_trainer_events_total", "counter", ("kind",), "events taken, by kind"),
    Family("ftrie_trainer_join_total", "counter", ("what",), "events by outcome in the join"),
    Family("ftrie_trainer_pending", "gauge", (), "requests whose window is open"),
    Family("ftrie_trainer_examples_total", "counter", (), "examples learned from"),
    Family(
        "ftrie_trainer_dead_letters_total", "counter", (), "events and rows that could not be learned from"
    ),
    Family(
        "ftrie_trainer_lost_total",
        "counter",
        ("source",),
        "events deleted from a source before they were read",
    ),
    Family("ftrie_trainer_lag_events", "gauge", ("source",), "unread events"),
    Family("ftrie_trainer_lag_seconds", "gauge", ("source",), "age of the oldest unread event"),
    Family(
        "ftrie_trainer_clock_skew_seconds",
        "gauge",
        ("source", "of"),
        "by how much clocks differ: of events behind, ahead of their arrival; of the store ids_ahead, clock_ahead",
    ),
    Family(
        "ftrie_trainer_versions_total",
        "counter",
        ("kind",),
        "versions published, and publications that failed; of those published: refused, held by the guard",
    ),
    Family("ftrie_trainer_rollbacks_total", "counter", (), "automatic rollbacks by the guard"),
    Family("ftrie_trainer_version", "gauge", (), "the last version published"),
    Family("ftrie_trainer_active_version", "gauge", (), "the version that is served"),
    Family(
        "ftrie_trainer_inactive", "gauge", (), "1 while an operator's pin keeps published versions inactive"
    ),
    Family("ftrie_trainer_store_away", "gauge", (), "1 while the store does not answer or rejects writes"),
    Family(
        "ftrie_trainer_store_losses_total",
        "counter",
        (),
        "how often the store was found without the trainer's lease, so without its data",
    ),
    Family(
        "ftrie_trainer_unknown_items_total",
        "counter",
        (),
        "rows skipped because the server did not know the item",
    ),
    Family(
        "ftrie_trainer_users_dropped_total", "counter", (), "users whose histories were dropped for others"
    ),
    Family("ftrie_trainer_failed_checkpoints_total", "counter", (), "checkpoints that could not be written"),
    Family("ftrie_trainer_keys", "gauge", (), "keys in the value table"),
    Family("ftrie_trainer_logloss", "gauge", (), "progressive log-loss of the first variant's last window"),
    Family(
        "ftrie_trainer_normalized_entropy",
        "gauge",
        (),
        "of the worst variant in the last 1,000 rows or more; above 1.5 the model diverges",
    ),
    Family(
        "ftrie_trainer_withheld", "gauge", (), "1 while nothing is published: too many rows were rejected"
    ),
    Family(
        "ftrie_trainer_waiting_seconds",
        "gauge",
        ("partition",),
        "how long a partition has waited for the others at the end of its round; 0 while it learns",
    ),
    Family(
        "ftrie_trainer_requests_total",
        "counter",
        _VARIANT,
        "requests whose join window has closed, by variant",
    ),
    Family("ftrie_trainer_impressions_total", "counter", _VARIANT, "items that they showed"),
    Family("ftrie_trainer_clicks_total", "counter", _VARIANT, "items that were clicked"),
    Family("ftrie_trainer_conversions_total", "counter", _VARIANT, "items that were converted"),
    Family("ftrie_trainer_ctr", "gauge", _VARIANT, "clicks an impression, over the last 120 minutes"),
    Family("ftrie_trainer_ctr_error", "gauge", _VARIANT, "its standard error, between groups of cookies"),
    Family(
        "ftrie_trainer_calibration",
        "gauge",
        _VARIANT,
        "predicted clicks a click (conversions with join.positive), over the same minutes; 1 is right",
    ),
    Family(
        "ftrie_trainer_calibration_error", "gauge", _VARIANT, "its standard error, between groups of cookies"
    ),
)
_EVENT_KINDS = {"impressions": "impression", "feedback": "feedback", "bad_events": "bad"}
_SKEWS = ("behind", "ahead", "ids_ahead", "clock_ahead")
_NOT_COUNTERS = ("pending", "pending_rows", "remembered", "waiting")


class StatusCollector(Collector):
    """Exports the last status it was given. Thread-safe: one reference is replaced."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def show(self, status: Status) -> None:
        """Export this status from now on."""
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every family, with its known samples."""
        status = self._status
        samples = _samples(status) if status is not None else {}
        for family in FAMILIES:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=("model", *family.labels))
            for labels, value in samples.get(family.name, ()):
                assert status is not None
                metric.add_metric((status.model, *labels), value)
            yield metric


def serve_metrics(host: str, port: int) -> StatusCollector:
    """Serve metrics on an address of this machine. Raises InputError if the port cannot be opened."""
    registry, collector = CollectorRegistry(), StatusCollector()
    registry.register(collector)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise InputError(f"--metrics-port {port}: cannot listen on {host}: {port_taken(port)}") from error
    return collector


Sample = tuple[tuple[str, ...], float]


def _samples(status: Status) -> dict[str, list[Sample]]:
    lags, outcomes = status.lags.items(), status.outcomes.items()
    figures: dict[str, list[Sample]] = {
        f"ftrie_trainer_{figure}": [
            ((name,), getattr(each, figure)) for name, each in outcomes if getattr(each, figure) is not None
        ]
        for figure in ("ctr", "ctr_error", "calibration", "calibration_error")
    }
    return figures | {
        "ftrie_trainer_events_total": [((kind,), status.counts[name]) for name, kind in _EVENT_KINDS.items()],
        "ftrie_trainer_join_total": [
            ((n,), count) for n, count in status.join.items() if n not in _NOT_COUNTERS
        ],
        "ftrie_trainer_pending": [((), status.join.get("pending", 0))],
        "ftrie_trainer_examples_total": [((), status.examples)],
        "ftrie_trainer_dead_letters_total": [((), status.dead_letters)],
        "ftrie_trainer_lost_total": [((source,), count) for source, count in status.lost.items()],
        "ftrie_trainer_lag_events": [((n,), lag.events) for n, lag in lags if lag.events is not None],
        "ftrie_trainer_lag_seconds": [((n,), lag.seconds) for n, lag in lags if lag.seconds is not None],
        "ftrie_trainer_clock_skew_seconds": [((n, of), getattr(lag, of)) for n, lag in lags for of in _SKEWS],
        "ftrie_trainer_versions_total": [((kind,), count) for kind, count in status.published.items()],
        "ftrie_trainer_rollbacks_total": [((), status.rolled_back)],
        "ftrie_trainer_version": _known(status.version),
        "ftrie_trainer_active_version": _known(status.active),
        "ftrie_trainer_inactive": [((), bool(status.inactive))],
        "ftrie_trainer_store_away": [((), status.store_away)],
        "ftrie_trainer_store_losses_total": [((), status.store_losses)],
        "ftrie_trainer_unknown_items_total": [((), status.counts["unknown_items"])],
        "ftrie_trainer_users_dropped_total": [((), status.users_dropped)],
        "ftrie_trainer_failed_checkpoints_total": [((), status.failed_checkpoints)],
        "ftrie_trainer_keys": [((), status.keys)],
        "ftrie_trainer_logloss": _known(status.logloss),
        "ftrie_trainer_normalized_entropy": _known(status.normalized_entropy),
        "ftrie_trainer_withheld": [((), bool(status.withheld))],
        "ftrie_trainer_waiting_seconds": [((status.partition,), status.waiting_s)]
        if status.partition
        else [],
        "ftrie_trainer_requests_total": [((name,), each.requests) for name, each in outcomes],
        "ftrie_trainer_impressions_total": [((name,), each.impressions) for name, each in outcomes],
        "ftrie_trainer_clicks_total": [((name,), each.clicks) for name, each in outcomes],
        "ftrie_trainer_conversions_total": [((name,), each.conversions) for name, each in outcomes],
    }


def _known(value: float | None) -> list[Sample]:
    return [] if value is None else [((), value)]
