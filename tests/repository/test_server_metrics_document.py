"""docs/server_metrics.md is the table of server.telemetry.families. What a server serves is in test_operated."""

from __future__ import annotations

import re
from pathlib import Path

from server.telemetry.families import BUCKETS_MS, FAMILIES, FRESHNESS_S

PAGE = Path(__file__).resolve().parents[2] / "docs/server_metrics.md"
ROW = re.compile(r"^\| `(ftrie_\w+)` \| (\w+) \| (.+?) \| .+ \|$", re.MULTILINE)


def test_the_document_has_every_metric_with_its_kind_and_labels_in_order() -> None:
    rows = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text("utf-8"))
    ]
    assert rows == [(family.name, family.kind, family.labels) for family in FAMILIES.values()]


def test_the_document_has_the_bounds_of_the_histograms() -> None:
    (calls,) = re.findall(r"buckets of `ftrie_call_seconds` end at ([\d., ]+) ms", PAGE.read_text("utf-8"))
    (freshness,) = re.findall(r"those of `ftrie_freshness_seconds` at ([\d., ]+) s", PAGE.read_text("utf-8"))
    assert tuple(float(bound) for bound in calls.split(", ")) == BUCKETS_MS
    assert tuple(float(bound) for bound in freshness.split(", ")) == FRESHNESS_S
