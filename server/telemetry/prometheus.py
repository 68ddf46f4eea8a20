"""The metrics page: `Totals` and the server's status as Prometheus metrics, over HTTP, with /healthz beside them.

A custom collector, because prometheus_client's own counters take a lock and a microsecond for each number, and its mode
for several processes writes files.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from model_store.errors import ServerError
from model_store.files import address_of, port_taken
from model_store.metrics import Family, pause_where_none_is_accepted
from server.telemetry.meter import FAMILIES, Meter, Totals, declare
from server.telemetry.status import ModelStatus, SupervisorStatus

LONGEST_REQUEST_S = 5.0
JSON = "application/json"

_MODEL = ("model",)

_OF_MODELS: dict[Family, Callable[[ModelStatus], float | None]] = {
    declare("ftrie_store_away", _MODEL, "1 while the supervisor cannot reach the store"): (
        lambda model: model.store_away
    ),
    declare(
        "ftrie_items_kept",
        _MODEL,
        "items that are kept as they were because the store lost its data and lacks them",
    ): lambda model: model.kept_items,
    declare(
        "ftrie_items_refused",
        _MODEL,
        "1 while the store's items are refused because all of them would score the same",
    ): lambda model: model.items_refused,
    declare(
        "ftrie_serving_from_disk", _MODEL, "1 while the served version is the last good copy from disk"
    ): lambda model: model.source == "disk",
    declare(
        "ftrie_last_good_failed",
        _MODEL,
        "1 while the last good model cannot be written to disk, or the one there cannot be served",
    ): lambda model: bool(model.disk_problem),
    declare("ftrie_model_version", _MODEL, "the served version"): lambda model: model.version,
    declare(
        "ftrie_model_published_timestamp_seconds",
        _MODEL,
        "when the served version was published; its age is time() minus this",
    ): lambda model: None if model.version is None else model.published,
}
"""Gauges of each model, with how they are read; None: as it was."""
_READY = declare("ftrie_ready", _MODEL, "1 if a worker answers for the model, otherwise 0")
_USER_STORE_AWAY = declare(
    "ftrie_user_store_away", (), "1 while the supervisor cannot reach the store of `--user-store`"
)
_REPLICA_LAG = declare(
    "ftrie_replica_lag_seconds",
    ("store",),
    "how long a replica that is read (`store`, or `users` of `--user-store`) has heard nothing from its primary; up to "
    "10 s is usual, 0 for others",
)
_WORKERS = declare("ftrie_workers", (), "workers that answer")
_WORKER_RESTARTS = declare("ftrie_worker_restarts_total", (), "workers that died and were replaced")


def note_status(meter: Meter, status: SupervisorStatus) -> None:
    """Have the meter report the status as gauges; call it before each `take`."""
    not_served = status.not_served
    for model in status.models:
        meter.set(_READY, model.name, value=float(model.name not in not_served))
        for family, read in _OF_MODELS.items():
            if (value := read(model)) is not None:
                meter.set(family, model.name, value=float(value))
    for store in status.stores:
        if store.name == "users":
            meter.set(_USER_STORE_AWAY, value=float(store.away))
        if store.lag_s is not None or not store.problem:
            meter.set(_REPLICA_LAG, store.name, value=store.lag_s or 0.0)
    meter.set(_WORKERS, value=sum(worker.state == "serving" for worker in status.workers))
    meter.set(_WORKER_RESTARTS, value=sum(worker.restarts for worker in status.workers))


class TotalsCollector(Collector):
    """Every metric of the server by name, whether or not it has been counted yet."""

    def __init__(self, totals: Totals, before: Callable[[], None] = lambda: None) -> None:
        """before: called at the beginning of each scrape."""
        self._totals = totals
        self._before = before

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        self._before()
        samples = self._totals.samples()
        for name, family in sorted(FAMILIES.items()):
            yield family.metric(samples.get(name, ()))


def registry(totals: Totals, before: Callable[[], None] = lambda: None) -> CollectorRegistry:
    """A registry with `totals` only."""
    # With auto_describe, registering would collect once, only to learn the metrics' names.
    made = CollectorRegistry(auto_describe=False)
    made.register(TotalsCollector(totals, before))
    return made


class MetricsPage:
    """An HTTP server on a thread of its own, from construction to `close`."""

    def __init__(
        self, host: str, port: int, metrics: CollectorRegistry, health: Callable[[], Mapping[str, Any]]
    ) -> None:
        """`health` returns {"ready": bool, "not_served": {model: why}, …}; /healthz has status 503 unless ready.

        /healthz?model=NAME has it also while that model is not served. Raises ServerError.
        """
        try:
            self._server = _Listener(host.strip("[]"), port)
        except OSError as error:
            raise ServerError(
                f"cannot listen on {address_of(host, port)} for metrics ({error.strerror}): {port_taken(port, error)}; "
                "--metrics-port 0 chooses a free one"
            ) from error
        self._server.metrics, self._server.health = metrics, health
        self.address = address_of(host, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    # A scraper that stays connected must not keep the process from ending.
    daemon_threads = True
    metrics: CollectorRegistry
    health: Callable[[], Mapping[str, Any]]

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]  # the base class supports IPv4 only
        super().__init__((host, port), _Handler)
        pause_where_none_is_accepted(self)


class _Handler(BaseHTTPRequestHandler):
    # Of the socket: a connection that sends nothing would hold its thread for ever.
    timeout = LONGEST_REQUEST_S
    server: _Listener

    def do_GET(self) -> None:
        """Answer one of the two pages."""
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encode(self.server.metrics))
        elif path == "/healthz":
            health = self.server.health()
            asked = parse_qs(query).get("model", [])
            ready = health["ready"] and not any(model in health["not_served"] for model in asked)
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            if any(model not in (each["name"] for each in health["models"]) for model in asked):
                status = HTTPStatus.NOT_FOUND
            self._answer(status, JSON, json.dumps(health).encode() + b"\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics and /healthz\n")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape every few seconds is not an event."""

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
