"""The workers of a server: as many as asked for, each replaced when it dies or hangs, with pauses when that goes on.

Nothing here knows what is served; a worker takes it from the `Distribution`, from the moment it is spawned until it has
been reaped: only then is what it had mapped free to be written again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from model_store.errors import ServerError
from server.processes.worker_process import WorkerProcess
from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.pauses import RESPAWN
from server.sync.state_folder import Process
from server.telemetry.status import WorkerState, WorkerStatus

PING_EVERY_S = 1.0
LATE_TICK_S = 2.0
"""If the supervisor itself was held up for so long, its workers' silence means nothing."""
SOUND_AFTER_S = 30.0
"""A worker that lived so long did not die of the cause of the deaths before."""

_log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Whom the crew tells. Called from any thread."""

    def counted(self, worker: str, meter: Mapping[str, Any], late: Mapping[str, Sequence[str]]) -> None:
        """What a worker has counted, and by model the items its requests found that the catalogue lacks."""

    def gone(self, worker: str) -> None:
        """A worker has ended."""


@dataclass
class _Place:
    """One of the N places, and the worker that has it."""

    number: int
    worker: WorkerProcess | None = None
    restarts: int = 0
    deaths: int = 0  # in a row
    due: float = field(default_factory=time.monotonic)


class Crew:
    """The places and who has them. `tend` is called by one thread, a few times a second; the rest by any."""

    def __init__(
        self,
        settings: Settings,
        port: int,
        distribution: Distribution,
        listener: Listener,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called, by any thread, after anything that `status` shows has changed."""
        self._settings = settings
        self._port = port
        self._distribution = distribution
        self._listener = listener
        self._changed = changed
        self._lock = threading.RLock()  # `kill` is called by a signal's handler, whatever its thread holds
        self._places = [_Place(number) for number in range(settings.workers)]
        self._draining = False
        self._pinged = self._ticked = time.monotonic()
        self.listen_now = True
        """Whether new workers open the port before they have a model: if nobody else answers on it."""
        self.begun = False
        """Whether all of them have served: from then on a worker that cannot begin is replaced, not a reason to end."""

    def tend(self) -> None:
        """Replace who has died, end who hangs, ask the others for a sign of life."""
        now = time.monotonic()
        late, self._ticked = now - self._ticked > LATE_TICK_S, now
        ask, self._pinged = (True, now) if now - self._pinged >= PING_EVERY_S else (False, self._pinged)
        for place in self._places:
            worker = place.worker
            if worker is None:
                if now >= place.due and not self._draining:
                    self._hire(place)
            elif worker.ended() is not None:
                self._bury(place, worker)
            elif late:
                worker.excuse()
            elif worker.hangs():
                _log.error("worker hangs, ending it", worker=place.number, pid=worker.pid)
                worker.kill()
            else:
                for model in worker.due_again():
                    self._distribution.hand_again(worker, model)
                if ask:
                    worker.ping()

    def drain(self, *, refuse: bool) -> None:
        """Ask every worker to finish and to end; none is replaced from now on."""
        self._draining = True
        for worker in self._workers():
            worker.drain(refuse=refuse)

    def kill(self) -> None:
        """End every worker at once."""
        self._draining = True
        for worker in self._workers():
            worker.kill()

    @property
    def alive(self) -> bool:
        """Whether any worker is left."""
        return bool(self._workers())

    def serves(self, models: Sequence[str]) -> bool:
        """Whether every place has a worker that listens and has a version of each of these models."""
        workers = self._workers()
        return len(workers) == len(self._places) and all(
            worker.listening and worker.versions.keys() >= set(models) for worker in workers
        )

    def processes(self) -> list[Process]:
        """The workers' processes, where the system names them."""
        return [worker.process for worker in self._workers() if worker.process is not None]

    def status(self) -> tuple[WorkerStatus, ...]:
        """Each place as it is now."""
        with self._lock:
            places = [(place, place.worker) for place in self._places]
        return tuple(
            WorkerStatus(
                number=place.number,
                pid=worker.pid if worker else 0,
                state=_state(worker, self._settings.models),
                restarts=place.restarts,
                versions=worker.versions if worker else {},
                refused=worker.refused if worker else {},
            )
            for place, worker in places
        )

    def _workers(self) -> list[WorkerProcess]:
        with self._lock:
            return [place.worker for place in self._places if place.worker is not None]

    def _hire(self, place: _Place) -> None:
        try:
            worker = WorkerProcess(
                place.number, self._settings, self._port, listen_now=self.listen_now, hear=self._hear
            )
        except OSError as error:
            _log.error("no worker could be started", worker=place.number, error=str(error))
            self._postpone(place)
            return
        with self._lock:
            place.worker = worker
        self._distribution.join(worker)
        _log.info("worker started", worker=place.number, pid=worker.pid)
        self._changed()

    def _bury(self, place: _Place, worker: WorkerProcess) -> None:
        with self._lock:
            place.worker = None
        self._distribution.leave(worker)
        worker.close()
        self._listener.gone(str(place.number))
        if not self._draining:
            if worker.error and not self.begun:
                raise ServerError(worker.error)
            place.restarts += 1
            if time.monotonic() - worker.born >= SOUND_AFTER_S:
                place.deaths = 0
            self._postpone(place)
            _log.error(
                "worker died, replacing it",
                worker=place.number,
                pid=worker.pid,
                exit_code=worker.ended(),
                in_s=round(place.due - time.monotonic(), 2),
            )
        self._changed()

    def _postpone(self, place: _Place) -> None:
        place.deaths += 1
        place.due = time.monotonic() + RESPAWN.after(place.deaths)

    def _hear(self, worker: WorkerProcess, body: dict[str, Any]) -> None:
        match body["did"]:
            case "release":
                self._distribution.given_back(worker, body["serial"])
            case "count":
                self._listener.counted(str(worker.number), body["meter"], body["late"])
            case "listen" | "swap" | "refuse":
                self._changed()


def _state(worker: WorkerProcess | None, models: Sequence[str]) -> WorkerState:
    if worker is None:
        return "gone"
    if worker.ending:
        return "draining"
    return "serving" if worker.listening and worker.versions.keys() >= set(models) else "starting"
