"""The join: events a second through the kernel, rows a second out of the segments, bytes that a pending request costs.

Impressions of ten items come at a steady rate, three in ten are clicked within five minutes, and events are up to 0.2 s
out of order. The processor's time is measured, not the clock's. Nothing is read or parsed, and nothing learned.

    python -m benchmarks.join [--json]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import ROUNDS, Spread, report
from model_store.spec.sections import JoinSection
from trainer.events.events import CLICK, FEEDBACK, IMPRESSION, Merged
from trainer.events.join import Join, Joined
from trainer.events.waiting_rows import Segments

COLUMNS = (
    "what",
    "requests/s",
    "late_within",
    "pending",
    "remembered",
    "M/s",
    "low",
    "high",
    "bytes a request",
)
IMPRESSIONS = 1_000_000
ITEMS = 10
CLICKED = 0.3
DELAY_S = 300
JITTER_US = 200_000
BATCH = 20_000
TEXTS = 8


@dataclass(frozen=True)
class Load:
    """A stream of one rate, in batches as the merger makes them, and how long closed requests are remembered."""

    rate: int
    late_within: str

    def batches(self) -> list[Merged]:
        """Impressions and clicks, in the order in which they come."""
        return list(_batches(self.rate))


def main() -> None:
    Join(JoinSection()).push(next(_batches(100)))  # compiles
    loads = [Load(rate, within) for rate in (100, 2_000) for within in ("0s", "1h")]
    rows = [row for load in loads for row in _pushed(load)]
    rows.append(_gathered(loads[-1]))
    if "--json" in sys.argv:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        title = f"{IMPRESSIONS:,} impressions of {ITEMS} items, batches of {BATCH:,} events"
        report("join", title, COLUMNS, rows)


def _pushed(load: Load) -> Iterator[tuple[Any, ...]]:
    batches = load.batches()
    events = sum(map(len, batches))
    rates = []
    for _ in range(ROUNDS):
        join = Join(JoinSection(late_within=load.late_within))
        began = time.process_time()
        for merged in batches:
            join.push(merged)
        rates.append(events / (time.process_time() - began) / 1e6)
    counts = join.counts
    size = sum(array.nbytes for array in join.state().values()) / (counts.pending + counts.remembered)
    yield (
        "events pushed",
        load.rate,
        load.late_within,
        counts.pending,
        counts.remembered,
        *_shown(rates),
        round(size),
    )


def _gathered(load: Load) -> tuple[Any, ...]:
    """Rows of two numbers and TEXTS texts, from as many segments as are pending."""
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        for round_number in range(ROUNDS):
            segments = Segments(Path(folder) / str(round_number), 1 << 32)
            join, out = Join(JoinSection(late_within="0s")), list[Joined]()
            for merged in load.batches():
                segments.add(_columns(merged.items.size))
                out.append(join.push(merged))
            began, rows = time.process_time(), 0
            for joined in out:
                for _, columns in segments.gather(joined.segment, joined.row):
                    rows += len(columns["price"])
            rates.append(rows / (time.process_time() - began) / 1e6)
    return ("rows gathered", load.rate, "0s", join.counts.pending, 0, *_shown(rates), None)


def _columns(rows: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(rows)
    numbers = {name: pa.array(random.random(rows)) for name in ("price", "ctr")}
    words = pa.array([b"word-%d" % number for number in range(1000)])
    return numbers | {
        f"text_{index}": words.take(pa.array(random.integers(0, 1000, rows))) for index in range(TEXTS)
    }


def _batches(rate: int) -> Iterator[Merged]:
    random = np.random.default_rng(rate)
    shown_us = 10**15 + np.arange(IMPRESSIONS) * (1_000_000 // rate)
    requests = random.integers(1, 2**64, IMPRESSIONS, dtype=np.uint64)
    items = random.integers(1, 2**64, (IMPRESSIONS, ITEMS), dtype=np.uint64)
    clicked = np.flatnonzero(random.random(IMPRESSIONS) < CLICKED)
    of_item = items[clicked, random.integers(0, ITEMS, clicked.size)]
    clicked_us = shown_us[clicked] + random.integers(1_000_000, DELAY_S * 1_000_000, clicked.size)
    time_us = np.concatenate([shown_us, clicked_us])
    order = np.argsort(time_us + random.integers(0, JITTER_US, time_us.size), kind="stable")
    shown = order < IMPRESSIONS
    request, item = np.concatenate([requests, requests[clicked]]), np.concatenate([requests, of_item])
    hashes = items[order[shown]]
    for number, begin in enumerate(range(0, order.size, BATCH)):
        mine = order[begin : begin + BATCH]
        is_shown = shown[begin : begin + BATCH]
        rows = np.where(is_shown, ITEMS, 0).astype(np.int32)
        before = int(shown[:begin].sum())
        yield Merged(
            kind=np.where(is_shown, IMPRESSION, FEEDBACK).astype(np.uint8),
            time_us=time_us[mine],
            now_us=time_us[mine],
            request=request[mine],
            item=item[mine],
            what=np.full(mine.size, CLICK, np.uint8),
            segment=np.full(mine.size, number, np.int32),
            row=np.cumsum(rows, dtype=np.int64) - rows,
            rows=rows,
            items=hashes[before : before + int(is_shown.sum())].ravel(),
        )


def _shown(rates: list[float]) -> tuple[float, ...]:
    spread = Spread.of(rates)
    return tuple(round(rate, 2) for rate in (spread.median, spread.low, spread.high))


if __name__ == "__main__":
    main()
