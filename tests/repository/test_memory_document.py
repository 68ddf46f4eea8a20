"""docs/memory.md against the code: the size of filters, and how often keys are swept."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.examples.requests import MOST_ROWS
from trainer.learn.admission import cell_width, size_filter
from trainer.learn.eviction import SWEEP_ROWS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "memory.md").read_text("utf-8")
KEYS = 1_000_000


def test_the_documented_filters_are_the_filters() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d+ \| 0", line)]
    assert len(rows) == 12
    for count, wanted, probes, bits, *_ in rows:
        size = size_filter(KEYS, int(count), float(wanted))
        assert (size.probes, round(8 * size.nbytes / KEYS, 1)) == (int(probes), float(bits))


def test_the_documented_cells_are_the_cells() -> None:
    assert "`count` = 2, 3 to 4, 5 to 16, 17 to 256" in PAGE
    assert [cell_width(count) for count in (2, 3, 4, 5, 16, 17, 256)] == [0, 1, 1, 2, 2, 3, 3]


def test_the_documented_intervals_are_the_intervals() -> None:
    assert f"every {SWEEP_ROWS:,}" in PAGE and f"looked at every {SWEEP_ROWS:,} examples" in PAGE
    assert f"up to {MOST_ROWS:,} of them" in PAGE
