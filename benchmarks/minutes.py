"""Online metrics of 31 days and two variants in the embedded Valkey: memory, and the time to read all of them.

python -m benchmarks.minutes
"""

from __future__ import annotations

import tempfile
import time

import numpy as np

from benchmarks.common import ROUNDS, Spread, machine
from model_store.ratios import BUCKETS
from model_store.store import Store
from model_store.versions.online_metrics import HOUR, KEPT_S, MINUTES_KEPT_S, OnlineCell

NOW = 29_000_040
VARIANTS = ("base", "plain")
MOST = (100, 1_000, 50, 2, 50 * 10**9, 0, 50)
"""The greatest sum of each kind in a minute and bucket, at a hundred requests a second."""


def main() -> None:
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        online = store.model("ads").online
        first, empty = NOW - KEPT_S // 60, int(store.client.info("memory")["used_memory"])
        for hour in range(first // HOUR, NOW // HOUR):
            minutes = range(hour * HOUR, (hour + 1) * HOUR)
            online.write(
                {
                    (minute, variant): OnlineCell(
                        random.integers(0, np.array(MOST) + 1, (BUCKETS, len(MOST)))
                    )
                    for minute in minutes
                    for variant in VARIANTS
                }
            )
            online.add_up(range(hour, hour + 1))
            if minutes.stop <= NOW - MINUTES_KEPT_S // 60:  # as they expire
                store.client.delete(*(store.model("ads").keys.outcomes(minute) for minute in minutes))
        size = int(store.client.info("memory")["used_memory"]) - empty
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            cells = sum(1 for _ in online.read(first, NOW, NOW))
            took.append(time.perf_counter() - began)
        spread = Spread.of(took)
        print(
            f"{len(VARIANTS)} variants: {size / 1e6:.0f} MB; {cells:,} cells of 31 days read in "
            f"{spread.median:.2f} s ({spread.low:.2f} to {spread.high:.2f}) on {machine()}"
        )


if __name__ == "__main__":
    main()
