"""`ftrie` commands run as child processes: once to their end, or supervised with a last JSON line, restarts and a stop.

Every command gets this environment without FTRIE_… variables, which are meant for other models and stores.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from model_store.errors import FtrieError, ServerError
from model_store.waiting import Backoff

READY_S = 180.0
"""Timeout for a server to get ready; the first start on a machine compiles the kernels."""
STEADY_S = 10.0
"""A process that has lived this long resets its restart backoff."""
GONE_S, POLL_S = 5.0, 0.01
LOG_TAIL = 600
_FTRIE = (sys.executable, "-m", "ftrie")
OnLine = Callable[[dict[str, Any]], None]


def run_ftrie(
    arguments: Sequence[str], folder: Path, stdout: int | None = None, stderr: int | None = None
) -> None:
    """Run a command in `folder` to its end. Raises FtrieError if it fails, with its stderr if that is a pipe."""
    finished = subprocess.run(
        [*_FTRIE, *arguments],
        cwd=folder,
        env=_environment(),
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
    )
    if finished.returncode:
        why = f": {finished.stderr[-LOG_TAIL:]}" if finished.stderr else "; see above"
        raise FtrieError(f"ftrie {arguments[0]} failed with exit code {finished.returncode}{why}")


def free_ports(count: int) -> list[int]:
    """Different loopback TCP ports on which nothing listens.

    They are below the range of outgoing connections and of port 0, so that no other process is given one before its
    use.
    """
    choice, ports = random.SystemRandom(), list[int]()
    with ExitStack() as probes:  # open until all are found, so that none is found twice
        while len(ports) < count:
            probe = probes.enter_context(socket.socket())
            with suppress(OSError):
                port = choice.randrange(10_000, 32_000)
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    """One of `free_ports`."""
    return free_ports(1)[0]


class Process:
    """A supervised `ftrie` command that prints JSON lines. For one thread, except `last_line`.

    last_line: the newest JSON object on stdout, empty before the first. restarts: -1 before the first start.
    """

    def __init__(
        self, name: str, arguments: Callable[[], Sequence[str]], folder: Path, on_line: OnLine | None = None
    ) -> None:
        """Run in `folder`, with stderr appended to NAME.log there.

        `arguments` is called at each start. `on_line` gets each JSON line, on a thread of its own.
        """
        self.name = name
        self.last_line: dict[str, Any] = {}
        self.restarts = -1
        self._arguments, self._folder, self._on_line = arguments, folder, on_line
        self._process: subprocess.Popen[str] | None = None
        self._sessions: list[int] = []
        self._backoff = Backoff(0.2, 5.0)
        self._began = self._next_start = 0.0
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None if it is not running."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start the process, for the first time or again."""
        self.restarts += 1
        # First: otherwise `is_ready` takes the last line of the process before.
        self.last_line = {}
        self._began = time.monotonic()
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*_FTRIE, *self._arguments()],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Ctrl-C in the terminal reaches this process alone, which ends the others in order; what is left of a
                # session can be found.
                start_new_session=True,
            )
        self._sessions.append(self._process.pid)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def is_ready(self) -> bool:
        """Whether it has printed its first line. Raises ServerError if it has ended, or READY_S have passed."""
        if self.last_line:
            return True
        if self.pid is None or time.monotonic() - self._began > READY_S:
            raise ServerError(f"{self.name} did not get ready; its log ends: {self.log_tail()}")
        return False

    def keep_alive(self) -> str:
        """Restart the process, after a backoff, if it has ended. Returns a message when it finds it ended, else ""."""
        if self._process is None or self._process.poll() is None:
            return ""
        now = time.monotonic()
        if not self._next_start:
            if now - self._began > STEADY_S:
                self._backoff.succeeded()
            self._next_start = now + self._backoff.failed()
            code = self._process.returncode
            ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            return f"{self.name} ended with {ending}; restarting it"
        if now >= self._next_start:
            self._next_start = 0.0
            self.start()
        return ""

    def stop(self, timeout_s: float, *, terminate: bool = True) -> int | None:
        """Terminate the process, or with terminate=False wait for its own end; kill it after the timeout.

        Returns its exit code; None if it never ran. Workers of a killed server live on until its successor takes over,
        so whatever is left of its sessions is killed too.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if terminate:
            process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for session in self._sessions:
            end_session(session)
        if self._reader is not None:
            # After the session has ended: a worker that lives on holds the pipe open, and the reader would not end.
            self._reader.join()
        return process.returncode

    def log_tail(self) -> str:
        """The end of its log."""
        try:
            return self._log.read_text("utf-8", errors="replace")[-LOG_TAIL:].strip()
        except OSError:
            return ""

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.name}.log"

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            # Read to its end, also if nobody wants the lines: a process whose pipe is full stops.
            for line in process.stdout:
                with suppress(ValueError):
                    self.last_line = json.loads(line)
                    if self._on_line is not None:
                        self._on_line(self.last_line)


def end_session(session: int) -> None:
    """Kill what is left of a session and wait until it is gone, so that what it held, such as the store, is free."""
    for _ in range(round(GONE_S / POLL_S)):
        left = _members(session)
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _members(session: int) -> list[int]:
    """The processes of a session. A process group is not enough: a server's workers have groups of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # After the last parenthesis: the name of a process may contain blanks and parentheses (proc(5)). Z is a
            # zombie, which holds nothing.
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")}
