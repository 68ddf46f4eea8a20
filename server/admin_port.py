"""The port of the admin service: a grpc server of its own, on the loopback interface unless told otherwise.

What it answers is `server.admin`. It takes the TLS files and the token file of the ranking port, and the role admin.
"""

from __future__ import annotations

import grpc
import structlog

from server.admin import SERVICE, Administered, ModelAdminService
from server.gate import Gate
from server.grpc_server import MAX_STREAMS, listen
from server.metrics.meter import Meter
from server.pools import BoundedPool
from server.reflection import reflection_gates
from server.security import access
from server.security.exposure import warn_if_exposed
from server.settings import Settings

THREADS = 2
PLACES = 16
MAX_REQUEST_BYTES = 16 << 20  # as many pins as there may be
GRACE_S = 1.0

_log = structlog.get_logger(__name__)


class AdminPort:
    """Begins with `start`, ends with `stop`."""

    def __init__(self, server: Administered, settings: Settings) -> None:
        """Raises ServerError for TLS or token files that are of no use."""
        self._settings = settings
        pool = BoundedPool(THREADS, PLACES, "admin")
        service = ModelAdminService(server, settings.store)
        # A meter of its own: the one of ranking calls is not to show these.
        tokens, meter = access.tokens(settings), Meter()
        guard = tokens.guard("admin") if tokens else None
        self._grpc = grpc.server(
            pool,
            handlers=[
                Gate(service.handlers(), pool, meter, guard),
                *reflection_gates((SERVICE,), meter, guard),
            ],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
            ],
        )
        self.address = ""

    def start(self) -> str:
        """Listen and answer; returns the address. Raises ServerError if the port is taken."""
        settings = self._settings
        credentials = access.credentials(settings)
        # A certificate tells who may rank; that alone makes nobody an operator.
        warn_if_exposed(settings.admin_host, tls=credentials is not None, callers_known=bool(settings.tokens))
        self.address = listen(self._grpc, settings.admin_host, settings.admin_port or 0, credentials)
        self._grpc.start()
        _log.info("administered on", address=self.address)
        return self.address

    def stop(self) -> None:
        """Finish what has begun, for a second at most."""
        self._grpc.stop(GRACE_S).wait(2 * GRACE_S)
