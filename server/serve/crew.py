"""The worker processes of a server: a worker that dies or hangs is replaced, after growing pauses if that repeats.

A worker is a taker of the `Distribution` from the moment it is spawned until it has been reaped: only then may the
memory that it had mapped be written again.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from model_store.errors import ServerError
from model_store.waiting import Backoff
from server.model.shared_memory import Parts
from server.serve.channel import NOW, WHEN_READY, Channel, ChannelClosed, parts_body
from server.settings import Settings
from server.sync.state_folder import Process
from server.sync.store_sync import StoreSync
from server.sync.version_retry import FIRST_PAUSE_S, LONGEST_PAUSE_S
from server.telemetry.meter import Totals
from server.telemetry.status import WorkerState, WorkerStatus

PING_EVERY_S = 1.0
LATE_TICK_S = 2.0
"""If the supervisor itself was held up for this long, the silence of its workers means nothing."""
SOUND_AFTER_S = 30.0
"""A worker that lived this long did not die of the cause of earlier deaths."""
RESTART_PAUSES_S = 0.1, 30.0
"""The first and the longest, between a worker's end and the start of the next one."""
START_S = 120.0
"""How long a worker may take to its first message: it imports and, on a new machine, compiles kernels."""
SILENT_S = 10.0
"""A worker that has not answered a ping for this long hangs."""

_log = structlog.get_logger(__name__)

Hear = Callable[["WorkerProcess", dict[str, Any]], None]


