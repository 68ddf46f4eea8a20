"""The worker processes of a server: a worker that dies or hangs is replaced, after growing pauses if that repeats.

A worker is a taker of the `Distribution` from the moment it is spawned until it has been reaped: only then may the
memory that it had mapped be written again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from model_store.backoff import Backoff
from model_store.errors import ServerError
from server.processes.worker_process import WorkerProcess
from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.state_folder import Process
from server.telemetry.status import WorkerState, WorkerStatus

PING_EVERY_S = 1.0
LATE_TICK_S = 2.0
"""If the supervisor itself was held up for this long, the silence of its workers means nothing."""
SOUND_AFTER_S = 30.0
"""A worker that lived this long did not die of the cause of earlier deaths."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
"""Between a worker's end and the start of the next one."""

_log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Receives what the crew reports. Called from any thread."""

    def counted(self, worker: str, meter: Mapping[str, Any], late: Mapping[str, Sequence[str]]) -> None:
        """What a worker has counted; by model, the items that its requests found and the catalogue lacks."""

    def gone(self, worker: str) -> None:
        """A worker has ended."""


@dataclass
class _Slot:
    """One of the N workers: its number, and the process that is this worker now."""

    number: int
    worker: WorkerProcess | None = None
    restarts: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    due: float = field(default_factory=time.monotonic)


class Crew:
    """The workers. `tend` is called by one thread, a few times a second; the rest by any."""

    def __init__(
        self,
        settings: Settings,
        port: int,
        distribution: Distribution,
        listener: Listener,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called, from any thread, after a change of what `status` returns."""
        self._settings = settings
        self._port = port
        self._distribution = distribution
        self._listener = listener
        self._changed = changed
        self._lock = threading.RLock()  # a signal's handler calls `kill` in a thread that may hold it
        self._slots = [_Slot(number) for number in range(settings.workers)]
        self._draining = False
        self._pinged = self._ticked = time.monotonic()
        self.listen_now = True
        """Whether new workers open the port before they have a model, because no other process answers on it."""
        self.begun = False
        """Whether all workers have served. From then on, a worker that cannot start no longer ends the server."""

    def tend(self) -> None:
        """Replace workers that have died, kill those that hang, ping the others."""
        now = time.monotonic()
        late, self._ticked = now - self._ticked > LATE_TICK_S, now
        ask, self._pinged = (True, now) if now - self._pinged >= PING_EVERY_S else (False, self._pinged)
        for slot in self._slots:
            worker = slot.worker
            if worker is None:
                if now >= slot.due and not self._draining:
                    self._start(slot)
            elif worker.ended() is not None:
                self._replace(slot, worker)
            elif late:
                worker.excuse()
            elif worker.hangs():
                _log.error("worker hangs, ending it", worker=slot.number, pid=worker.pid)
                worker.kill()
            else:
                for model in worker.due_again():
                    self._distribution.hand_again(worker, model)
                if ask:
                    worker.ping()

    def drain(self, *, refuse: bool) -> None:
        """Ask every worker to finish its calls and end; none is replaced from now on."""
        self._draining = True
        for worker in self._workers():
            worker.drain(refuse=refuse)

    def kill(self) -> None:
        """Kill every worker."""
        self._draining = True
        for worker in self._workers():
            worker.kill()

    @property
    def alive(self) -> bool:
        """Whether any worker process is left."""
        return bool(self._workers())

    @property
    def serves(self) -> bool:
        """Whether every worker listens, and serves each model that has a version."""
        workers = self._workers()
        return len(workers) == len(self._slots) and all(each.listening and each.ready for each in workers)

    def processes(self) -> list[Process]:
        """The workers' processes, as far as /proc shows them."""
        return [worker.process for worker in self._workers() if worker.process is not None]

    def status(self) -> tuple[WorkerStatus, ...]:
        """Each worker as it is now."""
        with self._lock:
            slots = [(slot, slot.worker) for slot in self._slots]
        return tuple(
            WorkerStatus(
                number=slot.number,
                pid=worker.pid if worker else 0,
                state=_state(worker),
                restarts=slot.restarts,
                versions=worker.versions if worker else {},
                refused=worker.refused if worker else {},
            )
            for slot, worker in slots
        )

    def _workers(self) -> list[WorkerProcess]:
        with self._lock:
            return [slot.worker for slot in self._slots if slot.worker is not None]

    def _start(self, slot: _Slot) -> None:
        try:
            worker = WorkerProcess(
                slot.number, self._settings, self._port, listen_now=self.listen_now, hear=self._hear
            )
        except OSError as error:
            _log.error("no worker could be started", worker=slot.number, error=str(error))
            self._postpone(slot)
            return
        with self._lock:
            slot.worker = worker
        self._distribution.join(worker)
        _log.info("worker started", worker=slot.number, pid=worker.pid)
        self._changed()

    def _replace(self, slot: _Slot, worker: WorkerProcess) -> None:
        with self._lock:
            slot.worker = None
        self._distribution.leave(worker)
        worker.close()
        self._listener.gone(str(slot.number))
        if not self._draining:
            if worker.error and not self.begun:
                raise ServerError(worker.error)
            slot.restarts += 1
            if time.monotonic() - worker.born >= SOUND_AFTER_S:
                slot.backoff.succeeded()
            self._postpone(slot)
            _log.error(
                "worker died, replacing it",
                worker=slot.number,
                pid=worker.pid,
                exit_code=worker.ended(),
                in_s=round(slot.due - time.monotonic(), 2),
            )
        self._changed()

    def _postpone(self, slot: _Slot) -> None:
        slot.due = time.monotonic() + slot.backoff.failed()

    def _hear(self, worker: WorkerProcess, body: dict[str, Any]) -> None:
        match body["did"]:
            case "release":
                self._distribution.given_back(worker, body["serial"])
            case "count":
                self._listener.counted(str(worker.number), body["meter"], body["late"])
            case "listen" | "ready" | "swap" | "refuse":
                self._changed()


def _state(worker: WorkerProcess | None) -> WorkerState:
    if worker is None:
        return "gone"
    if worker.ending:
        return "draining"
    return "serving" if worker.listening and worker.ready else "starting"
