"""Pages of docs/ against the code: metrics, statuses, records, formats, sources, sizes, and what each failure does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from model_store.errors import InputError, SourceUnavailable, StoreError
from model_store.spec.spec import ModelSpec
from server.errors import ANSWER_OF, INTERNAL
from server.serve import security
from server.serve.security import Guard, Refused
from tests.matrix import slow_except
from tests.repository.pages import ROOT, page, tables
from trainer.events.events import READ_BYTES, READ_EVENTS
from trainer.examples.requests import MOST_ROWS
from trainer.formats.batch import HEAD_BYTES
from trainer.formats.reader import BATCH_BYTES, EVENTS, FORMATS
from trainer.formats.sparse import REASONS
from trainer.formats.streams import MAX_ROW_BYTES
from trainer.learn import buckets
from trainer.learn.admission import cell_width, size_filter
from trainer.learn.eviction import SWEEP_ROWS
from trainer.learn.metrics import metrics, records, regret, tally
from trainer.sources import file_tracker, open_files, redis
from trainer.sources import kafka as kafka_client
from trainer.sources.open_sources import PREFIXES, open_sources


def code_of(*folders: str) -> str:
    return "\n".join(
        path.read_text("utf-8") for folder in folders for path in sorted((ROOT / folder).glob("*.py"))
    )


def test_every_failure_has_a_test_and_every_test_a_row_that_says_everything() -> None:
    lines = [line for line in page("degradation.md").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rows = [row for row in cells if "test_" in row[-1]]
    named = [name for row in rows for name in re.findall(r"`(test_\w+::test_\w+)`", row[-1])]
    assert sorted(named) == sorted(
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests/degradation").glob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )
    for row in rows:
        assert len(row) == 7 and all(row), row
        assert re.search(r"\d[\d.]* s\b", row[5]), f"how long until it recovers? {row}"
    families = set(re.findall(r"`(ftrie_\w+?)(?:_count)?(?:\{[^`]*\})?`", page("degradation.md")))
    assert families and families <= set(re.findall(r"^\| `(ftrie_\w+)` \|", page("metrics.md"), re.MULTILINE))


def test_protocol_has_a_row_for_every_answer() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z_]+(?:, [A-Z_]+)*) \|", page("protocol.md"), re.MULTILINE)
    refusals = [each for each in vars(security).values() if isinstance(each, Refused)]
    refusals.append(Guard(None, ["rank"])._forbidden)  # type: ignore[arg-type]
    answers = {(each.status.name, each.reason) for each in (*ANSWER_OF.values(), INTERNAL)}
    answers |= {(each.code.name, each.reason) for each in refusals} | {("RESOURCE_EXHAUSTED", "OVERLOADED")}
    assert {(status, reason) for status, all_ in rows for reason in all_.split(", ")} == answers


RECORDS = {
    "header": records.MetricsHeader,
    "window": records.MetricsWindow,
    "detail": records.Detail,
    "regret": records.Regret,
    "end": records.End,
    "collisions": buckets.Collisions,
    "group": records.SliceMetrics,
    "figures": records.VariantMetrics,
    "difference": records.DifferenceFromBase,
    "bin": records.Bin,
    "point": records.RegretPoint,
}


def test_a_record_of_training_metrics_is_documented_with_exactly_its_fields() -> None:
    text = page("metrics.md")
    assert re.findall(r"^#### (\w+)$", text, re.MULTILINE) == list(RECORDS)
    for heading, record in RECORDS.items():
        rows = tables("metrics.md", f"#### {heading}")[1:]
        assert [row[0] for row in rows] == list(record.model_fields)
        for name, says in rows:
            if name in ("kind", "format"):
                assert says == f'"{record.model_fields[name].default}"'
    assert dict(tables("metrics.md", "#### header")[1:])["version"] == str(records.FORMAT_VERSION)
    for says in (
        f"{metrics.AUC_BUCKETS} buckets for all rows, {tally.SLICE_BUCKETS} for slices",
        f"up to {regret.MOST_KEYS:,} keys of examples",
        f"at most {regret.TOLERANCE:g} times",
        f"the first {tally.SLICE_VALUES} values",
        f"up to {tally.RELIABILITY_BINS} bins",
        f"{metrics.AUC_BUCKETS * 2 * 8 // 1024} KiB a variant",
        f"{tally.SLICE_BUCKETS * 2 * 8 // 1024} KiB for each variant and value",
    ):
        assert says in text


def test_the_example_in_the_documents_is_a_report() -> None:
    picture = ROOT / "docs/images/report.svg"
    text = picture.read_text("utf-8")
    assert picture.stat().st_size < 100_000
    for name in ("Log-loss", "AUC", "Calibration", "device: calibration", "age*category="):
        assert name in text


FILTERS = [row for row in tables("memory.md") if row[0].isdigit() and row[1].startswith("0")]


def test_the_filters_of_the_page_are_of_every_size() -> None:
    assert len(FILTERS) == 12
    text = page("memory.md")
    assert "`count` = 2, 3 to 4, 5 to 16, 17 to 256" in text
    assert [cell_width(count) for count in (2, 3, 4, 5, 16, 17, 256)] == [0, 1, 1, 2, 2, 3, 3]
    assert f"every {SWEEP_ROWS:,}" in text and f"looked at every {SWEEP_ROWS:,} examples" in text
    assert f"up to {MOST_ROWS:,} of them" in text


@pytest.mark.parametrize("row", slow_except(FILTERS[::5], FILTERS), ids=lambda row: " ".join(row[:2]))
def test_the_documented_filters_are_the_filters(row: list[str]) -> None:
    count, wanted, probes, bits, *_ = row
    size = size_filter(1_000_000, int(count), float(wanted))
    assert (size.probes, round(8 * size.nbytes / 1_000_000, 1)) == (int(probes), float(bits))


def test_every_format_extension_and_category_of_rejects_of_inputs_is_listed() -> None:
    text = page("inputs.md")
    listed = {name: ends.replace("`", "").split() for name, ends, _ in tables("inputs.md", "## Inputs")[1:]}
    assert listed.pop(EVENTS) == [".jsonl"] and list(listed) == list(FORMATS)
    assert listed == {name: list(each.extensions) for name, each in FORMATS.items()}
    titles = ", ".join(each.title for each in FORMATS.values())
    assert f"Format of the log: {', '.join(FORMATS)}, or {EVENTS}" in page("commands.md")
    assert f"A log file ({titles})" in page("commands.md")
    *titles, last = (each.title for each in FORMATS.values())
    assert f"expected {', '.join(titles)} or {last} text" in re.sub(
        r'"\s*\n\s*f?"', "", code_of("trainer/formats")
    )
    raised = set(re.findall(r"""(?:BadRow\(|reason = )f?["']([^:"']+):""", code_of("trainer/formats")))
    raised |= {reason("", 0).partition(":")[0] for reason in REASONS.values()}
    assert raised == {name for name, *_ in tables("inputs.md", "## Rows that cannot be read")[1:]}
    assert f"a block ({BATCH_BYTES >> 20} MiB)" in text
    assert re.search(rf"A row may be up to {MAX_ROW_BYTES >> 20} MiB\s+long", text)


def sources(heading: str) -> list[list[str]]:
    """The body of the last table below a heading of "Sources", cell by cell; "" is its top."""
    part = page("events.md").partition("\n## Sources\n")[2]
    part = part.partition(f"\n### {heading}\n")[2] if heading else part
    lines = re.findall(r"^\|(.+)\|$", re.split(r"\n##+ ", part)[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


@pytest.mark.parametrize("heading", ["Streams", "Files", "Kafka"])
def test_what_is_said_of_sources_stands_in_the_code(heading: str) -> None:
    # Messages are put together from pieces, so whatever stands between quotes on following lines is one text.
    code = re.sub(r'"\s*\n\s*f?"', "", code_of("trainer/sources", "trainer/formats"))
    said = [text for *_, cell in sources(heading) for text in re.findall(r"`([^`]+)`", cell)]
    assert len(said) >= 4 and [text for text in said if text not in code] == []


def test_every_kind_of_name_is_understood(tmp_path: Path) -> None:
    spec = ModelSpec.model_validate({"model": {"name": "ads"}, "input": {"label": "click"}})
    names = [name for cell, _ in sources("") for name in re.findall(r"`([^`]+)`", cell)]
    schemes = {name.partition("…")[0] for name in names if "://" in name} | {"embedded:"}
    assert {*redis.STORES, "kafka://HOST:PORT,HOST:PORT/TOPIC?OPTION=VALUE"} == schemes
    assert {name.partition("#")[2] for name in names if "#" in name} == {"impressions", "clicks", "KEY"}
    for name in names:
        if "://" in name or name.startswith(("…", "embedded:", "store", "rows=")):
            continue
        [source] = open_sources([str(tmp_path / name)], spec, None)
        assert source.read() is None
    with pytest.raises(InputError):
        open_sources(["rows=PATH"], spec, None)
    with pytest.raises((StoreError, SourceUnavailable)):
        open_sources(["redis://127.0.0.1:1"], spec, None)


def test_kinds_endings_and_sizes_of_sources_are_those_of_the_code() -> None:
    text = page("events.md")
    assert all(f"`{kind}=NAME`" in text for kind in PREFIXES)
    endings = re.search(r"those ending in (.+?);", text)
    assert endings is not None
    assert tuple(re.findall(r"`([^`]+)`", endings[1])) == open_files._SKIPPED
    for says in (
        f"up to {READ_EVENTS:,} entries or about {READ_BYTES >> 20} MiB",
        f"its first {HEAD_BYTES >> 10} KiB",
        f"(up to {HEAD_BYTES >> 10} KiB",
        f"A line may be up to {MAX_ROW_BYTES >> 20} MiB long",
        f"after {file_tracker.GONE_S:.0f} s",
        f"last {open_files.KEPT_OPEN} files",
        f"within {kafka_client.ANSWER_S:.0f} s",
        "up to five digits",
    ):
        assert says in text
    assert open_files._NUMBERED_DIGITS == 5
