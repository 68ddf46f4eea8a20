"""The port of the admin service: a grpc server of its own, on the loopback interface unless told otherwise.

What it answers is `server.admin`. It takes the TLS files and the token file of the ranking port, and the role admin.
"""

from __future__ import annotations

import grpc
import structlog

from server.admin import SERVICE, Administered, ModelAdminService
from server.gate import BoundedPool, Gate
from server.grpc_server import listen
from server.metrics.meter import Meter
from server.reflection import add_reflection
from server.security.exposure import warn_if_exposed
from server.security.tls import TlsFiles
from server.security.tokens import Tokens
from server.settings import Settings

THREADS = 2
PLACES = 16
MAX_REQUEST_BYTES = 64 << 20  # ten thousand pins of the longest cookies
GRACE_S = 1.0

_log = structlog.get_logger(__name__)


class AdminPort:
    """Begins with `start`, ends with `stop`."""

    def __init__(self, server: Administered, settings: Settings) -> None:
        """Raises ServerError for TLS or token files that are of no use."""
        self._settings = settings
        self._tls = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        guard = Tokens(settings.tokens).guard("admin") if settings.tokens else None
        pool = BoundedPool(THREADS, PLACES)
        service = ModelAdminService(server, settings.store)
        # A meter of its own: the one of ranking calls is not to show these.
        gate = Gate(service.handlers(), pool, Meter(), guard)
        self._grpc = grpc.server(
            pool,
            handlers=[gate],
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REQUEST_BYTES)],
        )
        add_reflection(self._grpc, (SERVICE,))
        self.address = ""

    def start(self) -> str:
        """Listen and answer; returns the address. Raises ServerError if the port is taken."""
        settings = self._settings
        warn_if_exposed(settings.admin_host, tls=self._tls is not None, tokens=bool(settings.tokens))
        credentials = self._tls.credentials() if self._tls is not None else None
        self.address = listen(self._grpc, settings.admin_host, settings.admin_port or 0, credentials)
        self._grpc.start()
        _log.info("administered on", address=self.address)
        return self.address

    def stop(self) -> None:
        """Finish what has begun, for a second at most."""
        self._grpc.stop(GRACE_S).wait()
