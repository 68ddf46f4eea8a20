"""What a supervisor hosts beside its workers, each only if it is asked for: the page of metrics, the admin service."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol

import structlog

from server.followed_experiment import FollowedExperiment
from server.metrics.exposition import registry
from server.metrics.http import MetricsPage
from server.metrics.meter import Meter
from server.metrics.statuses import note_status
from server.metrics.totals import Totals
from server.settings import Settings
from server.supervising.status import SupervisorStatus

_log = structlog.get_logger(__name__)


class Host(Protocol):
    """What the hosted services ask; of the admin service this is `server.admin.Administered`."""

    totals: Totals
    meter: Meter
    """The supervisor's own."""

    def status(self) -> SupervisorStatus:
        """The server as it is now."""

    def followed(self, model: str) -> FollowedExperiment:
        """The experiment of one of the models."""

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Look at the store at once; whether that was done within the time."""


class Hosted:
    """A context: the services begin with it and end with it. Raises ServerError if a port is taken."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._open = ExitStack()

    def __enter__(self) -> Hosted:
        if self._settings.metrics_port is not None:
            self._host_metrics(self._settings.metrics_port)
        if self._settings.admin_port is not None:
            from server.admin_port import AdminPort

            admin = AdminPort(self._host, self._settings)
            admin.start()
            self._open.callback(admin.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _host_metrics(self, port: int) -> None:
        scraped = registry(self._host.totals, self._take_own)
        page = MetricsPage(self._settings.metrics_host, port, scraped, self._health)
        self._open.callback(page.close)
        _log.info("metrics", address=page.address)

    def _take_own(self) -> None:
        """Before each scrape: what the supervisor itself has counted, and how the server is."""
        note_status(self._host.meter, self._host.status())
        self._host.totals.add("supervisor", self._host.meter.take())

    def _health(self) -> dict[str, Any]:
        return self._host.status().to_json()
