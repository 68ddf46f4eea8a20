"""Latency while versions and deltas arrive, against latency while none does: one open load, windows in turn.

    python -m benchmarks.updates [--minutes 10]

The load asks at half of what the server can do. Windows are steady, deltas, steady, deltas and snapshots, and so on: in
the latter two a version is published each second, and in the last every fifth is a snapshot. The worker has one core;
the load, Valkey, the supervisor and the publisher share the other, where the load goes first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import rank_model as shop
from benchmarks.changes import deltas
from benchmarks.common import Spread, report
from benchmarks.processes import ALL_CORES, LOAD_CORE, ROOT, pin, served
from benchmarks.rank_requests import CONNECTIONS, call, fill, framed, request
from ftrie.api.client import METHOD, Client, RankFailed
from ftrie.demo.processes import free_port
from model_store.artefact.artefact import Artefact, Delta
from model_store.store import Store

WINDOW_S, GUARD_S, EVERY_S, VISIBLE_S = 9.0, 0.5, 1.0, 30.0
BETWEEN_SNAPSHOTS, CHAIN, CHANGED, NEW = 4, 16, 1000, 50
CANDIDATES, REQUESTS, CAPACITY_CALLS = 200, 2000, 6000
NICE = 10
STEADY, DELTAS, BOTH = "nothing is published", "deltas arrive", "deltas and snapshots arrive"
TURNS = (STEADY, DELTAS, STEADY, BOTH)
GOALS = {BOTH: "≤ 1.3 ×"}
Times = npt.NDArray[Any]
COLUMNS = ("while", "calls", "failed", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "p99 of steady", "goal")


@dataclass
class Publisher:
    """Publishes the same contents over and over: a snapshot, and deltas one upon another from there."""

    store: Store
    client: Client
    snapshot: Artefact
    changes: list[Delta]
    version: int
    turn: int = 0
    visible_s: dict[str, list[float]] = field(default_factory=lambda: {"delta": [], "snapshot": []})

    def publish(self, model: Artefact | Delta, kind: str) -> None:
        """Publish, and wait until it answers. Raises RuntimeError if that takes VISIBLE_S."""
        began = time.monotonic()
        self.version = self.store.model(shop.NAME).publish_and_activate(model)
        while self._served() != self.version:
            if time.monotonic() - began > VISIBLE_S:
                raise RuntimeError(f"version {self.version}, a {kind}, is not served after {VISIBLE_S:.0f} s")
            time.sleep(0.02)
        self.visible_s[kind].append(time.monotonic() - began)

    def _served(self) -> int | None:
        """The version that answers; None while the server refuses calls."""
        try:
            return self.client.rank(candidates=["item-1"], top_k=1).version
        except RankFailed:
            return None

    def delta(self) -> None:
        """Publish the next delta of the chain."""
        self.publish(replace(self.changes[self.turn], parent=self.version), "delta")
        self.turn += 1

    def restart(self) -> None:
        """Publish the snapshot that the chain begins with."""
        self.publish(self.snapshot, "snapshot")
        self.turn = 0

    def window(self, kind: str, seconds: float = WINDOW_S) -> None:
        """Publish for a window's length, each second."""
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            if kind == BOTH and self.turn >= BETWEEN_SNAPSHOTS:
                self.restart()
            else:
                self.delta()
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    def prepare(self, kind: str, seconds: float = WINDOW_S) -> None:
        """What must be published before a window, so that it sees its own kind only."""
        if kind == DELTAS and self.turn + seconds / EVERY_S > len(self.changes):
            self.restart()
        self.store.model(shop.NAME).gc()


@dataclass(frozen=True)
class Window:
    """From and to, in nanoseconds of the monotonic clock."""

    kind: str
    began_ns: int
    ended_ns: int

    def of(self, times: Times) -> Times:
        """The calls that fell due in it."""
        return times[(times[:, 0] >= self.began_ns) & (times[:, 0] < self.ended_ns)]


def windows(publisher: Publisher, load: subprocess.Popen[str]) -> Iterator[Window]:
    """Windows in turn until the load ends; one that it did not see whole is left out."""
    for kind in cycle(TURNS):
        publisher.prepare(kind)
        time.sleep(GUARD_S)
        began = time.monotonic_ns()
        if kind == STEADY:
            time.sleep(WINDOW_S)
        else:
            publisher.window(kind)
        if load.poll() is not None:
            return
        yield Window(kind, began, time.monotonic_ns())


