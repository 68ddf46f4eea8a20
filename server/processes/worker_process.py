"""One worker process as its supervisor sees it: spawned, sent messages, pinged, ended, reaped."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from model_store.backoff import Backoff
from server.model.shared_memory import Parts
from server.processes.channel import NOW, WHEN_READY, Channel, ChannelClosed, parts_body
from server.settings import Settings
from server.sync.state_folder import Process
from server.sync.version_retry import FIRST_PAUSE_S, LONGEST_PAUSE_S

START_S = 120.0
"""How long a worker may take to its first message: it imports and, on a new machine, compiles kernels."""
SILENT_S = 10.0
"""A worker that has not answered a ping for this long hangs."""

_log = structlog.get_logger(__name__)

Hear = Callable[["WorkerProcess", dict[str, Any]], None]


class WorkerProcess:
    """A process from spawn to `reap`. Thread safety: any method, any thread, but `reap` from one."""

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
        self._reader = threading.Thread(target=self._read, name=f"hear worker {number}", daemon=True)
        self._reader.start()
        listen = NOW if listen_now else WHEN_READY
        self._send(
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
        self._send({"do": "serve", "serial": serial, "parts": body}, descriptors)

    def tell(self, body: Mapping[str, Any]) -> None:
        """Send the message."""
        self._send(dict(body))

    # -- life and death

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._send({"do": "ping"})

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
        self._send({"do": "drain", "refuse": refuse})

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def ended(self) -> int | None:
        """Reap the process: its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Close the channel. Call when the process has ended."""
        self._channel.hang_up()
        self._reader.join()
        self._channel.close()

    def _refused(self, model: str, error: str) -> None:
        backoff = self._retry[model][0] if model in self._retry else Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self.refused = {**self.refused, model: error}
        self._retry[model] = (backoff, time.monotonic() + backoff.failed())

    def _took(self, model: str) -> None:
        self.refused = {name: error for name, error in self.refused.items() if name != model}
        self._retry.pop(model, None)

    def _send(self, body: dict[str, Any], descriptors: list[int] | None = None) -> None:
        # A worker that receives nothing is dead or hangs; `Crew.tend` notices both.
        with suppress(ChannelClosed):
            self._channel.send(body, descriptors or ())

    def _read(self) -> None:
        with suppress(ChannelClosed):
            while True:
                body = self._channel.receive().body
                self._heard, self._spoke = time.monotonic(), True
                if body["did"] == "fail":
                    self.error = body["error"]
                elif body["did"] == "listen":
                    self.listening = True
                elif body["did"] == "ready":
                    self.ready = True
                elif body["did"] == "swap":
                    self.versions = {**self.versions, body["model"]: body["version"]}
                    self._took(body["model"])
                elif body["did"] == "refuse":
                    self._refused(body["model"], body["error"])
                try:
                    self._hear(self, body)
                except Exception:
                    _log.exception("a worker's message could not be handled", worker=self.number)


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    """Spawned, not forked: gRPC's threads do not survive a fork.

    Its own process group keeps Ctrl-C from it. The session stays the supervisor's, and with it the share of the CPU.
    """
    # -P: a folder `server` of the user in the working directory is not ours.
    command = [sys.executable, "-P", "-m", "server.processes.worker_main", str(descriptor)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        process_group=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
