"""What a successor finds of a supervisor that died: workers that still answer, on a port that it is to share."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence

import structlog

from server.grpc_server import address_of
from server.settings import Settings
from server.supervising.state_folder import Process, StateFolder

REMEMBER_S = 1.0

_log = structlog.get_logger(__name__)


class Inherited:
    """The workers left behind, until they have ended. `pids` may be asked by any thread, the rest is for one."""

    def __init__(self, workers: Sequence[Process], port: int) -> None:
        self.port = port
        """Where they answer, if that is where this server is to; else 0."""
        self._workers = tuple(workers)
        self._ended_at: float | None = None
        self._remembered: object = None
        self._writing = threading.Thread()  # none yet

    @classmethod
    def of(cls, state: StateFolder | None, settings: Settings) -> Inherited:
        """Those that the state folder names. With port 0 the server goes where they are."""
        if state is None:
            return cls((), 0)
        address, workers = state.left_behind()
        if not workers:
            return cls((), 0)
        port = int(address.rpartition(":")[2])
        same = address == address_of(settings.host, settings.port or port)
        _log.warning(
            "taking over from a supervisor that died",
            workers=[worker.pid for worker in workers],
            address=address,
        )
        return cls(workers, port if same else 0)

    def pids(self) -> tuple[int, ...]:
        """The processes that are still there."""
        return tuple(worker.pid for worker in self._workers)

    def end(self, at_most_s: float) -> None:
        """Ask them once to finish and to end; kill those that have not after `at_most_s`. Returns at once."""
        self._workers = tuple(worker for worker in self._workers if worker.alive())
        if not self._workers:
            return
        if self._ended_at is None:
            self._ended_at = time.monotonic()
            for worker in self._workers:
                worker.send(signal.SIGTERM)
        elif time.monotonic() - self._ended_at > at_most_s:
            for worker in self._workers:
                worker.send(signal.SIGKILL)

    def remember(self, state: StateFolder, address: str, own: Sequence[Process]) -> None:
        """Write down all that a successor would find, if it is not what was written before.

        In a thread that is waited for REMEMBER_S at most: the caller must hear signals also while the disk hangs.
        """
        record = (address, *self._workers, *own)
        if record == self._remembered or self._writing.is_alive():
            return
        self._remembered = record
        self._writing = threading.Thread(
            target=state.remember,
            args=(address, [*self._workers, *own]),
            name="write down workers",
            daemon=True,
        )
        self._writing.start()
        self._writing.join(REMEMBER_S)
        if self._writing.is_alive():
            _log.error(
                "the disk does not answer: no successor will find the workers until it does",
                folder=str(state.folder),
            )
