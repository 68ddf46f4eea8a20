"""docs/sources.md against the code: each name, each thing that is said, and the sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from model_store.errors import InputError, SourceUnavailable, StoreError
from model_store.spec.spec import ModelSpec
from trainer.events import kafka as kafka_client
from trainer.events import open_sources as opening
from trainer.events.events import READ_BYTES, READ_EVENTS
from trainer.events.open_sources import open_sources
from trainer.logs import file_tracker, open_files
from trainer.logs.batch import HEAD_BYTES
from trainer.logs.streams import MAX_ROW_BYTES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text("utf-8")
CODE = "\n".join(
    path.read_text("utf-8")
    for folder in ("trainer/events", "trainer/logs")
    for path in sorted((ROOT / folder).glob("*.py"))
)
SPEC = ModelSpec.model_validate({"model": {"name": "ads"}, "input": {"label": "click"}})


def table(heading: str) -> list[list[str]]:
    """The body of the last table below a heading, cell by cell; "" is the top of the page."""
    part = PAGE.partition(f"## {heading}\n")[2] if heading else PAGE
    lines = re.findall(r"^\|(.+)\|$", part.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


@pytest.mark.parametrize("heading", ["Streams", "Files", "Kafka"])
def test_what_is_said_stands_in_the_code(heading: str) -> None:
    # Messages are put together from pieces, so whatever stands between quotes on following lines is one text.
    code = re.sub(r'"\s*\n\s*f?"', "", CODE)
    said = [text for *_, cell in table(heading) for text in re.findall(r"`([^`]+)`", cell)]
    assert len(said) >= 4
    assert [text for text in said if text not in code] == []


def test_every_kind_of_name_is_understood(tmp_path: Path) -> None:
    names = [name for cell, _ in table("") for name in re.findall(r"`([^`]+)`", cell)]
    schemes = {name.partition("…")[0] for name in names if "://" in name} | {"embedded:"}
    assert {*opening._STORES, "kafka://HOST:PORT,HOST:PORT/TOPIC?OPTION=VALUE"} == schemes
    assert {name.partition("#")[2] for name in names if "#" in name} == {"impressions", "clicks", "KEY"}
    for name in names:
        if "://" in name or name.startswith(("…", "embedded:", "store", "rows=")):
            continue
        [source] = open_sources([str(tmp_path / name)], SPEC, None)
        assert source.read() is None
    with pytest.raises(InputError):
        open_sources(["rows=PATH"], SPEC, None)
    with pytest.raises((StoreError, SourceUnavailable)):
        open_sources(["redis://127.0.0.1:1"], SPEC, None)


def test_kinds_and_endings_are_those_of_the_code() -> None:
    assert all(f"`{kind}=NAME`" in PAGE for kind in opening.KINDS)
    endings = re.search(r"those ending in (.+?);", PAGE)
    assert endings is not None
    assert tuple(re.findall(r"`([^`]+)`", endings[1])) == open_files._PASSED_OVER


def test_sizes_are_those_of_the_code() -> None:
    assert f"up to {READ_EVENTS:,} entries or about {READ_BYTES >> 20} MiB" in PAGE
    assert f"its first {HEAD_BYTES >> 10} KiB" in PAGE and f"(up to {HEAD_BYTES >> 10} KiB" in PAGE
    assert f"A line may be up to {MAX_ROW_BYTES >> 20} MiB long" in PAGE
    assert f"after {file_tracker.GONE_S:.0f} s" in PAGE and f"last {open_files.KEPT_OPEN} files" in PAGE
    assert f"within {kafka_client.ANSWER_S:.0f} s" in PAGE
    assert open_files._NUMBERED_DIGITS == 5 and "up to five digits" in PAGE
