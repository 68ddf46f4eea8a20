"""docs/numbers.md against benchmarks/results: every figure on the page is one that was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import avazu, common, numbers
from model_store.spec.spec import load_spec


def test_the_page_is_what_the_results_make_it() -> None:
    assert numbers.PAGE.read_text("utf-8") == numbers.page(), "run `python -m benchmarks.numbers`"


def test_on_real_impressions_the_loss_is_still_no_worse_than_vowpal_wabbits(avazu_log: Path) -> None:
    rows = json.loads((common.RESULTS / "avazu.json").read_text("utf-8"))["rows"]
    theirs = min(row["log-loss"] for row in rows if row["trainer"] == "Vowpal Wabbit")
    recorded = min(row["log-loss"] for row in rows if row["trainer"] == "ftrie")
    now = min(point.logloss for point in avazu.ours(avazu_log, load_spec(avazu.SPEC)))
    assert now == pytest.approx(recorded, abs=1e-5) and now <= theirs
