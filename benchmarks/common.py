"""What every benchmark shares: the machine's name, medians of alternating rounds, tables, results files."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftrie.terminal import print_table

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


@dataclass(frozen=True)
class Spread:
    """The minimum, median and maximum of one measure over the rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), statistics.median(values), max(values))


def machine() -> str:
    """The processor, the cores this process may use, and the interpreter."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def alternate(contestants: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Run every contestant once a round, in turn, so that a drift of the machine's speed meets all of them.

    A contestant returns its measure. Returns every contestant's measures, round by round.
    """
    measures: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            measures[name].append(run())
    return measures


def ratio(measures: Mapping[str, Sequence[float]], name: str, base: str) -> Spread:
    """The ratio of two contestants, round by round."""
    return Spread.of([a / b for a, b in zip(measures[name], measures[base], strict=True)])


def click_log(name: str) -> Path | None:
    """A real click log in the folder FTRIE_TEST_DATA, where the tests look for them too; None where it is missing."""
    folder = os.environ.get("FTRIE_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(folder) / name
    return path if path.exists() else None


def report(name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a benchmark's table and write it to results/NAME.json with the machine and the day."""
    print_table(columns, rows, title=f"{title}\n{machine()}")
    print()
    RESULTS.mkdir(exist_ok=True)
    document = {
        "benchmark": name,
        "title": title,
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
