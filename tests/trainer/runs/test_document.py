"""docs/trainer.md against the code: each member of a line of status, and each metric."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from trainer.runs.metrics import FAMILIES
from trainer.runs.status import Status
from trainer.runs.stream import Counts

PAGE = (Path(__file__).resolve().parents[3] / "docs/trainer.md").read_text("utf-8")
METRIC = re.compile(r"^\| `(ftrie_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)


def test_a_line_of_status_is_documented_member_by_member() -> None:
    section = PAGE.split("\n## What it says\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [field.name for field in fields(Status)]


def test_every_count_is_named() -> None:
    (row,) = re.findall(r"^\| `counts` \|.*$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {"counts", *(field.name for field in fields(Counts))}


def test_the_metrics_are_documented_with_kind_and_labels_in_order() -> None:
    rows = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), says)
        for name, kind, labels, says in METRIC.findall(PAGE)
    ]
    assert rows == [tuple(family) for family in FAMILIES]