@contextmanager
def load(
    address: str, bodies: Path, rate: float, seconds: float, times: Path
) -> Iterator[subprocess.Popen[str]]:
    """benchmarks.open_load on its core."""
    words = [address, METHOD, str(bodies), str(rate), str(seconds), str(CONNECTIONS), str(times)]
    command = ["taskset", "-c", str(LOAD_CORE), sys.executable, "-m", "benchmarks.open_load", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()


def rows(times: Times, found: list[Window]) -> list[list[object]]:
    """The table; quantiles are of all calls of a kind."""
    table: list[list[object]] = []
    steady_p99 = 0.0
    for kind in (STEADY, DELTAS, BOTH):
        calls = np.concatenate([window.of(times) for window in found if window.kind == kind] or [times[:0]])
        ms = calls[calls[:, 1] >= 0, 1] / 1e6
        if not len(ms):
            raise RuntimeError(f"no call fell into a window of {kind!r}: give more --minutes")
        quantiles = np.percentile(ms, [50, 99, 99.9, 100])
        steady_p99 = steady_p99 or quantiles[1]
        shown = [f"{value:.2f}" for value in quantiles]
        times_steady = f"{quantiles[1] / steady_p99:.2f} ×"
        table.append([kind, len(calls), len(calls) - len(ms), *shown, times_steady, GOALS.get(kind, "")])
    return table


def soak(
    server: str, store: Store, artefact: Artefact, bodies: Path, seconds: float
) -> tuple[str, list[list[object]]]:
    """Load and publish for so long; returns what was done and the table."""
    rate = min(call(server, bodies, CAPACITY_CALLS).calls_per_second for _ in range(3)) / 2
    times = bodies.with_name("times")
    with Client(server) as client:
        changes = list(deltas(artefact, CHAIN, CHANGED, new_keys))
        publisher = Publisher(store, client, artefact, changes, client.rank(candidates=["item-1"]).version)
        publisher.delta()  # the first one makes the second buffer
        publisher.restart()
        publisher.visible_s = {kind: [] for kind in publisher.visible_s}
        with load(server, bodies, rate, seconds, times) as running:
            found = list(windows(publisher, running))
            answer = json.loads(running.communicate()[0])
    table = rows(np.frombuffer(times.read_bytes(), np.int64).reshape(-1, 2), found)
    table.append(["the whole run", int(answer["calls"]), int(answer["failed"]), *[""] * 5, "0 failed"])
    return f"{seconds / 60:g} minutes at {rate:,.0f} calls/s; {_published(publisher)}", table


def _published(publisher: Publisher) -> str:
    """How many of each kind, and how soon they answered."""
    spreads = [(kind, values, Spread.of(values)) for kind, values in publisher.visible_s.items() if values]
    return " and ".join(
        f"{len(values)} {kind}s (answered with after {spread.median:.2f} s, at most {spread.high:.2f} s)"
        for kind, values, spread in spreads
    )


def errors(metrics_port: int) -> list[str]:
    """What the server counted of errors and refusals."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = ("ftrie_errors_total", "ftrie_refused_total", "ftrie_refused_versions_total")
    return [line for line in lines if line.startswith(wanted) and not line.endswith((" 0", " 0.0"))]


def new_keys(number: int) -> list[bytes]:
    return [b"city*seller=city%d*seller%d" % (10_000 + number, seller) for seller in range(NEW)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    seconds = 60 * parser.parse_args().minutes
    artefact = shop.artefact()
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url, bodies = f"embedded:{folder}/store", Path(folder) / "bodies"
        asked = (framed(request(number, CANDIDATES, inline=True)) for number in range(REQUESTS))
        bodies.write_bytes(b"".join(asked))
        with Store.open(url) as store:
            fill(store, artefact=artefact)
            port = free_port()
            with served(shop.NAME, "--store", url, "--metrics-port", str(port)) as server:
                pin(os.getpid(), LOAD_CORE)
                os.nice(NICE)
                done, table = soak(server.address, store, artefact, bodies, seconds)
                pin(os.getpid(), *ALL_CORES)
                print("\n".join(errors(port)))
    title = f"{CANDIDATES} candidates, {artefact.rows:,} keys, {CHANGED + NEW:,} of them in a delta; {done}"
    report("updates", title, COLUMNS, table)


if __name__ == "__main__":
    main()
