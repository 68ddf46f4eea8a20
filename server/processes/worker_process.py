"""One worker process as its supervisor sees it: spawned, spoken to, watched for signs of life, ended, reaped."""

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

from server.model.shared_memory import Parts
from server.processes.channel import NOW, WHEN_READY, Channel, ChannelClosed, parts_body
from server.settings import Settings
from server.sync.pauses import REFUSED_VERSION
from server.sync.state_folder import Process

START_S = 120.0
"""How long a worker may take to its first word: it imports, and on a new machine it compiles."""
SILENT_S = 10.0
"""A worker that has not answered a ping for so long hangs."""

_log = structlog.get_logger(__name__)

Hear = Callable[["WorkerProcess", dict[str, Any]], None]


class WorkerProcess:
    """A process from spawn to `reap`. Thread safety: any method, any thread, but `reap` from one."""

    def __init__(self, number: int, settings: Settings, port: int, *, listen_now: bool, hear: Hear) -> None:
        """`hear` is called with each message, by a thread of this worker's own. Raises OSError if none can be made."""
        self.number = number
        self.listening = False
        self.versions: dict[str, int] = {}
        """What its requests are answered by, by model."""
        self.error = ""
        """What it said last before it ended, if it could not serve at all."""
        self.ending = False
        self.refused: dict[str, str] = {}
        """By model, why it does not serve what it was given last."""
        self._again: dict[str, tuple[int, float]] = {}
        """By model that it has refused: how often in a row, and when to hand it over again."""
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
        """The process's number."""
        return self._process.pid

    # -- a taker

    def take(self, parts: Parts, serial: int) -> None:
        """Pass the parts on, their memory as descriptors."""
        body, descriptors = parts_body(parts)
        self._send({"do": "serve", "serial": serial, "parts": body}, descriptors)

    def tell(self, body: Mapping[str, Any]) -> None:
        """Pass the message on."""
        self._send(dict(body))

    # -- life and death

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._send({"do": "ping"})

    def excuse(self) -> None:
        """Nobody listened to it for a while: begin to wait anew."""
        self._heard = time.monotonic()

    def hangs(self) -> bool:
        """Whether it has given no sign of life for too long."""
        return time.monotonic() - self._heard > (SILENT_S if self._spoke else START_S)

    def due_again(self) -> list[str]:
        """The models to hand over again, each told once for each time that it was refused."""
        now, never = time.monotonic(), math.inf
        due = {model: failures for model, (failures, at) in list(self._again.items()) if at <= now}
        for model, failures in due.items():
            self._again[model] = (failures, never)
        return list(due)

    def drain(self, *, refuse: bool) -> None:
        """Ask it to finish what it has begun, and to end."""
        self.ending = True
        self._send({"do": "drain", "refuse": refuse})

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives. Reaps it."""
        return self._process.poll()

    def close(self) -> None:
        """Let go of the channel. Call when it has ended."""
        self._channel.hang_up()
        self._reader.join()
        self._channel.close()

    def _refused(self, model: str, error: str) -> None:
        failures = self._again.get(model, (0, 0.0))[0] + 1
        self.refused = {**self.refused, model: error}
        self._again[model] = (failures, time.monotonic() + REFUSED_VERSION.after(failures))

    def _took(self, model: str) -> None:
        self.refused = {name: error for name, error in self.refused.items() if name != model}
        self._again.pop(model, None)

    def _send(self, body: dict[str, Any], descriptors: list[int] | None = None) -> None:
        # A worker that takes nothing in is dead or hangs; either way whoever tends the workers finds out.
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
                elif body["did"] == "swap":
                    self.versions = {**self.versions, body["model"]: body["version"]}
                    self._took(body["model"])
                elif body["did"] == "refuse":
                    self._refused(body["model"], body["error"])
                try:
                    self._hear(self, body)
                except Exception:
                    _log.exception("a worker's message could not be followed", worker=self.number)


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    """Spawned, not forked: grpc's threads do not survive a fork.

    A process group of its own keeps Ctrl-C from it; the session, and with it the share of the processor, stays ours.
    """
    command = [sys.executable, "-m", "server.processes.worker_main", str(descriptor)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        process_group=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
