"""`ftrie live`: store, servers, trainer, traffic and dashboard as processes of this machine, restarted when they die.

A run is bootstrap → open → watch → close. `bootstrap` gives the store users, items and a first model, so that serving
begins at once. What is printed comes from what the processes report: JSON lines of traffic and trainer. The dashboard
shows the rest.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftrie.demo.figures import Tally, counts_text, rate_text
from ftrie.demo.market import SPEC, Market, load_records, write_first_day
from ftrie.demo.processes import OnLine, Process, free_ports, run_ftrie
from ftrie.demo.settings import FROZEN, MODEL, LiveOptions, Tastes
from ftrie.demo.simulate import StoppedBySignals
from ftrie.draw.charts import curve, point, require_charts
from ftrie.draw.pages import svg
from ftrie.terminal import json_output, print_json, print_table
from model_store.errors import StoreError, installing
from model_store.files import write_whole
from model_store.jit import kernels_are_cached
from model_store.redis.embedded import PID
from model_store.store import Store
from model_store.waiting import SignalEvent
from server.ranking.warmup import KERNELS as SERVER_KERNELS

SERVERS = 2
LOOPBACK = "127.0.0.1"
DAY_VISITS, DAY_SHOWN = 5_000, 6
TRAFFIC_ENDS_S, SERVER_ENDS_S, TRAINER_ENDS_S, DASHBOARD_ENDS_S = 40.0, 20.0, 60.0, 10.0
FRAME_EVERY_S = 0.5
# Time for the copy to be published, and for the servers to follow.
FREEZE_BEFORE_S = 1.5
# A day of windows of one second.
MOST_WINDOWS = 86_400
SETTLED_S = 30.0
"""The result compares the loop with the frozen model over this many seconds."""
RECENT_S = 10.0
LINE_EVERY_S = 5.0
PICTURE_TITLE = "Clicks per shown item"
MOST_POINTS = 60
LEAST_CHUNK_S = 5.0


@dataclass(frozen=True)
class LiveResult:
    """The outcome of a run; --json prints all fields but `windows`.

    change_at: the second at which tastes changed or would have changed; restarts, exit_codes: by process;
    frozen_version: the version that the frozen model is a copy of.
    """

    seconds: float
    change_at: float
    windows: list[dict[str, Any]]
    traffic: dict[str, Any]
    before: dict[str, Any]
    last: dict[str, Any]
    trainer: dict[str, Any]
    restarts: dict[str, int]
    exit_codes: dict[str, int | None]
    frozen_version: int | None


def run(options: LiveOptions) -> LiveResult:
    """Run the loop until its seconds are over or a signal comes, and end every process. Raises FtrieError."""
    if options.picture is not None:
        require_charts()
    with _folder(options.dir) as folder:
        live = _Live(replace(options, dir=folder), Lines())
        with StoppedBySignals(live.stop):
            live.bootstrap()
            try:
                live.open()
                live.watch()
            finally:
                result = live.close()
    if options.picture is not None and result.windows:
        write_whole(options.picture, picture(result.windows, options.change_at).encode())
    return result


class _Live:
    """One run. `stop` may be called from a signal handler, all else from the main thread."""

    def __init__(self, options: LiveOptions, lines: Lines) -> None:
        self._options, self._lines = options, lines
        self._stopped = SignalEvent()  # `stop` runs in a handler
        self._windows = Windows()
        self._crew = Crew(options, self._windows.add)
        self._frozen_version: int | None = None
        self._must_freeze = bool(options.frozen)
        self._url = ""

    def stop(self) -> None:
        """End the run in good order."""
        self._stopped.set()

    def bootstrap(self) -> None:
        """Start the store and give it users, items and a first model."""
        options = self._options
        self._lines.note(
            f"working in {options.folder}; a missing first model is learned from a simulated day"
        )
        store = self._crew.store.start()
        try:
            market = Market(options.seed, Tastes(change_at=options.change_at))
            self._frozen_version = bootstrap(options, market, store)
        # Also for Ctrl-C: `close`, which ends the others, does not come after a bootstrap that failed.
        except BaseException:
            self._crew.store.stop()
            raise

    def open(self) -> None:
        """Start the other processes."""
        self._lines.note("starting servers and trainer; traffic starts when both servers are ready")
        if not kernels_are_cached(SERVER_KERNELS):
            self._lines.note("compiling the kernels: half a minute, once on this machine")
        self._crew.open(self._stopped)
        if self._crew.dashboard is None:
            self._lines.note(f"to watch it in a browser: {installing('dashboard')}")

    def watch(self) -> None:
        """Show the loop, restart what dies, freeze a copy of the model before tastes change."""
        while not self._stopped.wait(FRAME_EVERY_S) and not self._windows.summary:
            self._tell_url()
            for message in self._crew.keep_alive():
                self._lines.note(message)
            self._freeze_in_time()
            self._lines.show(self._crew, self._windows)

    def _tell_url(self) -> None:
        url = self._crew.dashboard_url
        if url and url != self._url:
            self._url = url
            self._lines.note(f"watch it in a browser: {url}")
            if self._options.open_browser:
                webbrowser.open(url)

    def close(self) -> LiveResult:
        """End all processes, in order."""
        seconds = self._crew.second
        codes = self._crew.close(self._lines.note)
        windows, change_at, second = self._windows, self._options.change_at, self._windows.second
        # Where tastes have not changed there is no time before the change, and `last` may reach back to the start.
        changed_at = change_at if second > change_at else 0.0
        return LiveResult(
            seconds=seconds,
            change_at=change_at,
            windows=windows.all(),
            traffic=windows.summary,
            before=windows.rates(change_at - SETTLED_S, changed_at),
            last=windows.rates(max(changed_at, second - SETTLED_S), second),
            trainer=self._crew.trainer.last_line,
            restarts={"store": self._crew.store.restarts}
            | {process.name: max(0, process.restarts) for process in self._crew.processes},
            exit_codes=codes,
            frozen_version=self._frozen_version,
        )

    def _freeze_in_time(self) -> None:
        """Once, shortly before the change, replace the frozen model, until then the bootstrap's."""
        if not self._must_freeze or self._crew.second < self._options.change_at - FREEZE_BEFORE_S:
            return
        self._must_freeze = False
        store = self._crew.store.store
        try:
            active = store.model(MODEL).active()
            if active is not None:
                freeze(store, active)
                self._frozen_version = active
                self._lines.note(f"tastes are about to change; version {active} is now the frozen model")
        except StoreError as error:
            self._lines.note(f"the model could not be frozen: {error}")


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="ftrie-live-") as name:
        yield Path(name)


