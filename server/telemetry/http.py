"""/metrics and /healthz over HTTP, for Prometheus and for curl."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from model_store.errors import ServerError
from model_store.locks import port_taken

LONGEST_REQUEST_S = 5.0
JSON = "application/json"


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
                f"cannot listen on {address_of(host, port)} for metrics ({error.strerror}): {port_taken(port)}; "
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
    daemon_threads = True
    metrics: CollectorRegistry
    health: Callable[[], Mapping[str, Any]]

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]  # the base class supports IPv4 only
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
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


def address_of(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
