"""One worker against two on the same cores: calls/s, and how many cores server and load took of it.

    python -m benchmarks.workers

The benchmark pins nothing; with --pin the server keeps each worker on one core. The load is several h2load, which share
the cores with the server: what they take, two workers lack.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import h2load
from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.processes import ALL_CORES, Running, pin, served
from benchmarks.rank_requests import fill, framed, request
from model_store.store import Store

NEEDS = ("h2load",)
CASES = {"1": (1, ()), "2": (2, ()), "1, --pin": (1, ("--pin",)), "2, --pin": (2, ("--pin",))}
CANDIDATES, BODIES, SECONDS = 200, 2, 4
GOAL = {"2": "≥ 1.7 ×"}
COLUMNS = (
    "workers",
    "calls/s",
    "low",
    "high",
    "times one",
    "goal",
    "cores of the server",
    "cores of the load",
)


class Measured:
    """A server under load, and what each run of it cost."""

    def __init__(self, server: Running, bodies: list[Path]) -> None:
        self._server = server
        self._bodies = bodies
        self.server_cores: list[float] = []
        self.load_cores: list[float] = []

    def __call__(self) -> float:
        """Calls a second of one run."""
        before = self._server.cpu_s()
        load = h2load.run(self._server.address, self._bodies, SECONDS)
        self.server_cores.append((self._server.cpu_s() - before) / load.seconds)
        self.load_cores.append(load.cpu_s / load.seconds)
        return load.calls_per_second


def rows(runs: dict[str, Measured], measures: dict[str, list[float]]) -> list[list[object]]:
    """The table."""
    table: list[list[object]] = []
    for name in CASES:
        speed, times = Spread.of(measures[name]), ratio(measures, name, "1")
        cores = [f"{Spread.of(used).median:.2f}" for used in (runs[name].server_cores, runs[name].load_cores)]
        speeds = [round(value) for value in (speed.median, speed.low, speed.high)]
        table.append([name, *speeds, f"{times.median:.2f}", GOAL.get(name, ""), *cores])
    return table


def main() -> None:
    if not h2load.there():
        return
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        bodies = [Path(folder) / f"body-{number}" for number in range(BODIES)]
        for number, path in enumerate(bodies):
            path.write_bytes(framed(request(number, CANDIDATES, inline=True)))
        with Store.open(url) as store:
            fill(store)
            pin(store.client.info("server")["process_id"], *ALL_CORES)
            with ExitStack() as running:
                servers = {
                    name: running.enter_context(
                        served(shop.NAME, "--store", url, *flags, workers=workers, pinned=False)
                    )
                    for name, (workers, flags) in CASES.items()
                }
                runs = {name: Measured(server, bodies) for name, server in servers.items()}
                contestants: dict[str, Callable[[], float]] = dict(runs)
                alternate(contestants, 1)
                for run in runs.values():
                    run.server_cores.clear()
                    run.load_cores.clear()
                measures = alternate(contestants)
    title = (
        f"{CANDIDATES} candidates, features inline, top 10, on {len(ALL_CORES)} cores; {BODIES} h2load of "
        f"{h2load.CONNECTIONS} connections; medians of {ROUNDS} alternating rounds"
    )
    report("workers", title, COLUMNS, rows(runs, measures))


if __name__ == "__main__":
    main()
