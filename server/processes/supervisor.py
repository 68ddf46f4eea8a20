"""The supervisor of a server: startup, tending, drain, shutdown. It answers no request; its workers do, on one port.

If it dies, they go on. A successor with the same state folder finds them, brings up workers of its own on the same
port, and ends the old ones once every model is served by every new one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import structlog

from model_store.errors import StoreUnavailable
from model_store.jit import kernels_are_cached
from model_store.store import Store
from server.processes.crew import Crew
from server.processes.takeover import Inherited, Port
from server.ranking.warmup import KERNELS, warm_kernels
from server.rpc import observers as observing
from server.rpc import security as access
from server.settings import Settings
from server.sync.experiment_sync import FollowedExperiment
from server.sync.feed import Feed
from server.sync.state_folder import StateFolder
from server.telemetry.http import MetricsPage
from server.telemetry.meter import Meter, Totals
from server.telemetry.prometheus import note_status, registry
from server.telemetry.status import SupervisorStatus

TICK_S = 0.2
KILL_AFTER_S = 5.0
"""How much longer than its drain a worker may take to end."""

_log = structlog.get_logger(__name__)

OnReady = Callable[[SupervisorStatus], None]


class Supervisor:
    """One server. `run` is its whole life, and is called by the main thread."""

    def __init__(self, settings: Settings, on_ready: OnReady = lambda status: None) -> None:
        """`on_ready` is called once, when every model is served by every worker."""
        self._settings = settings
        self._on_ready = on_ready
        self._begun = False
        self._signals = 0
        self._kill: Callable[[], None] = lambda: None
        """Ends every worker at once; nothing before there is a crew."""
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self.meter = Meter()
        self.totals = Totals()
        self._last = ExitStack()

    def run(self) -> None:
        """Live until SIGTERM, SIGINT or SIGHUP. Raises ServerError, StoreError if the server cannot begin."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._on_signal)
        with self._last:
            self._startup()
            try:
                while not self._stopping.is_set():
                    self._tend()
                    self._wake.wait(TICK_S)
                    self._wake.clear()
                self._drain()
            finally:
                self._crew.kill()
        _log.info("stopped", models=self._settings.models)

    def status(self) -> SupervisorStatus:
        """The server as it is now. Any thread."""
        return SupervisorStatus(
            address=self._port.address,
            begun=self._begun,
            draining=self._stopping.is_set(),
            models=self._feed.status(),
            workers=self._crew.status(),
            successor_of=self._inherited.pids(),
        )

    def followed(self, model: str) -> FollowedExperiment:
        """The experiment of one of the models."""
        return self._feed.followed(model)

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Look at the store at once; whether that was done within the time."""
        return self._feed.look_now(model, timeout_s)

    # -- startup

    def _startup(self) -> None:
        settings = self._settings
        access.check(settings)
        observing.check(settings)
        self._state = self._open_state()
        self._inherited = Inherited.of(self._state, settings)
        self._port = Port(
            settings.host, self._inherited.port or settings.port, shared=bool(self._inherited.port)
        )
        self._last.callback(self._port.close)
        self._hold_store()
        if not kernels_are_cached(KERNELS):
            warm_kernels()  # once, and not in every worker at the same time
        self._feed = Feed(settings, self._state, self.meter, yields=True)
        self._crew = Crew(settings, self._port.number, self._feed.distribution, self, self._wake.set)
        self._kill = self._crew.kill
        self._crew.listen_now = not self._inherited.pids()
        self._last.enter_context(Hosted(settings, self))
        self._feed.start()
        _log.info("listening", address=self._port.address, models=settings.models, workers=settings.workers)

    def _open_state(self) -> StateFolder | None:
        """The state folder; a disk that gives none costs the last good model and the take-over, not the server."""
        if not self._settings.state:
            return None
        try:
            state = StateFolder(Path(self._settings.state))
        except OSError as error:
            _log.error("no state folder: nothing is kept on disk", error=str(error))
            return None
        self._last.callback(state.close)
        return state

    def _hold_store(self) -> None:
        """Find a store's URL that is none before anything begins, and keep an embedded store from coming and going."""
        try:
            self._last.enter_context(Store.open(self._settings.store, timeout_s=1.0))
        except StoreUnavailable as error:
            _log.warning("store away, waiting for it", error=str(error))

    # -- tending

    def _tend(self) -> None:
        self._crew.tend()
        if self._state is not None:
            self._inherited.remember(self._state, self._port.address, self._crew.processes())
        if not self._begun and self._crew.serves(self._settings.models):
            self._begun = True
            self._crew.listen_now, self._crew.begun = False, True
            self._on_ready(self.status())
        if self._begun:
            self._inherited.end(self._settings.drain_s + KILL_AFTER_S)

    def counted(self, worker: str, meter: Mapping[str, Any], late: Mapping[str, Sequence[str]]) -> None:
        """As of `crew.Listener`."""
        self.totals.add(f"worker {worker}", meter)
        self._feed.late(late)

    def gone(self, worker: str) -> None:
        """As of `crew.Listener`."""
        self.totals.gone(f"worker {worker}")

    # -- the end

    def _drain(self) -> None:
        """Have every worker finish, and the last good models written, for a bounded time in all."""
        _log.info("draining", at_most_s=self._settings.drain_s)
        end_at_s = time.monotonic() + self._settings.drain_s + KILL_AFTER_S
        self._feed.stop()
        self._crew.drain(refuse=True)
        self._inherited.end(self._settings.drain_s + KILL_AFTER_S)
        self._feed.close(end_at_s)
        while self._crew.alive and time.monotonic() < end_at_s:
            self._crew.tend()
            threading.Event().wait(TICK_S / 4)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self._kill()
            os._exit(128 + number)
        self._stopping.set()
        self._wake.set()


# --- What a supervisor hosts beside its workers, each only if it is asked for: the page of metrics, the admin
# service ---


class Host(Protocol):
    """What the hosted services ask; of the admin service this is `server.rpc.admin_service.Administered`."""

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
            from server.rpc.admin_service import AdminPort

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
