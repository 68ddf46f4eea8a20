"""Online metrics of 31 days and two variants in the embedded Valkey: memory, and the time to read all minutes.

python -m benchmarks.minutes
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.common import ROUNDS, Spread, machine
from model_store.store import Store
from model_store.versions.online_metrics import KEPT_S, OnlineMetrics, OnlineSums

MINUTES = KEPT_S // 60
FIRST = 29_000_000
BATCH = 1_000
UNMERGED = 100
VARIANTS = ("base", "plain")
MOST = (6_000, 60_000, 3_000, 120, 3 * 10**12, 600_000, 3_500, 31_000, 2_300_000, 230_000, 0, 3_000, 3_500)
"""The greatest sum of each kind in a minute, at a hundred requests a second."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        online = store.model("ads").online

        def used() -> int:
            return int(store.client.info("memory")["used_memory"])

        draw = random.Random(1)

        def drawn() -> OnlineSums:
            return OnlineSums(*(draw.randint(most // 2, most) for most in MOST))

        empty = used()
        for minute in range(UNMERGED):
            online.write({(minute, second, name): drawn() for second in range(60) for name in VARIANTS})
        print(f"of a version a second, not merged: {(used() - empty) / UNMERGED:.0f} bytes a minute")
        empty = used()
        for begin in range(FIRST, FIRST + MINUTES, BATCH):
            online.write(
                {
                    (minute, 1_000_000, variant): drawn()
                    for minute in range(begin, min(begin + BATCH, FIRST + MINUTES))
                    for variant in VARIANTS
                }
            )
        size = used() - empty
        print(
            f"{MINUTES:,} minutes of {len(VARIANTS)} variants: {size / 1e6:.0f} MB, {size / MINUTES:.0f} bytes a minute"
        )
        for read in (OnlineMetrics.read, OnlineMetrics.read_numbers):
            took = Spread.of([_seconds(read, online) for _ in range(ROUNDS)])
            print(f"{read.__name__}: {took.median:.2f} s ({took.low:.2f} to {took.high:.2f}) on {machine()}")


def _seconds(read: Callable[[OnlineMetrics, Sequence[int]], Iterator[Any]], online: OnlineMetrics) -> float:
    began = time.perf_counter()
    assert sum(1 for _ in read(online, range(FIRST, FIRST + MINUTES))) == MINUTES * len(VARIANTS)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
