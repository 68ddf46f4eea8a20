"""A server's folder: one supervisor at a time, and the names of its workers, so that a successor can find them.

    lock               held by the supervisor that lives
    server.json        the address, and each worker's process
    models/<model>/    the last good model (`server.sync.last_good`)
    experiments/       each model's experiment (`server.sync.last_good`)

A process is named by its number and the moment it started, since numbers are given out again.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from model_store.errors import FtrieError, ServerError, StoreError
from model_store.locks import is_held, lock
from model_store.whole_file import write_whole

LOCK = "lock"
RECORD = "server.json"
MODELS = "models"
EXPERIMENTS = "experiments"
LOCK_TRIES = 10
LOCK_PAUSE_S = 0.05

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Process:
    """A process, by number and start time (clock ticks since the machine started)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now; None if there is none, or where /proc does not tell."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in brackets may hold anything, also spaces and brackets.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether it still runs."""
        return Process.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal, to this process and never to one that was given its number."""
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


class StateFolder:
    """The folder, locked from construction to `close`."""

    def __init__(self, folder: Path) -> None:
        """Raises ServerError if another supervisor has it, OSError if it cannot be made."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._lock = _locked(folder)

    def model(self, name: str) -> Path:
        """Where the last good model of this name is kept."""
        return self.folder / MODELS / name

    @property
    def experiments(self) -> Path:
        """Where the experiments are kept."""
        return self.folder / EXPERIMENTS

    def remember(self, address: str, workers: Sequence[Process]) -> None:
        """Write down who serves, for a successor. A full disk costs only the take-over, and is logged."""
        record = {"address": address, "workers": [asdict(worker) for worker in workers]}
        try:
            write_whole(self.folder / RECORD, json.dumps(record).encode())
        except FtrieError as error:
            _log.error("the workers could not be written down: no successor will find them", error=str(error))

    def left_behind(self) -> tuple[str, list[Process]]:
        """The address of the server that was here before, and those of its workers that still run."""
        try:
            record = json.loads((self.folder / RECORD).read_bytes())
            workers = [Process(int(w["pid"]), int(w["started"])) for w in record["workers"]]
            return str(record["address"]), [worker for worker in workers if worker.alive()]
        except (OSError, ValueError, LookupError, TypeError):
            return "", []

    def close(self) -> None:
        """Let another supervisor have the folder."""
        os.close(self._lock)


def _locked(folder: Path) -> int:
    for _ in range(LOCK_TRIES):
        try:
            return lock(folder / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)  # a worker that asks `has_supervisor` has it for a moment
        except StoreError as error:
            raise OSError(str(error)) from error
    raise ServerError(
        f"another server has the state folder {folder}; end it first, or name another folder with --state"
    )


def has_supervisor(folder: str) -> bool:
    """Whether a supervisor has this folder: for workers that have lost theirs."""
    try:
        return bool(folder) and is_held(Path(folder) / LOCK)
    except StoreError:
        return False
