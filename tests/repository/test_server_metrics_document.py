"""docs/server_metrics.md is the table of server.telemetry.families. What a server serves is in test_operated."""

from __future__ import annotations

import re
from pathlib import Path

from server.telemetry.families import BUCKETS_MS, FAMILIES

PAGE = Path(__file__).resolve().parents[2] / "docs/server_metrics.md"
ROW = re.compile(r"^\| `(ftrie_\w+)` \| (\w+) \| (.+?) \| .+ \|$", re.MULTILINE)


def test_the_document_has_every_metric_with_its_kind_and_labels_in_order() -> None:
    rows = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text("utf-8"))
    ]
    assert rows == [(family.name, family.kind, family.labels) for family in FAMILIES.values()]


def test_the_document_has_the_bounds_of_the_histogram() -> None:
    (bounds,) = re.findall(r"buckets end at ([\d., ]+) ms", PAGE.read_text("utf-8"))
    assert tuple(float(bound) for bound in bounds.split(", ")) == BUCKETS_MS
