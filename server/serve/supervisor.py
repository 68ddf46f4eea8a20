"""The supervisor of a server: startup, tend, drain, shutdown. Its workers answer requests, on one port.

If the supervisor dies, they go on. A successor with the same state folder finds them, starts workers of its own on the
same port, and ends the old ones once each new worker serves every model.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import structlog

from model_store.errors import StoreUnavailable
from model_store.jit import kernels_are_cached
from model_store.store import Store
from model_store.waiting import SignalEvent
from server.ranking.warmup import KERNELS, warm_kernels
from server.serve import observers, security
from server.serve.crew import Crew
from server.serve.takeover import Inherited, Port
from server.settings import Settings
from server.sync.experiment_sync import ExperimentSync
from server.sync.state_folder import StateFolder
from server.sync.store_sync import StoreSync
from server.telemetry.meter import Meter, Totals
from server.telemetry.prometheus import MetricsPage, note_status, registry
from server.telemetry.status import SupervisorStatus

TICK_S = 0.2
KILL_AFTER_S = 5.0
"""How long after its drain a worker may take to end."""

_log = structlog.get_logger(__name__)

OnReady = Callable[[SupervisorStatus], None]


class Supervisor:
    """One server. `run` is its whole life; the main thread calls it."""

    def __init__(self, settings: Settings, on_ready: OnReady = lambda status: None) -> None:
        """`on_ready` is called once, when every worker serves every model that has a version."""
        self._settings = settings
        self._on_ready = on_ready
        self._begun = False
        self._signals = 0
        self._kill: Callable[[], None] = lambda: None
        """Kills every worker."""
        self._stopping = SignalEvent()
        self._wake = SignalEvent()
        self._meter = Meter()
        """What the supervisor itself counts."""
        self._totals = Totals()
        self._last = ExitStack()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP. Raises ServerError, StoreError if the server cannot start."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
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
                # However the loop has ended: workers serve on alone only when the supervisor was killed.
                self._crew.kill()
        _log.info("stopped", models=self._settings.models)

    def status(self) -> SupervisorStatus:
        """The server as it is now. Any thread."""
        return SupervisorStatus(
            address=self._port.address,
            begun=self._begun,
            draining=self._stopping.is_set(),
            models=self._sync.status(),
            workers=self._crew.status(),
            stores=self._sync.stores(),
            successor_of=self._inherited.pids(),
        )

    def experiment(self, model: str) -> ExperimentSync:
        """The experiment of one of the models."""
        return self._sync.experiment(model)

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Look at the store at once. False if that took longer than `timeout_s`."""
        return self._sync.look_now(model, timeout_s)

    # -- startup

    def _startup(self) -> None:
        settings = self._settings
        _log.info("loading", models=settings.models)
        security.check(settings)
        observers.check(settings)
        # First the folder's lock: of two supervisors only one may take the workers of a dead one.
        self._state = self._open_state()
        self._inherited = Inherited.of(self._state, settings)
        self._port = Port(
            settings.host, self._inherited.port or settings.port, shared=bool(self._inherited.port)
        )
        self._last.callback(self._port.close)
        # Before the workers: an embedded store runs as long as somebody has it open, and ends with the last.
        self._hold_store()
        if not kernels_are_cached(KERNELS):
            warm_kernels()  # once, not in every worker at the same time
        self._sync = StoreSync(settings, self._state, self._meter, low_priority=True)
        self._crew = Crew(settings, self._port.number, self._sync, self._totals, self._wake.set)
        self._kill = self._crew.kill
        # While the workers of the dead one answer, new ones must not take connections that they cannot answer yet.
        self._crew.listen_now = not self._inherited.pids()
        self._host()
        self._sync.start()
        _log.info("listening", address=self._port.address, models=settings.models, workers=settings.workers)

    def _open_state(self) -> StateFolder | None:
        """The state folder. If the disk has none, the server runs without last good models and take-over."""
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
        """Reject an invalid URL before anything starts, and keep an embedded store running while the server runs."""
        try:
            self._last.enter_context(Store.open(self._settings.store, timeout_s=1.0))
        except StoreUnavailable as error:
            _log.warning("store away, waiting for it", error=str(error))

    def _host(self) -> None:
        """The services beside the workers, each if its port is set. Raises ServerError if a port is taken."""
        settings = self._settings
        if settings.metrics_port is not None:
            page = MetricsPage(
                settings.metrics_host,
                settings.metrics_port,
                registry(self._totals, self._count_own),
                lambda: self.status().to_json(),
            )
            self._last.callback(page.close)
            _log.info("metrics", address=page.address)
        if settings.admin_port is not None:
            from server.serve.admin_service import AdminPort

            admin = AdminPort(self, settings)
            admin.start()
            self._last.callback(admin.stop)

    def _count_own(self) -> None:
        """Before each scrape: add what the supervisor itself has counted, and the server's status."""
        note_status(self._meter, self.status())
        self._totals.add("supervisor", self._meter.take())

    # -- tending

    def _tend(self) -> None:
        self._crew.tend()
        if self._state is not None:
            self._inherited.remember(self._state, self._port.address, self._crew.processes())
        if not self._begun and self._crew.serves:
            self._begun = True
            # From here on a worker that is replaced leaves the port to the others until it is ready.
            self._crew.listen_now, self._crew.begun = False, True
            status = self.status()
            for model, why in status.not_served.items():
                _log.error("READY WITHOUT A MODEL", model=model, why=why)
            self._on_ready(status)
        if self._begun:
            self._inherited.end(self._settings.drain_s + KILL_AFTER_S)

    # -- the end

    def _drain(self) -> None:
        """Wait, for a bounded time, until every worker has finished and the last good models are on disk."""
        _log.info("draining", at_most_s=self._settings.drain_s)
        end_at_s = time.monotonic() + self._settings.drain_s + KILL_AFTER_S
        self._sync.stop()
        # After `stop`, which ends deliveries: a worker that drains takes no version any more.
        self._crew.drain(refuse=True)
        self._inherited.end(self._settings.drain_s + KILL_AFTER_S)
        # The disk is written while the workers finish their calls; both have the same time.
        self._sync.close(end_at_s)
        while self._crew.alive and time.monotonic() < end_at_s:
            self._crew.tend()
            threading.Event().wait(TICK_S / 4)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self._kill()
            # The signal may have come anywhere in the main thread, which may hold locks: nothing else is closed.
            os._exit(128 + number)
        self._stopping.set()
        self._wake.set()
