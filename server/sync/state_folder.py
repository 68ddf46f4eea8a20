"""A server's state folder. One supervisor holds it at a time; a successor finds the workers of a dead one in it.

    lock               held by the running supervisor
    server.json        the address, and each worker's process
    models/<model>/    the last good model (`server.sync.last_good`)
    experiments/       each model's experiment (`server.sync.last_good`)

A process is identified by its pid and its start time, since pids are reused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from model_store.errors import ArtefactError, FtrieError, ServerError, StoreError
from model_store.files import holder, is_held, lock, write_whole

FORMAT = 2
"""Of files that `write_checked` writes."""
LOCK = "lock"
RECORD = "server.json"
MODELS = "models"
EXPERIMENTS = "experiments"
LOCK_TRIES = 10
LOCK_PAUSE_S = 0.05
LOWERED_BY = 10
"""Steps of nice."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Process:
    """A process, by pid and start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now; None if there is none, or if /proc does not show it."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name is in brackets and may itself hold spaces and brackets.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        # Field 22 of proc(5), `starttime`; the first two, pid and name, are cut off above. A zombie has ended.
        return None if fields[0] in (b"Z", b"X") else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether the process still runs."""
        return Process.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process, never to another one that has its pid by now."""
        with suppress(OSError):
            # Before the check: from here on the descriptor is of one process, also if its pid is given to another.
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


class StateFolder:
    """The folder, locked from construction to `close`."""

    def __init__(self, folder: Path) -> None:
        """Raises ServerError if another supervisor holds the folder, OSError if it cannot be created."""
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

    def remember(self, address: str, workers: Sequence[Process]) -> bool:
        """Record the workers for a successor. False for an error, such as a full disk, which is logged."""
        record = {"address": address, "workers": [asdict(worker) for worker in workers]}
        try:
            write_whole(self.folder / RECORD, json.dumps(record).encode())
        except FtrieError as error:
            _log.error("the workers could not be written down: no successor will find them", error=str(error))
            return False
        return True

    def left_behind(self) -> tuple[str, list[Process]]:
        """The address of the server that held the folder before, and its workers that still run."""
        try:
            record = json.loads((self.folder / RECORD).read_bytes())
            workers = [Process(int(w["pid"]), int(w["started"])) for w in record["workers"]]
            return str(record["address"]), [worker for worker in workers if worker.alive()]
        # A record that cannot be read names no workers: they end by themselves after `--alone` seconds.
        except (OSError, ValueError, LookupError, TypeError):
            return "", []

    def close(self) -> None:
        """Release the folder for another supervisor."""
        os.close(self._lock)


def _locked(folder: Path) -> int:
    for _ in range(LOCK_TRIES):
        try:
            return lock(folder / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)  # a worker that calls `has_supervisor` holds it for a moment
        except StoreError as error:
            raise OSError(str(error)) from error
    raise ServerError(
        f"{holder(folder / LOCK) or 'another server'} has the state folder {folder}; end it first, or take "
        "another --port, or another folder with --state"
    )


def has_supervisor(folder: str) -> bool:
    """Whether a supervisor holds this folder: for workers that have lost theirs."""
    try:
        return bool(folder) and is_held(Path(folder) / LOCK)
    except StoreError:
        return False


def write_checked(path: Path, document: Any) -> None:
    """Write a JSON document with the SHA-256 of its text, whole or not at all. Raises OutputError."""
    # Sorted, so that what was read gives the same text again.
    text = json.dumps(document, sort_keys=True)
    write_whole(path, f'{{"format": {FORMAT}, "check": "{_digest(text)}", "document": {text}}}'.encode())


def read_checked(path: Path) -> Any:
    """The document that `write_checked` wrote; None if there is no file.

    Raises ArtefactError if it cannot be read, is damaged or of another format.
    """
    try:
        read = json.loads(path.read_bytes())
        found = read["format"]
        is_whole = found != FORMAT or read["check"] == _digest(json.dumps(read["document"], sort_keys=True))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{path} is damaged: {error}") from error
    if found != FORMAT:
        raise ArtefactError(f"{path} has format {found}, expected {FORMAT}")
    if not is_whole:
        raise ArtefactError(f"{path} is damaged: its checksum is not that of its text")
    return read["document"]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lower_priority() -> None:
    """Lower the calling thread's priority, where the system has priorities for threads (Linux).

    Background work then does not delay the threads that answer. Not for a worker: its other threads wait for locks that
    this thread may hold.
    """
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWERED_BY)
