"""docs/training_metrics.md against the code: every field of every line of a metrics file, and the numbers it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.learn import collisions
from trainer.learn.metrics import figures, metrics, records, regret
from trainer.learn.metrics import slices as watcher

PAGE = (Path(__file__).resolve().parents[2] / "docs/training_metrics.md").read_text("utf-8")
RECORDS = {
    "header": records.Header,
    "window": records.Window,
    "detail": records.Detail,
    "regret": records.Regret,
    "end": records.End,
    "collisions": collisions.Collisions,
    "group": records.SliceMetrics,
    "figures": records.VariantMetrics,
    "difference": records.Difference,
    "bin": records.Bin,
    "point": records.RegretPoint,
}


def rows_of(heading: str) -> list[list[str]]:
    """The table below a heading: its cells, without the head."""
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("heading", RECORDS)
def test_a_record_is_documented_with_exactly_its_fields(heading):
    fields = RECORDS[heading].model_fields
    assert [row[0].strip("`") for row in rows_of(heading)] == list(fields)
    for (name, says), field in zip(rows_of(heading), fields.values(), strict=True):
        if name in ("`kind`", "`format`"):
            assert says == f'`"{field.default}"`'


def test_no_heading_lacks_a_record():
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == list(RECORDS)


def test_documented_numbers_are_those_of_the_code():
    assert f"{metrics.AUC_BUCKETS} buckets for all rows, {watcher.SLICE_BUCKETS} for slices" in PAGE
    assert f"up to {regret.MOST_KEYS:,} keys of examples" in PAGE
    assert f"at most {regret.TOLERANCE:g} times" in PAGE
    assert f"the first {watcher.SLICE_VALUES} values" in PAGE
    assert f"up to {figures.RELIABILITY_BINS} bins" in PAGE
    assert dict(rows_of("header"))["`version`"] == str(records.FORMAT_VERSION)
    assert f"{metrics.AUC_BUCKETS * 2 * 8 // 1024} KiB a variant" in PAGE
    assert f"{watcher.SLICE_BUCKETS * 2 * 8 // 1024} KiB for each variant and value" in PAGE


def test_the_example_in_the_documents_is_a_report():
    pictures = Path(__file__).resolve().parents[2] / "docs/images/report.svg"
    text = pictures.read_text("utf-8")
    assert pictures.stat().st_size < 100_000
    assert all(
        name in text for name in ("Log-loss", "AUC", "Calibration", "device: calibration", "age*category=")
    )
