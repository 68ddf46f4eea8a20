"""The whole loop on this machine at several rates of visits: what it keeps up with, how fresh it is, what it costs.

python -m benchmarks.loop

Store, trainer, two servers and traffic are the processes of `ftrie live`, not pinned; the traffic's own cost is on the
same cores and in the table.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.processes import Running
from ftrie.demo.live import Crew, Windows, bootstrap
from ftrie.demo.market import Market
from ftrie.demo.settings import LiveOptions

RATES = (100, 200, 400, 800, 1200, 1600)
WARM_S, MEASURED_S = 12.0, 20.0
"""The join's window is over after ten seconds: from then on as many negatives are learned as come."""
COLUMNS = (
    "visits/s asked", "answered", "examples/s", "p50 s", "p95 s", "max s", "lag s",
    "trainer", "2 servers", "store", "traffic", "all",
)  # fmt: skip


def main() -> None:
    rows = [_row(rate) for rate in RATES]
    title = (
        "Store, trainer, two servers and 16 visitors at once; 6 items a visit, a version each second; click to weight "
        f"in seconds, CPU in cores, over {MEASURED_S:.0f} s"
    )
    report("loop", title, COLUMNS, rows)


def _row(rate: int) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        options = LiveOptions(dir=Path(folder), rate=float(rate), change_at=1e6, frozen=0.0)
        windows = Windows()
        crew = Crew(options, windows.add)
        bootstrap(options, Market(options.seed), crew.store.start())
        try:
            crew.open(threading.Event())
            return _measured(rate, crew, windows)
        finally:
            crew.close(lambda _: None)


def _measured(rate: int, crew: Crew, windows: Windows) -> list[Any]:
    _let_go_on(crew, WARM_S)
    cpu, examples, second = _cpu_s(crew), crew.trainer.last_line["examples"], windows.second
    began = time.perf_counter()
    _let_go_on(crew, MEASURED_S)
    seconds = time.perf_counter() - began
    after = _cpu_s(crew)
    used = {name: (after[name] - cpu[name]) / seconds for name in cpu}
    line = crew.trainer.last_line
    some = [each for each in windows.all() if each["second"] > second]
    fresh = [each["freshness"] for each in some if each["freshness"]["n"]]
    answered = sum(
        tally["visits"] + tally["bots"] for each in some for tally in each["models"].values()
    ) / sum(each["seconds"] for each in some)
    lags = [lag["seconds"] or 0.0 for lag in line["lags"].values()]
    return [
        rate,
        round(answered, 1),
        round((line["examples"] - examples) / seconds),
        *(round(_mean(each[name] for each in fresh), 2) for name in ("p50", "p95")),
        round(max(each["max"] for each in fresh), 2),
        round(max(lags), 2),
        *(round(used[name], 2) for name in ("trainer", "servers", "store", "traffic")),
        round(sum(used.values()), 2),
    ]


def _let_go_on(crew: Crew, seconds: float) -> None:
    """Wait; a process that dies would make the figures worthless."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        dead = [process.name for process in crew.processes if process.pid is None]
        if dead or crew.store.pid is None:
            raise RuntimeError(f"{dead or 'the store'} ended: {[p.log_tail() for p in crew.processes]}")


def _cpu_s(crew: Crew) -> dict[str, float]:
    """CPU seconds so far, of each part with all its processes."""

    def of(*pids: int | None) -> float:
        return sum(Running("", pid).cpu_s() for pid in pids if pid is not None)

    return {
        "trainer": of(crew.trainer.pid),
        "servers": of(*(server.pid for server in crew.servers)),
        "store": of(crew.store.pid),
        "traffic": of(crew.traffic.pid),
    }


def _mean(values: Any) -> float:
    found: list[float] = list(values)
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
