"""One process of the loop: started, watched, started again when it dies, ended. What it does is its own business.

It has a session of its own, so that Ctrl-C reaches it only through us, in the order in which we end things.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_store.backoff import Backoff

FTRIE = (sys.executable, "-m", "ftrie")
STEADY_S = 10.0
"""A process that has lived so long is not dying as it starts: the next restart is at once again."""
GONE_S, POLL_S = 5.0, 0.01
Words = Callable[[], Sequence[str]]


class Process:
    """`ftrie …` under supervision. `said`: the last JSON object on its stdout. For one thread, but for `said`."""

    def __init__(
        self, name: str, words: Words, folder: Path, heard: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """`words` are asked for at each start. Its stderr goes to NAME.log in the folder, which is where it runs."""
        self.name = name
        self.said: dict[str, Any] = {}
        self.restarts = -1
        self._words, self._folder = words, folder
        self._heard = heard or (lambda _: None)
        self._process: subprocess.Popen[str] | None = None
        self._sessions: list[int] = []
        self._backoff = Backoff(0.2, 5.0)
        self._began = self._next_start = 0.0
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Its number while it lives."""
        alive = self._process is not None and self._process.poll() is None
        return self._process.pid if alive and self._process else None

    @property
    def log(self) -> Path:
        """Where its stderr goes."""
        return self._folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.restarts += 1
        self.said = {}
        self._began = time.monotonic()
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*FTRIE, *self._words()],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._sessions.append(self._process.pid)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def keep_alive(self) -> str:
        """Start it again if it has died; returns a sentence about what happened, "" if nothing did."""
        if self._process is None or self._process.poll() is None:
            return ""
        now = time.monotonic()
        if not self._next_start:
            if now - self._began > STEADY_S:
                self._backoff.succeeded()
            self._next_start = now + self._backoff.failed()
            return f"{self.name} ended with {_code(self._process.returncode)}; it is started again"
        if now >= self._next_start:
            self._next_start = 0.0
            self.start()
        return ""

    def stop(self, patience_s: float, *, ask: bool = True) -> int | None:
        """Ask it to end, or let it where it does so by itself, then make it; nothing of its sessions is left.

        Returns its exit code, None if it never ran. When a server is killed, its workers go on until the next one takes
        over; if none did, they end here.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if ask:
            process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for session in self._sessions:
            end_session(session)
        if self._reader is not None:
            self._reader.join()
        return process.returncode

    def last_words(self) -> str:
        """The end of its log."""
        try:
            return self.log.read_text("utf-8", errors="replace")[-600:].strip()
        except OSError:
            return ""

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with suppress(ValueError):
                    self.said = json.loads(line)
                    self._heard(self.said)


def members(session: int) -> list[int]:
    """The processes of a session: a server's workers have groups of their own, so that a group is not enough."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def end_session(session: int) -> None:
    """Kill what is left of a session and wait until it is gone: what it held, such as the store, is free then."""
    for _ in range(round(GONE_S / POLL_S)):
        left = members(session)
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _environment() -> dict[str, str]:
    """This environment without FTRIE_… flags, which are meant for other commands than ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")}
