"""docs/degradation.md is a contract: each row has its test, each test in tests/degradation its row, metrics exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from server.telemetry.families import FAMILIES
from trainer.runs.metrics import FAMILIES as TRAINERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/degradation.md"
COLUMNS = 7


def rows() -> list[list[str]]:
    """The cells of each row of the page's tables of failures: those that end with a test."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if "test_" in row[-1]]


def written() -> list[str]:
    """Every test in tests/degradation, as the page names it: its file and its name."""
    return sorted(
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests/degradation").glob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    named = [name for row in rows() for name in re.findall(r"`(test_\w+::test_\w+)`", row[-1])]
    assert sorted(named) == written()


def test_every_row_says_everything() -> None:
    for row in rows():
        assert len(row) == COLUMNS, row
        assert all(row), row


def test_every_row_says_in_seconds_how_it_recovers() -> None:
    for row in rows():
        assert re.search(r"\d[\d.]* s\b", row[5]), row


def test_every_metric_of_the_page_is_one_that_a_server_or_a_trainer_serves() -> None:
    named = set(re.findall(r"`(ftrie_\w+?)(?:_count)?(?:\{[^`]*\})?`", PAGE.read_text("utf-8")))
    assert named
    assert named <= FAMILIES.keys() | {family.name for family in TRAINERS}