class WorkerProcess:
    """A process from spawn to `close`. Thread safety: any method, any thread, but `close` from one, once."""

    def __init__(self, number: int, settings: Settings, port: int, *, listen_now: bool, hear: Hear) -> None:
        """`hear` is called with each message, from a thread of its own. Raises OSError if no process can be started."""
        self.number = number
        self.listening = self.ready = False
        self.versions: dict[str, int] = {}
        """By model, the version that answers requests."""
        self.error = ""
        """Why the worker ended, if it could not serve at all."""
        self.ending = False
        self.refused: dict[str, str] = {}
        """By model, why it does not serve the parts it was handed last."""
        self._retry: dict[str, tuple[Backoff, float]] = {}
        """By model that it has refused: when to hand the parts over again."""
        self.born = self._heard = time.monotonic()
        self._spoke = False
        self._hear = hear
        self._channel, theirs = Channel.pair()
        with theirs:
            self._process = _spawn(theirs.fileno())
        self.process = Process.of(self._process.pid)
        # Before the first message is sent: a worker that fails at once is heard.
        self._reader = threading.Thread(target=self._read, name=f"hear worker {number}", daemon=True)
        self._reader.start()
        listen = NOW if listen_now else WHEN_READY
        self.tell(
            {"do": "start", "number": number, "port": port, "listen": listen, "settings": settings.to_json()}
        )

    @property
    def pid(self) -> int:
        """The process's pid."""
        return self._process.pid

    # -- a taker

    def take(self, parts: Parts, serial: int) -> None:
        """Send the parts, their memory as descriptors."""
        body, descriptors = parts_body(parts)
        self.tell({"do": "serve", "serial": serial, "parts": body}, descriptors)

    def tell(self, body: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message. A worker that receives nothing is dead or hangs; `Crew.tend` notices both."""
        with suppress(ChannelClosed):
            self._channel.send(dict(body), descriptors)

    # -- life and death

    def excuse(self) -> None:
        """Restart the wait for a sign of life, because the supervisor itself was held up."""
        self._heard = time.monotonic()

    def hangs(self) -> bool:
        """Whether it has given no sign of life for too long."""
        return time.monotonic() - self._heard > (SILENT_S if self._spoke else START_S)

    def due_again(self) -> list[str]:
        """The models to hand over again; each is returned once for each refusal."""
        now, never = time.monotonic(), math.inf
        due = {model: backoff for model, (backoff, at) in list(self._retry.items()) if at <= now}
        for model, backoff in due.items():
            self._retry[model] = (backoff, never)
        return list(due)

    def drain(self, *, refuse: bool) -> None:
        """Ask the worker to finish its calls and end."""
        self.ending = True
        self.tell({"do": "drain", "refuse": refuse})

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def ended(self) -> int | None:
        """Reap the process: its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Close the channel. Call when the process has ended."""
        # In this order: the reader must be out of `receive` before the descriptor's number can be another file's.
        self._channel.hang_up()
        self._reader.join()
        self._channel.close()

    def _read(self) -> None:
        with suppress(ChannelClosed):
            while True:
                body = self._channel.receive().body
                self._heard, self._spoke = time.monotonic(), True
                # Dicts that `Crew.status` reads from other threads are replaced, not changed.
                match body["did"]:
                    case "fail":
                        self.error = body["error"]
                    case "listen":
                        self.listening = True
                    case "ready":
                        self.ready = True
                    case "swap":
                        model = body["model"]
                        self.versions = {**self.versions, model: body["version"]}
                        self.refused = {name: why for name, why in self.refused.items() if name != model}
                        self._retry.pop(model, None)
                    case "refuse":
                        model = body["model"]
                        self.refused = {**self.refused, model: body["error"]}
                        backoff, _ = self._retry.get(model) or (Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0)
                        self._retry[model] = (backoff, time.monotonic() + backoff.failed())
                try:
                    # What goes wrong with one message must not end the reading: the worker would count as silent, and
                    # be killed.
                    self._hear(self, body)
                except Exception:
                    _log.exception("a worker's message could not be handled", worker=self.number)


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    """Spawned, not forked: gRPC's threads do not survive a fork.

    Its own process group keeps Ctrl-C from it. The session stays the supervisor's, and with it the share of the CPU.
    """
    # -P: a folder `server` of the user in the working directory is not ours.
    command = [sys.executable, "-P", "-m", "server.serve.worker_main", str(descriptor)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        process_group=0,
        # The worker must import the same packages, however this process has found them.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@dataclass
class _Slot:
    """One of the N workers: its number, and the process that is this worker now."""

    number: int
    worker: WorkerProcess | None = None
    restarts: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(*RESTART_PAUSES_S))
    due: float = field(default_factory=time.monotonic)


class Crew:
    """The workers. `tend` is called by one thread, a few times a second; the rest by any."""

    def __init__(
        self,
        settings: Settings,
        port: int,
        sync: StoreSync,
        totals: Totals,
        changed: Callable[[], None],
    ) -> None:
        """`totals` and `sync` get what the workers count, and the items that requests found and the catalogue lacks.

        `changed` is called, from any thread, after a change of what `status` returns.
        """
        self._settings = settings
        self._port = port
        self._sync, self._distribution = sync, sync.distribution
        self._totals = totals
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
                # SIGKILL: a process that answers no ping would hardly handle SIGTERM.
                worker.kill()
            else:
                for model in worker.due_again():
                    self._distribution.hand_again(worker, model)
                if ask:
                    worker.tell({"do": "ping"})

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
        # Only here, where the process has been reaped: before that its memory may still be read.
        self._distribution.leave(worker)
        worker.close()
        # Its gauges end with it; what it had counted stays in the sums.
        self._totals.gone(f"worker {slot.number}")
        if not self._draining:
            if worker.error and not self.begun:
                raise ServerError(worker.error)
            slot.restarts += 1
            # Before the pause is taken: a worker that lived long starts again at the shortest.
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
                self._totals.add(f"worker {worker.number}", body["meter"])
                self._sync.items_found(body["late"])
            case "listen" | "ready" | "swap" | "refuse":
                self._changed()


def _state(worker: WorkerProcess | None) -> WorkerState:
    if worker is None:
        return "gone"
    if worker.ending:
        return "draining"
    return "serving" if worker.listening and worker.ready else "starting"
