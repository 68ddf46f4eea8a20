"""Taking over from a supervisor that died: its workers, which still answer, and the port to share with them."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Sequence

import structlog

from model_store.errors import ServerError
from model_store.files import address_of
from server.serve.grpc_server import taken
from server.settings import Settings
from server.sync.state_folder import Process, StateFolder

REMEMBER_S = 1.0
REMEMBER_AGAIN_S = 10.0
"""After a write that failed: a disk that is full does not fill the log too."""

_log = structlog.get_logger(__name__)


class Inherited:
    """The dead supervisor's workers, until they have ended. `pids` is for any thread, the rest for one."""

    def __init__(self, workers: Sequence[Process], port: int) -> None:
        self.port = port
        """The port that they answer on, if this server is to use it too; else 0."""
        self._workers = tuple(workers)
        self._ended_at: float | None = None
        self._remembered: object = None
        """The latest record that is on disk."""
        self._not_before = 0.0
        self._writing = threading.Thread()  # not started

    @classmethod
    def of(cls, state: StateFolder | None, settings: Settings) -> Inherited:
        """The workers that the state folder names. With `--port 0` the server takes their port."""
        if state is None:
            return cls((), 0)
        address, workers = state.left_behind()
        if not workers:
            return cls((), 0)
        port = int(address.rpartition(":")[2])
        # Another host or port was asked for: the old workers are ended all the same, and this server has a port of its
        # own.
        same = address == address_of(settings.host, settings.port or port)
        _log.warning(
            "taking over from a supervisor that died",
            workers=[worker.pid for worker in workers],
            address=address,
        )
        return cls(workers, port if same else 0)

    def pids(self) -> tuple[int, ...]:
        """The processes that still run."""
        return tuple(worker.pid for worker in self._workers)

    def end(self, at_most_s: float) -> None:
        """Send SIGTERM once, and SIGKILL to those left after `at_most_s`. Returns at once; call it repeatedly."""
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
        """Record the processes for a successor, if they have changed.

        A thread writes, and is waited for REMEMBER_S at most: the caller handles signals even if the disk hangs.
        """
        workers = (*self._workers, *own)
        record = (address, workers)
        # One write at a time: on a disk that hangs, an older record could be written after a newer one.
        if record == self._remembered or self._writing.is_alive() or time.monotonic() < self._not_before:
            return

        def write() -> None:
            if state.remember(address, workers):
                self._remembered = record
            else:
                self._not_before = time.monotonic() + REMEMBER_AGAIN_S

        self._writing = threading.Thread(target=write, name="record workers", daemon=True)
        self._writing.start()
        self._writing.join(REMEMBER_S)
        if self._writing.is_alive():
            _log.error(
                "the disk does not answer: no successor will find the workers until it does",
                folder=str(state.folder),
            )


class Port:
    """The port that the workers share, reserved from construction to `close`.

    The supervisor binds it and never listens. With SO_REUSEPORT the kernel lets any process of the same user listen on
    a port in use and divides connections among them: workers can share it, and a second server would go unnoticed. So
    the constructor first checks that the port is free.
    """

    def __init__(self, host: str, port: int, *, shared: bool) -> None:
        """port: 0 takes a free one. shared: whether inherited workers listen there already.

        Raises ServerError if another process listens there, or if the host is not an address of this machine.
        """
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            if port and not shared:
                _check_free(family, address)
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind(address)
        except OSError as error:
            raise ServerError(taken(address_of(host, port))) from error
        self.number: int = self._socket.getsockname()[1]
        self.address = address_of(host, self.number)

    def close(self) -> None:
        """Release the port."""
        self._socket.close()


def _check_free(family: int, address: tuple[object, ...]) -> None:
    """Raise OSError if a process has the port. Closed connections that the kernel still remembers do not count."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
