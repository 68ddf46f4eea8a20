"""The slowest calls by an open load: while nothing arrives, while versions do, and beside a trainer on the machine.

    python -m benchmarks.tails [--rounds 5] [--seconds 20] [--picture docs/images/tails.svg]

Each round measures the server's capacity, then loads it at each share of that capacity under each condition, in an
order that rotates. A call's time counts from when it was due, so that no delay of the server hides another (no
coordinated omission). A ratio compares a window with that of the same round and load in which nothing arrived.

The worker has one core; the load, Valkey, the supervisor and the publisher share the other, where the load goes first.
The trainer is `ftrie train` on all cores, at the priority it has by default: it learns rows of the shop without a
pause, starts from the served model, and publishes a delta each second and every fifth time a snapshot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import rank_model as shop
from benchmarks.changes import deltas
from benchmarks.common import ROUNDS, Spread, report
from benchmarks.processes import ALL_CORES, LOAD_CORE, ROOT, pin, served
from benchmarks.rank_requests import call, fill, framed, request
from benchmarks.updates import (
    BETWEEN_SNAPSHOTS,
    BOTH,
    CHANGED,
    DELTAS,
    NEW,
    NICE,
    STEADY,
    Publisher,
    load,
    new_keys,
)
from ftrie.api.client import Client
from ftrie.draw.charts import intervals, lines, require_charts
from ftrie.draw.pages import stacked_svg
from model_store.files import write_whole
from model_store.store import Store

TRAINER = "the trainer shares the machine"
CONDITIONS = (STEADY, DELTAS, BOTH, TRAINER)
SHARES = (0.5, 0.8)
CANDIDATES, REQUESTS, CAPACITY_CALLS = 200, 2000, 6000
FIRST_S = 0.5
"""Calls that fall due this soon after a load has begun are not counted."""
SETTLED_S = 1.0
"""Before a window, for what the one before has left to do: buffers, memory that is given back."""
PUBLISH_EVERY_S, TRAINER_STARTS_S, CHAIN = 1, 60.0, 64
LOG_ROWS = 100_000
QUANTILES = (50.0, 99.0, 99.9)
ONE_IN = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
GOAL = "≤ 1.1 ×"
COLUMNS = (
    *("load", "while", "calls", "failed", "p50 ms", "p99 ms", "p99.9 ms", "max ms"),
    *("p99 of steady", "low", "high", "p99.9 of steady", "goal of p99"),
)
Times = npt.NDArray[Any]
Windows = Mapping[tuple[float, str], list[Times]]


@dataclass
class Trainer:
    """`ftrie train` from standard input, fed the same rows over and over."""

    folder: Path
    url: str

    def prepare(self) -> None:
        """Write its spec and its log."""
        (self.folder / "shop.toml").write_text(shop.spec_text())
        draw = np.random.default_rng(21)
        columns = [[*("01"[each] for each in (draw.random(LOG_ROWS) < 0.1).astype(int))]]
        for name, size in shop.FIELDS.items():
            columns.append([f"{name}{value}" for value in draw.integers(size, size=LOG_ROWS).tolist()])
        rows = "\n".join(map("\t".join, zip(*columns, strict=True)))
        (self.folder / "rows.tsv").write_text(rows + "\n")

    @contextmanager
    def running(self, store: Store) -> Iterator[None]:
        """While the block runs, it learns and publishes; entered once its first version is active."""
        before = store.model(shop.NAME).active_or_fail()
        flags = [
            "--activate",
            "--publish-every",
            f"{PUBLISH_EVERY_S}s",
            "--snapshot-every",
            str(BETWEEN_SNAPSHOTS),
        ]
        words = ["train", str(self.folder / "shop.toml"), "-", "--format", "tsv", "--store", self.url]
        command = [sys.executable, "-m", "ftrie", *words, *flags, "--init-from", "active"]
        with (self.folder / "trainer.log").open("wb") as out:
            trainer = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=out, preexec_fn=_as_by_a_user
            )
            feeder = threading.Thread(target=self._feed, args=(trainer,), daemon=True)
            feeder.start()
            try:
                self._wait(trainer, store, before)
                yield
                if trainer.poll() is not None:
                    raise RuntimeError(f"the trainer ended:\n{self._said()}")
            finally:
                trainer.kill()
                trainer.wait()
                feeder.join()

    def _feed(self, trainer: subprocess.Popen[bytes]) -> None:
        assert trainer.stdin is not None
        rows = (self.folder / "rows.tsv").read_bytes()
        with suppress(BrokenPipeError):
            trainer.stdin.write("\t".join(["click", *shop.FIELDS]).encode() + b"\n")
            while True:
                trainer.stdin.write(rows)

    def _wait(self, trainer: subprocess.Popen[bytes], store: Store, before: int) -> None:
        until = time.monotonic() + TRAINER_STARTS_S
        while store.model(shop.NAME).active_or_fail() == before:
            if trainer.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the trainer published nothing:\n{self._said()}")
            time.sleep(0.05)

    def _said(self) -> str:
        return (self.folder / "trainer.log").read_text()[-4000:]


def _as_by_a_user() -> None:
    """All cores and the usual priority, which this process does not have."""
    os.sched_setaffinity(0, ALL_CORES)
    os.setpriority(os.PRIO_PROCESS, 0, 0)


@dataclass
class Tails:
    """One server under load; every window that was measured."""

    address: str
    store: Store
    bodies: Path
    publisher: Publisher
    trainer: Trainer
    seconds: float

    def round(self, number: int, found: dict[tuple[float, str], list[Times]]) -> float:
        """Measure every condition at every share of the capacity, which is returned in calls/s."""
        capacity = max(call(self.address, self.bodies, CAPACITY_CALLS).calls_per_second for _ in range(2))
        turned = CONDITIONS[number % len(CONDITIONS) :] + CONDITIONS[: number % len(CONDITIONS)]
        for share in SHARES:
            for kind in turned:
                found[share, kind].append(self.window(kind, share * capacity))
        return capacity

    def window(self, kind: str, rate: float) -> Times:
        """One window: int64[calls, 2] as open_load writes them."""
        if kind in (DELTAS, BOTH):
            self.publisher.prepare(kind, self.seconds)
        time.sleep(SETTLED_S)
        beside = self.trainer.running(self.store) if kind == TRAINER else nullcontext()
        times = self.bodies.with_name("times")
        with beside, load(self.address, self.bodies, rate, self.seconds, times) as running:
            if kind in (DELTAS, BOTH):
                self.publisher.window(kind, self.seconds)
            out = running.communicate()[0]
        answer = json.loads(out)
        if kind == TRAINER:
            self.publisher.restart()
        found = np.frombuffer(times.read_bytes(), np.int64).reshape(-1, 2)
        lost = int(answer["calls"]) - len(found)
        if lost:
            raise RuntimeError(f"{lost} calls were not answered within 10 s while {kind}")
        return found[found[:, 0] >= found[:, 0].min() + int(FIRST_S * 1e9)]


def milliseconds(times: Times) -> npt.NDArray[np.float64]:
    """Of the calls that were answered."""
    answered: npt.NDArray[np.float64] = times[times[:, 1] >= 0, 1] / 1e6
    return answered


def rows(found: Windows) -> list[list[object]]:
    """The table: medians of the rounds; ratios round by round."""
    table: list[list[object]] = []
    for (share, kind), windows in found.items():
        calls = sum(map(len, windows))
        ms = [milliseconds(window) for window in windows]
        quantiles = np.array([np.percentile(each, QUANTILES) for each in ms])
        steady = np.array([np.percentile(milliseconds(each), QUANTILES) for each in found[share, STEADY]])
        _, p99, p999 = (Spread.of(each) for each in (quantiles / steady).T.tolist())
        shown = [f"{value:.2f}" for value in np.median(quantiles, axis=0)]
        most = max(float(each.max()) for each in ms)
        ratios = [f"{value:.2f} ×" for value in (p99.median, p99.low, p99.high, p999.median)]
        goal = "" if kind == STEADY else GOAL
        counts = [calls, calls - sum(map(len, ms))]
        table.append([f"{share:.0%}", kind, *counts, *shown, f"{most:.1f}", *ratios, goal])
    return table


def picture(found: Windows) -> str:
    """By load, how slow one call in N is; and the ratios at p99 with the lowest and highest round."""
    charts = []
    for share in SHARES:
        points = []
        for kind in CONDITIONS:
            ms = np.concatenate([milliseconds(window) for window in found[share, kind]])
            points += [
                {"one in": number, "ms": float(np.percentile(ms, 100 - 100 / number)), "series": kind}
                for number in ONE_IN
                if len(ms) >= 10 * number
            ]
        titles = {"x_title": f"one call in … at {share:.0%} of capacity", "y_title": "takes at least, ms"}
        charts.append(
            lines(points, x="one in", y="ms", series=CONDITIONS, x_axis="log", y_log=True, **titles)
        )
    ratios = []
    for share in SHARES:
        steady = [np.percentile(milliseconds(each), 99) for each in found[share, STEADY]]
        for kind in CONDITIONS[1:]:
            p99 = [np.percentile(milliseconds(each), 99) for each in found[share, kind]]
            spread = Spread.of([float(a / b) for a, b in zip(p99, steady, strict=True)])
            ratios.append(
                {"name": kind, "value": spread.median, "low": spread.low, "high": spread.high}
                | {"series": f"{share:.0%} of capacity"}
            )
    series = [f"{share:.0%} of capacity" for share in SHARES]
    charts.append(
        intervals(ratios, value_title="p99 against that while nothing arrives", series=series, reference=1.0)
    )
    return stacked_svg(charts)


def measured(
    address: str, store: Store, folder: Path, rounds: int, seconds: float
) -> tuple[Windows, Sequence[float], Publisher]:
    """All windows, by share and condition, and each round's capacity in calls/s."""
    artefact = shop.artefact()
    found: dict[tuple[float, str], list[Times]] = defaultdict(list)
    for share in SHARES:
        for kind in CONDITIONS:
            found[share, kind] = []
    trainer = Trainer(folder, f"embedded:{folder}/store")
    trainer.prepare()
    with Client(address) as client:
        changes = list(deltas(artefact, CHAIN, CHANGED, new_keys))
        publisher = Publisher(store, client, artefact, changes, client.rank(candidates=["item-1"]).version)
        publisher.delta()  # the first one makes the second buffer
        publisher.restart()
        tails = Tails(address, store, folder / "bodies", publisher, trainer, seconds)
        with trainer.running(store):
            pass  # compiles its kernels
        publisher.restart()
        publisher.visible_s = {kind: [] for kind in publisher.visible_s}
        capacities = [tails.round(number, found) for number in range(rounds)]
    return found, capacities, publisher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one window")
    parser.add_argument("--picture", type=Path, help="draw the result as SVG")
    arguments = parser.parse_args()
    if arguments.picture:
        require_charts()
    with tempfile.TemporaryDirectory(prefix="ftrie-") as name:
        folder = Path(name)
        asked = (framed(request(number, CANDIDATES, inline=True)) for number in range(REQUESTS))
        (folder / "bodies").write_bytes(b"".join(asked))
        url = f"embedded:{folder}/store"
        with Store.open(url) as store:
            fill(store, artefact=shop.artefact())
            with served(shop.NAME, "--store", url) as server:
                pin(os.getpid(), LOAD_CORE)
                os.nice(NICE)
                found, capacities, publisher = measured(
                    server.address, store, folder, arguments.rounds, arguments.seconds
                )
                pin(os.getpid(), *ALL_CORES)
    capacity = Spread.of(capacities)
    visible = Spread.of(publisher.visible_s["snapshot"])
    title = (
        f"Open load, {CANDIDATES} candidates, {shop.KEYS:,} keys, {CHANGED + NEW:,} of them in a delta; "
        f"{arguments.rounds} rounds of {arguments.seconds:g} s a window; capacity {capacity.median:,.0f} calls/s "
        f"({capacity.low:,.0f} to {capacity.high:,.0f}); a snapshot answers after {visible.median:.2f} s"
    )
    report("tails", title, COLUMNS, rows(found))
    if arguments.picture:
        write_whole(arguments.picture, picture(found).encode())


if __name__ == "__main__":
    main()
