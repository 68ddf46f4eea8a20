"""A trainer's Prometheus metrics: its latest status as counters and gauges. docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from model_store.errors import InputError
from model_store.files import port_taken
from model_store.metrics import Family
from trainer.runs.status import Status, VariantOutcome

Value = float | None | Mapping[str, float | None] | Mapping[tuple[str, str], float | None]
"""Of a metric without labels beside `model` its number, of others the numbers by label; None has no sample."""

FAMILIES: dict[Family, Callable[[Status], Value]] = {}
"""Every metric of a trainer in order, with how it is read."""


def _declare(name: str, labels: tuple[str, ...], help: str, read: Callable[[Status], Value]) -> None:
    FAMILIES[Family(f"ftrie_trainer_{name}", ("model", *labels), help)] = read


def _by_variant(name: str, help: str, read: Callable[[VariantOutcome], float | None]) -> None:
    _declare(
        name, ("variant",), help, lambda s: {variant: read(each) for variant, each in s.outcomes.items()}
    )


_EVENTS = {"impressions": "impression", "feedback": "feedback", "bad_events": "bad"}
_SKEWS = ("behind", "ahead", "ids_ahead", "clock_ahead")
_NOT_COUNTERS = ("pending", "pending_rows", "remembered", "waiting")

_declare(
    "events_total",
    ("kind",),
    "events taken, by kind",
    lambda s: {kind: s.counts[name] for name, kind in _EVENTS.items()},
)
_declare(
    "join_total",
    ("what",),
    "events by outcome in the join",
    lambda s: {name: count for name, count in s.join.items() if name not in _NOT_COUNTERS},
)
_declare("pending", (), "requests whose window is open", lambda s: s.join.get("pending", 0))
_declare("examples_total", (), "examples learned from", lambda s: s.examples)
_declare("dead_letters_total", (), "events and rows that could not be learned from", lambda s: s.dead_letters)
_declare("lost_total", ("source",), "events deleted from a source before they were read", lambda s: s.lost)
_declare("lag_events", ("source",), "unread events", lambda s: {n: lag.events for n, lag in s.lags.items()})
_declare(
    "lag_seconds",
    ("source",),
    "age of the oldest unread event",
    lambda s: {name: lag.seconds for name, lag in s.lags.items()},
)
_declare(
    "clock_skew_seconds",
    ("source", "of"),
    "by how much clocks differ: of events behind, ahead of their arrival; of the store ids_ahead, clock_ahead",
    lambda s: {(name, of): getattr(lag, of) for name, lag in s.lags.items() for of in _SKEWS},
)
_declare(
    "versions_total",
    ("kind",),
    "versions published, and publications that failed; of those published: refused, held by the guard",
    lambda s: s.published,
)
_declare("rollbacks_total", (), "automatic rollbacks by the guard", lambda s: s.rolled_back)
_declare("version", (), "the last version published", lambda s: s.version)
_declare("active_version", (), "the version that is served", lambda s: s.active)
_declare(
    "inactive", (), "1 while an operator's pin keeps published versions inactive", lambda s: bool(s.inactive)
)
_declare("store_away", (), "1 while the store does not answer or rejects writes", lambda s: s.store_away)
_declare(
    "store_losses_total",
    (),
    "how often the store was found without the trainer's lease, so without its data",
    lambda s: s.store_losses,
)
_declare(
    "unknown_items_total",
    (),
    "rows skipped because the server did not know the item",
    lambda s: s.counts["unknown_items"],
)
_declare(
    "users_dropped_total", (), "users whose histories were dropped for others", lambda s: s.users_dropped
)
_declare(
    "failed_checkpoints_total", (), "checkpoints that could not be written", lambda s: s.failed_checkpoints
)
_declare("keys", (), "keys in the value table", lambda s: s.keys)
_declare("logloss", (), "progressive log-loss of the first variant's last window", lambda s: s.logloss)
_declare(
    "normalized_entropy",
    (),
    "of the worst variant in the last 1,000 rows or more; above 1.5 the model diverges",
    lambda s: s.normalized_entropy,
)
_declare(
    "withheld", (), "1 while nothing is published: too many rows were rejected", lambda s: bool(s.withheld)
)
_declare(
    "waiting_seconds",
    ("partition",),
    "how long a partition has waited for the others at the end of its round; 0 while it learns",
    lambda s: {s.partition: s.waiting_s} if s.partition else {},
)
_by_variant("requests_total", "requests whose join window has closed, by variant", lambda each: each.requests)
_by_variant("impressions_total", "items that they showed", lambda each: each.impressions)
_by_variant("clicks_total", "items that were clicked", lambda each: each.clicks)
_by_variant("conversions_total", "items that were converted", lambda each: each.conversions)
_by_variant("ctr", "clicks an impression, over the last 120 minutes", lambda each: each.ctr)
_by_variant("ctr_error", "its standard error, between groups of cookies", lambda each: each.ctr_error)
_by_variant(
    "calibration",
    "predicted clicks a click (conversions with join.positive), over the same minutes; 1 is right",
    lambda each: each.calibration,
)
_by_variant(
    "calibration_error", "its standard error, between groups of cookies", lambda each: each.calibration_error
)


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
        for family, read in FAMILIES.items():
            value = read(status) if status is not None else None
            numbers = value if isinstance(value, Mapping) else {(): value}
            yield family.metric(
                [
                    ((status.model, *((labels,) if isinstance(labels, str) else labels)), number)
                    for labels, number in numbers.items()
                    if status is not None and number is not None
                ]
            )


def serve_metrics(host: str, port: int) -> StatusCollector:
    """Serve metrics on an address of this machine. Raises InputError if the port cannot be opened."""
    registry, collector = CollectorRegistry(), StatusCollector()
    registry.register(collector)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise InputError(f"--metrics-port {port}: cannot listen on {host}: {port_taken(port)}") from error
    return collector
