"""The processes of `ftrie live` (store, servers, trainer, traffic, dashboard): restarted when they die, ended in order.

`bootstrap` gives the store users, items and a first model, so that serving begins at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ftrie.demo.market import MODEL, SPEC, Market, load_records, write_first_day
from ftrie.demo.processes import OnLine, Process, free_ports, run_ftrie
from model_store.errors import StoreError
from model_store.redis.embedded import PID
from model_store.store import Store

FROZEN = f"{MODEL}-frozen"
SERVERS = 2
LOOPBACK = "127.0.0.1"
CHANGE_AT_S = 60.0
DAY_VISITS, DAY_SHOWN = 5_000, 6
TRAFFIC_ENDS_S, SERVER_ENDS_S, TRAINER_ENDS_S, DASHBOARD_ENDS_S = 40.0, 20.0, 60.0, 10.0


@dataclass(frozen=True)
class LiveOptions:
    """The flags. Times in seconds; seconds: None for no end; frozen: the share of visits for the frozen model."""

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
    open_browser: bool = False

    @property
    def store(self) -> str:
        """The store's URL."""
        return f"embedded:{self.folder / 'store'}"

    @property
    def spec(self) -> Path:
        """The model spec, a copy that the user may read and change."""
        return self.folder / f"{MODEL}.toml"

    @property
    def day(self) -> Path:
        """The log of the day before."""
        return self.folder / "day.csv"

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the servers serve."""
        return (MODEL, FROZEN) if self.frozen else (MODEL,)


def default_change_at(seconds: float | None) -> float:
    """The second at which tastes change by default: early enough that a run of any length shows before and after."""
    return CHANGE_AT_S if seconds is None else min(CHANGE_AT_S, seconds / 4)


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
        words = (
            "train",
            options.spec.name,
            options.day.name,
            "--publish",
            "--activate",
            "--store",
            options.store,
        )
        run_ftrie(words, options.folder, subprocess.DEVNULL, subprocess.PIPE)
        active = store.model(MODEL).active()
        assert active is not None
    if options.frozen:
        freeze(store, active)
    return active


def freeze(store: Store, version: int) -> None:
    """Publish and activate a full copy of the market's version under the frozen model's name."""
    artefact = store.model(MODEL).materialise(version)
    model = artefact.spec.model.model_copy(update={"name": FROZEN})
    spec = artefact.spec.model_copy(update={"model": model})
    store.model(FROZEN).publish_and_activate(replace(artefact, spec=spec))


class Crew:
    """The store, the trainer, two servers, the traffic and the dashboard, each in a process of its own.

    dashboard: None if the extra `dashboard` is not installed.
    """

    def __init__(self, options: LiveOptions, on_window: OnLine) -> None:
        """`on_window` gets each JSON line of the traffic, on a thread of its own."""
        self._options = options
        self._trainer_port, self._dashboard_port, *self._ports = free_ports(2 + 2 * SERVERS)
        self._opened: float | None = None
        self.store = StoreProcess(options.store)
        self.servers = [
            Process(f"server-{number + 1}", partial(self._server_arguments, number), options.folder)
            for number in range(SERVERS)
        ]
        self.trainer = Process("trainer", self._trainer_arguments, options.folder)
        self.dashboard = (
            Process("dashboard", self._dashboard_arguments, options.folder) if find_spec("nicegui") else None
        )
        self.traffic = Process("traffic", self._traffic_arguments, options.folder, on_window)

    @property
    def processes(self) -> Sequence[Process]:
        """All but the store, in the order in which they start."""
        shown = (self.dashboard,) if self.dashboard is not None else ()
        return (*self.servers, self.trainer, self.traffic, *shown)

    @property
    def dashboard_url(self) -> str:
        """The dashboard's address once it is ready, else empty."""
        return str(self.dashboard.last_line.get("url", "")) if self.dashboard is not None else ""

    @property
    def second(self) -> float:
        """Seconds since the traffic started."""
        return 0.0 if self._opened is None else time.monotonic() - self._opened

    def open(self, stopped: threading.Event) -> None:
        """Start servers and trainer, then the traffic once both servers are ready. Raises ServerError."""
        for process in (*self.servers, self.trainer):
            process.start()
        while not stopped.wait(0.05):
            ready = [server.is_ready() for server in self.servers]
            if all(ready):
                break
            self.trainer.keep_alive()
        if not stopped.is_set():
            self._opened = time.monotonic()
            self.traffic.start()
            if self.dashboard is not None:
                self.dashboard.start()

    def keep_alive(self) -> list[str]:
        """Restart what has died; returns messages for the user."""
        messages = [self.store.keep_alive(), *(process.keep_alive() for process in self.processes)]
        return [message for message in messages if message]

    def close(self, note: Callable[[str], None]) -> dict[str, int | None]:
        """End all, callers before those they call; returns the exit codes by name."""
        note("ending traffic")
        ended = self.traffic.last_line.get("event") == "summary"
        codes = {self.traffic.name: self.traffic.stop(TRAFFIC_ENDS_S, terminate=not ended)}
        for process, timeout_s in (
            *((server, SERVER_ENDS_S) for server in self.servers),
            (self.trainer, TRAINER_ENDS_S),
            *(((self.dashboard, DASHBOARD_ENDS_S),) if self.dashboard is not None else ()),
        ):
            note(f"ending {process.name}")
            codes[process.name] = process.stop(timeout_s)
        note("ending the store")
        self.store.stop()
        return codes

    def _server_arguments(self, number: int) -> list[str]:
        return [
            "serve", *self._options.models, "--store", self._options.store, "--impressions", "store", "--json",
            "--port", str(self._ports[number]), "--metrics-port", str(self._ports[SERVERS + number]),
            "--state", f"state-{number + 1}", "--drain", "2",
        ]  # fmt: skip

    def _trainer_arguments(self) -> list[str]:
        options = self._options
        return [
            "trainer", options.spec.name, "--store", options.store, "--from", "store", "--init-from", "active",
            "--checkpoint", "trainer", "--every", "10s", "--publish-every", options.publish_every, "--wait",
            "--say-every", "1", "--metrics-port", str(self._trainer_port), "--json",
        ]  # fmt: skip

    def _dashboard_arguments(self) -> list[str]:
        arguments = [
            "dashboard", MODEL, "--store", self._options.store, "--port", str(self._dashboard_port),
            "--trainer", f"{LOOPBACK}:{self._trainer_port}", "--allow-changes", "--json",
        ]  # fmt: skip
        for port in self._ports[SERVERS:]:
            arguments += ["--server", f"{LOOPBACK}:{port}"]
        return arguments

    def _traffic_arguments(self) -> list[str]:
        options, second = self._options, self.second
        arguments = [
            "simulate", "--store", options.store, "--model", MODEL, "--rate", str(options.rate),
            "--seed", str(options.seed), "--from", f"{second:.3f}", "--change-at", str(options.change_at),
            "--bots", str(options.bots), "--delay", str(options.delay), "--window", "8", "--every", "1", "--json",
        ]  # fmt: skip
        for port in self._ports[:SERVERS]:
            arguments += ["--address", f"{LOOPBACK}:{port}"]
        if options.seconds is not None:
            arguments += ["--seconds", f"{max(0.1, options.seconds - second):.3f}"]
        if options.explore:
            arguments += ["--explore", options.explore]
        if options.frozen:
            arguments += ["--beside", FROZEN, "--beside-share", str(options.frozen)]
        return arguments


class StoreProcess:
    """An embedded Valkey that runs from `start` to `stop`, restarted with its data if it dies. For one thread."""

    name = "store"

    def __init__(self, url: str) -> None:
        self.restarts = 0
        self._url = url
        self._store: Store | None = None

    def start(self) -> Store:
        """Start it, or join a running one. Raises StoreError."""
        self._store = Store.open(self._url)
        return self._store

    @property
    def store(self) -> Store:
        """The open store."""
        assert self._store is not None
        return self._store

    @property
    def pid(self) -> int | None:
        """The process id; None if it is not running."""
        try:
            number = int((Path(self._url.partition(":")[2]) / PID).read_text())
            os.kill(number, 0)
        except (OSError, ValueError):
            return None
        return number

    def keep_alive(self) -> str:
        """Restart it if it has died. Returns a message for the user, or ""."""
        if self.pid is not None:
            return ""
        try:
            reopened = Store.open(self._url)
        except StoreError as error:
            return f"the store could not be restarted: {error}"
        self.restarts += 1
        self.stop()
        self._store = reopened
        return "the store had ended; restarted with its data"

    def stop(self) -> None:
        """Close the connection; Valkey ends when no other process uses it."""
        if self._store is not None:
            self._store.close()
            self._store = None
