"""The five processes of `ftrie live`: store, two servers, trainer, traffic; restarted when they die, ended in order.

`bootstrap` gives the store users, items and a first model, so that serving begins at once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ftrie.demo.market import MODEL, SPEC, Market, load_records, write_first_day
from model_store.backoff import Backoff
from model_store.errors import FtrieError, ServerError, StoreError
from model_store.redis.embedded import PID
from model_store.store import Store

FROZEN = f"{MODEL}-frozen"
SERVERS = 2


CHANGE_AT_S = 60.0


def change_of(seconds: float | None) -> float:
    """The default second of the change: a run of any length shows what was before and what comes after."""
    return CHANGE_AT_S if seconds is None else min(CHANGE_AT_S, seconds / 4)


@dataclass(frozen=True)
class LiveOptions:
    """The flags. Times in seconds; seconds is None for no end, frozen the share of visits for the frozen model."""

    folder: Path
    seconds: float | None
    rate: float
    seed: int
    change_at: float
    frozen: float
    bots: float
    delay: float
    publish_every: str
    explore: str
    picture: Path | None

    @property
    def store(self) -> str:
        """The store's URL."""
        return f"embedded:{self.folder / 'store'}"

    @property
    def spec(self) -> Path:
        """The model spec, a copy that may be read and changed."""
        return self.folder / f"{MODEL}.toml"

    @property
    def day(self) -> Path:
        """The log of the day before."""
        return self.folder / "day.csv"

    @property
    def models(self) -> tuple[str, ...]:
        """What the servers serve."""
        return (MODEL, FROZEN) if self.frozen else (MODEL,)


DAY_VISITS = 5_000
DAY_SHOWN = 6


def bootstrap(options: LiveOptions, market: Market, store: Store) -> int:
    """Load the records, learn the day before, publish and activate; returns the version. Raises FtrieError.

    A folder that was used before keeps its spec and its models.
    """
    load_records(market, store)
    if not options.spec.exists():
        shutil.copy(SPEC, options.spec)
    write_first_day(market, DAY_VISITS, DAY_SHOWN, options.day)
    active = store.model(MODEL).active()
    if active is None:
        _train(options)
        active = store.model(MODEL).active()
        assert active is not None
    if options.frozen:
        freeze(store, active)
    return active


def freeze(store: Store, version: int) -> int:
    """Publish a copy of the market's version under the frozen model's name, whole; returns its own version."""
    from dataclasses import replace

    artefact = store.model(MODEL).materialise(version)
    named = artefact.spec.model_copy(
        update={"model": artefact.spec.model.model_copy(update={"name": FROZEN})}
    )
    return store.model(FROZEN).publish_and_activate(replace(artefact, spec=named))


def _train(options: LiveOptions) -> None:
    finished = subprocess.run(
        [
            *FTRIE,
            "train",
            options.spec.name,
            options.day.name,
            "--publish",
            "--activate",
            "--store",
            options.store,
        ],
        cwd=options.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise FtrieError(f"ftrie train failed with exit code {finished.returncode}: {finished.stderr[-600:]}")


READY_S = 180.0  # a first run compiles the kernels
TRAFFIC_ENDS_S, SERVER_ENDS_S, TRAINER_ENDS_S = 40.0, 20.0, 60.0
LOOPBACK = "127.0.0.1"


class Crew:
    """The store, the trainer, two servers and the traffic, each in a process of its own."""

    def __init__(self, options: LiveOptions, heard: Callable[[dict[str, Any]], None]) -> None:
        """`heard` is told each line of the traffic, on a thread of its own."""
        self._options = options
        self._ports = free_ports(2 * SERVERS)
        self._opened: float | None = None
        self.store = StoreProcess(options.store)
        self.servers = [
            Process(f"server-{number + 1}", partial(self._server_words, number), options.folder)
            for number in range(SERVERS)
        ]
        self.trainer = Process("trainer", self._trainer_words, options.folder)
        self.traffic = Process("traffic", self._traffic_words, options.folder, heard)

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
            "serve", *self._options.models, "--store", self._options.store, "--impressions", "store", "--json",
            "--port", str(self._ports[number]), "--metrics-port", str(self._ports[SERVERS + number]),
            "--state", f"state-{number + 1}", "--drain", "2",
        ]  # fmt: skip

    def _trainer_words(self) -> list[str]:
        options = self._options
        return [
            "trainer", options.spec.name, "--store", options.store, "--from", "store", "--init-from", "active",
            "--checkpoint", "trainer", "--every", "10s", "--publish-every", options.publish_every, "--wait",
            "--say-every", "1", "--json",
        ]  # fmt: skip

    def _traffic_words(self) -> list[str]:
        options, second = self._options, self.second
        words = [
            "simulate", "--store", options.store, "--rate", str(options.rate), "--seed", str(options.seed),
            "--from", f"{second:.3f}", "--change-at", str(options.change_at), "--bots", str(options.bots),
            "--delay", str(options.delay), "--window", "8", "--every", "1", "--json",
        ]  # fmt: skip
        for port in self._ports[:SERVERS]:
            words += ["--address", f"{LOOPBACK}:{port}"]
        if options.seconds is not None:
            words += ["--seconds", f"{max(0.1, options.seconds - second):.3f}"]
        if options.explore:
            words += ["--explore", options.explore]
        if options.frozen:
            words += ["--beside", FROZEN, "--beside-share", str(options.frozen)]
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
        """`words` are options for at each start. Its stderr goes to NAME.log in the folder, which is where it runs."""
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


class StoreProcess:
    """A Valkey that is there from `start` to `stop`, if need be again and again. One thread."""

    name = "store"

    def __init__(self, url: str) -> None:
        self.restarts = 0
        self._url = url
        self._store: Store | None = None

    def start(self) -> Store:
        """Start it, or join the one there is. Raises StoreError."""
        self._store = Store.open(self._url)
        return self._store

    @property
    def store(self) -> Store:
        """The open store."""
        assert self._store is not None
        return self._store

    @property
    def pid(self) -> int | None:
        """Its number while it lives."""
        try:
            number = int((Path(self._url.partition(":")[2]) / PID).read_text())
            os.kill(number, 0)
        except (OSError, ValueError):
            return None
        return number

    def keep_alive(self) -> str:
        """Start it again, with its data, if it has died; returns a sentence about what happened."""
        if self.pid is not None:
            return ""
        try:
            again = Store.open(self._url)
        except StoreError as error:
            return f"the store does not come back: {error}"
        self.restarts += 1
        before, self._store = self._store, again
        if before is not None:
            before.close()
        return "the store had ended; it is started again, with its data"

    def stop(self) -> None:
        """Let it go; it ends when nobody else holds it."""
        if self._store is not None:
            self._store.close()
            self._store = None