# -- the processes


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
        # In one call: two calls may give the same port.
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

    def open(self, stopped: SignalEvent) -> None:
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
        # After its summary it ends by itself, with its own exit code.
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
        # Traffic that was restarted goes on at the market's present second.
        options, second = self._options, self.second
        arguments = [
            "simulate", "--store", options.store, "--model", MODEL, "--rate", str(options.rate),
            "--seed", str(options.seed), "--from", f"{second:.3f}", "--change-at", str(options.change_at),
            # --window is that of [join] in market.toml.
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
            # Signal 0 only asks whether the process exists.
            os.kill(number, 0)
        except (OSError, ValueError):
            return None
        return number

    def keep_alive(self) -> str:
        """Restart it if it has died. Returns a message for the user, or ""."""
        if self.pid is not None:
            return ""
        try:
            # Before the old connection is closed: it stays if this fails.
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


# -- what is printed


class Windows:
    """The traffic's windows, the newest 86,400, and its summary. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: deque[dict[str, Any]] = deque(maxlen=MOST_WINDOWS)
        self.summary: dict[str, Any] = {}

    def add(self, line: dict[str, Any]) -> None:
        """Take a line of `ftrie simulate --json`."""
        if line.get("event") == "summary":
            self.summary = line
        elif line.get("event") == "window":
            with self._lock:
                self._windows.append(line)

    def all(self) -> list[dict[str, Any]]:
        """All windows, oldest first."""
        with self._lock:
            return list(self._windows)

    def rates(self, from_s: float, to_s: float) -> dict[str, dict[str, Any]]:
        """Counts, and rates per shown item, of the windows that end in (from_s, to_s]: of `loop` and `frozen`."""
        some = [each for each in self.all() if from_s < each["second"] <= to_s]
        sums = {"loop": total(some, MODEL), "frozen": total(some, FROZEN)}
        return {
            name: {"shown": each.shown, "clicks": each.clicks}
            | {rate: each.rates()[rate] for rate in ("ctr", "expected_ctr", "best_ctr")}
            for name, each in sums.items()
        }

    @property
    def second(self) -> float:
        """The market's second at the end of the last window; 0 before the first."""
        with self._lock:
            return float(self._windows[-1]["second"]) if self._windows else 0.0


def total(windows: Iterable[dict[str, Any]], model: str) -> Tally:
    """What one model showed in windows of `ftrie simulate --json`."""
    found = Tally()
    for window in windows:
        counts = window["models"].get(model)
        if counts and (shown := counts["shown"]):
            expected, best = counts["expected_ctr"] * shown, counts["best_ctr"] * shown
            found.add_tally(Tally(shown=shown, clicks=counts["clicks"], expected=expected, best=best))
    return found


class Lines:
    """Notes, and the loop's figures as a line every five seconds, on stderr; nothing with --json."""

    def __init__(self) -> None:
        self._next_line = 0.0

    def note(self, message: str) -> None:
        """Print a message."""
        if not json_output():
            print(message, file=sys.stderr, flush=True)

    def show(self, crew: Crew, windows: Windows) -> None:
        """Print the figures, if five seconds have passed."""
        if time.monotonic() < self._next_line:
            return
        last = (windows.all() or [{}])[-1]
        recent = windows.rates(windows.second - RECENT_S, windows.second)
        line = _line(crew, last, recent)
        if line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            self.note(line)


def _line(crew: Crew, last: dict[str, Any], recent: dict[str, dict[str, Any]]) -> str:
    if not last:
        return ""
    loop, frozen, trainer = recent["loop"], recent["frozen"], crew.trainer.last_line
    parts = [
        f"{last['second']:5.0f} s",
        f"{last['visits_a_second']:,.0f} visits/s",
        f"version {last['versions'].get(MODEL)}",
        f"CTR {rate_text(loop['expected_ctr'], 1)}",
        *([f"frozen {rate_text(frozen['expected_ctr'], 1)}"] if frozen["shown"] else []),
        f"best {rate_text(loop['best_ctr'], 1)}",
        f"click to weight {_freshness(last['freshness'])}",
        *([f"trainer lag {_lag(trainer)}"] if trainer else []),
        *(f"{name} {count:,}" for name, count in last["failures"].items()),
    ]
    return " · ".join(parts)


def print_result(result: LiveResult) -> None:
    """Print a run's result, with --json as one object."""
    if json_output():
        print_json({name: value for name, value in vars(result).items() if name != "windows"})
        return
    print(f"\n{result.seconds:,.0f} s; all processes have ended.")
    _print_rates(result)
    if result.traffic:
        _print_traffic(result.traffic)
    restarts = [f"{name} {count}" for name, count in result.restarts.items() if count]
    if restarts:
        print(f"restarts: {', '.join(restarts)}")


def _print_rates(result: LiveResult) -> None:
    rows = [
        (when, model, *(rate_text(rates[key]) for key in ("ctr", "expected_ctr", "best_ctr")))
        for when, models in (
            (f"{min(SETTLED_S, result.change_at):.0f} s before the change", result.before),
            ("at the end", result.last),
        )
        for model, rates in models.items()
        if rates["shown"]
    ]
    if rows:
        print_table(("", "model", "CTR", "expected", "best possible"), rows)


def _print_traffic(traffic: dict[str, Any]) -> None:
    feedback, failures, freshness = traffic["feedback"], traffic["failures"], traffic["freshness"]
    print(f"click to weight in serving: {_freshness(freshness)}, of {freshness['n']:,}")
    print(
        f"{feedback['clicks']:,} clicks and {feedback['conversions']:,} conversions reported; failed calls: "
        + counts_text(failures)
        + f"; lost visits {traffic['lost_visits']:,}"
    )


def _lag(line: dict[str, Any]) -> str:
    lags = line.get("lags", {}).values()
    seconds = [lag["seconds"] for lag in lags if lag.get("seconds") is not None]
    events = [lag["events"] for lag in lags if lag.get("events") is not None]
    return f"{sum(events):,} events" + (f", {max(seconds):.1f} s" if seconds else "")


def _freshness(quantiles: dict[str, Any]) -> str:
    if not quantiles.get("n"):
        return "—"
    return f"p50 {quantiles['p50']:.2f} s, p95 {quantiles['p95']:.2f} s"


def picture(windows: Sequence[dict[str, Any]], change_at: float) -> str:
    """Expected click rates over time, by the true chances, hence free of the noise of clicks; as SVG."""
    chunks = _chunks(windows)
    kinds = {
        "best possible": (2, MODEL, "best"),
        "the loop": (0, MODEL, "expected"),
        "frozen before the change": (1, FROZEN, "expected"),
    }
    rows = [
        point(name, at, getattr(rates, clicks) / rates.shown)
        for name, (_, model, clicks) in kinds.items()
        for at, some in chunks
        if (rates := total(some, model)).shown
    ]
    colours = {name: number for name, (number, _, _) in kinds.items()}
    marks = [(change_at, "tastes change")] if change_at < float(windows[-1]["second"]) else []
    return svg(curve(PICTURE_TITLE, rows, colours, across="seconds", marks=marks, zero=True))


def _chunks(windows: Sequence[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any]]]]:
    """Neighbouring windows grouped into at most about MOST_POINTS chunks, each with its middle second."""
    first = windows[0]["second"] - windows[0]["seconds"]
    width = max(LEAST_CHUNK_S, (windows[-1]["second"] - first) / MOST_POINTS)
    chunks: dict[int, list[dict[str, Any]]] = {}
    for each in windows:
        number = math.floor((each["second"] - each["seconds"] / 2 - first) / width)
        chunks.setdefault(number, []).append(each)
    return [(first + (number + 0.5) * width, some) for number, some in sorted(chunks.items())]
