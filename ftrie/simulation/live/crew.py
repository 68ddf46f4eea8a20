"""The five processes of the loop: how each is called, in which order they begin and end. It learns nothing itself."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ftrie.simulation.live.asked import FROZEN, SERVERS, Asked
from ftrie.simulation.live.process import Process
from ftrie.simulation.live.store_process import StoreProcess
from ftrie.simulation.market import MODEL
from model_store.errors import ServerError

READY_S = 180.0  # a first run compiles the kernels
TRAFFIC_ENDS_S, SERVER_ENDS_S, TRAINER_ENDS_S = 40.0, 20.0, 60.0
LOOPBACK = "127.0.0.1"


class Crew:
    """Store, trainer, two servers, traffic."""

    def __init__(self, asked: Asked, heard: Callable[[dict[str, Any]], None]) -> None:
        """`heard` is told each line of the traffic, on a thread of its own."""
        self._asked = asked
        self._ports = free_ports(2 * SERVERS)
        self._opened: float | None = None
        self.store = StoreProcess(asked.store)
        self.servers = [
            Process(f"server-{number + 1}", partial(self._server_words, number), asked.folder)
            for number in range(SERVERS)
        ]
        self.trainer = Process("trainer", self._trainer_words, asked.folder)
        self.traffic = Process("traffic", self._traffic_words, asked.folder, heard)

    @property
    def processes(self) -> Sequence[Process]:
        """All but the store, in the order in which they begin."""
        return (*self.servers, self.trainer, self.traffic)

    @property
    def second(self) -> float:
        """How long the traffic has gone on."""
        return 0.0 if self._opened is None else time.monotonic() - self._opened

    def open(self, stopped: threading.Event) -> None:
        """Start servers and trainer, and the traffic once both servers are ready. Raises ServerError."""
        for process in (*self.servers, self.trainer):
            process.start()
        deadline = time.monotonic() + READY_S
        while not all(server.said for server in self.servers) and not stopped.wait(0.05):
            self._check_servers(time.monotonic() > deadline)
            self.trainer.keep_alive()
        if not stopped.is_set():
            self._opened = time.monotonic()
            self.traffic.start()

    def keep_alive(self) -> list[str]:
        """Start again what has died; returns what there is to say."""
        said = [self.store.keep_alive(), *(process.keep_alive() for process in self.processes)]
        return [sentence for sentence in said if sentence]

    def health(self, number: int) -> dict[str, Any]:
        """What a server says of itself at /healthz; empty while it says nothing."""
        try:
            url = f"http://{LOOPBACK}:{self._ports[SERVERS + number]}/healthz"
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:  # 503: it is not ready, and says why
            body = error.read()
        except OSError:
            return {}
        found: dict[str, Any] = json.loads(body)
        return found

    def close(self, say: Callable[[str], None]) -> dict[str, int | None]:
        """End all, those first who call the others; returns the exit codes by name."""
        say("ending traffic")
        ended = self.traffic.said.get("event") == "summary"
        codes = {self.traffic.name: self.traffic.stop(TRAFFIC_ENDS_S, ask=not ended)}
        for process, patience_s in (
            *((server, SERVER_ENDS_S) for server in self.servers),
            (self.trainer, TRAINER_ENDS_S),
        ):
            say(f"ending {process.name}")
            codes[process.name] = process.stop(patience_s)
        say("ending the store")
        self.store.stop()
        return codes

    def _check_servers(self, late: bool) -> None:
        """Raise ServerError for one that will not get ready: what fails at once fails again."""
        for server in self.servers:
            if not server.said and (late or server.pid is None):
                raise ServerError(f"{server.name} did not get ready; its log ends: {server.last_words()}")

    def _server_words(self, number: int) -> list[str]:
        return [
            "serve", *self._asked.models, "--store", self._asked.store, "--impressions", "store", "--json",
            "--port", str(self._ports[number]), "--metrics-port", str(self._ports[SERVERS + number]),
            "--state", f"state-{number + 1}", "--drain", "2",
        ]  # fmt: skip

    def _trainer_words(self) -> list[str]:
        asked = self._asked
        return [
            "trainer", asked.spec.name, "--store", asked.store, "--from", "store", "--init-from", "active",
            "--checkpoint", "trainer", "--every", "10s", "--publish-every", asked.publish_every, "--wait",
            "--say-every", "1", "--json",
        ]  # fmt: skip

    def _traffic_words(self) -> list[str]:
        asked, second = self._asked, self.second
        words = [
            "simulate", "--store", asked.store, "--rate", str(asked.rate), "--seed", str(asked.seed),
            "--from", f"{second:.3f}", "--change-at", str(asked.change_at), "--bots", str(asked.bots),
            "--delay", str(asked.delay), "--window", "8", "--every", "1", "--json",
        ]  # fmt: skip
        for port in self._ports[:SERVERS]:
            words += ["--address", f"{LOOPBACK}:{port}"]
        if asked.seconds is not None:
            words += ["--seconds", f"{max(0.1, asked.seconds - second):.3f}"]
        if asked.explore:
            words += ["--explore", asked.explore]
        if asked.frozen:
            words += ["--beside", FROZEN, "--beside-share", str(asked.frozen)]
        return [*words, "--model", MODEL]


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
