"""docs/join.md against the code: every count, its balance, and the bytes of each record."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from model_store.spec.sections import JoinSection
from trainer.events.join import COUNTED, DUE, EARLY, ENTRY, Join, JoinCounts

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "join.md").read_text("utf-8")


def test_every_count_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `(\w+)` \| (?:impressions|requests|rows|feedback) \|", PAGE, re.MULTILINE)
    assert documented == list(COUNTED)


def test_the_documented_balance_is_the_one_that_the_counts_promise() -> None:
    balances = re.findall(r"^(\w+(?: \+ \w+)*) += (\w+(?: \+ \w+)*)$", PAGE, re.MULTILINE)
    assert len(balances) == 3
    promised = " ".join((JoinCounts.__doc__ or "").split())
    for total, parts in balances:
        assert f"{total} = {parts}" in promised


def test_the_documented_bytes_are_the_bytes() -> None:
    sizes = [int(size) for size in re.findall(r"^\| a .*? \| (\d+) \|", PAGE, re.MULTILINE)]
    row = np.dtype(np.uint64).itemsize + np.dtype(np.uint8).itemsize
    entry, due, early = ENTRY.itemsize, DUE.itemsize, EARLY.itemsize
    assert sizes == [entry + due, entry, row, early + due + entry]
    assert f"of ten items is {entry + due + 10 * row} bytes" in PAGE
    assert {name for name in Join(JoinSection()).state() if name not in ("head", "counts")} == {
        *("entries", "items", "flags", "due", "early", "early_due")
    }
