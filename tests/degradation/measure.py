"""Runs these tests a few times and prints how long each recovery took: `python -m tests.degradation.measure`.

The seconds on docs/degradation.md come from here.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.degradation.recovered import NOTED

TIMES = 3


class Seconds:
    """A pytest plugin that collects what tests note."""

    def __init__(self) -> None:
        self.of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            name = report.nodeid.rpartition("::")[2]
            for what, seconds in report.user_properties:
                if what.startswith(NOTED):
                    self.of[name, what.removeprefix(NOTED).strip()].append(float(str(seconds)))


def main() -> int:
    """Print a line a recovery: the test, what was waited for, the median and the longest of all times."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    seconds = Seconds()
    for _ in range(times):
        failed = pytest.main([str(Path(__file__).parent), "-q", "-p", "no:cacheprovider"], [seconds])
        if failed:
            return int(failed)
    print(f"\n{'median':>7} {'longest':>7} s   of {times} runs")
    for (name, what), all_of in seconds.of.items():
        print(f"{statistics.median(all_of):7.2f} {max(all_of):7.2f}     {name}: {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
