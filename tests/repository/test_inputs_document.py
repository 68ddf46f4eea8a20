"""docs/inputs.md against the code: formats, extensions, and the categories of rejects."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.logs.reader import BATCH_BYTES, EVENTS, EXTENSIONS, FORMATS
from trainer.logs.sparse import REASONS
from trainer.logs.streams import MAX_ROW_BYTES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "inputs.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """The body of the first table below a heading, cell by cell."""
    table = re.findall(
        r"^\|(.+)\|$", PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0], re.MULTILINE
    )
    return [[cell.strip() for cell in line.split("|")] for line in table[2:]]


def test_every_format_and_extension_is_listed() -> None:
    listed = {name.strip("`"): extensions.replace("`", "").split() for name, extensions, _ in rows("Inputs")}
    assert listed.pop(EVENTS) == [".jsonl"]
    assert tuple(listed) == FORMATS
    assert {ext: name for name, extensions in listed.items() for ext in extensions} == EXTENSIONS


def test_every_category_of_rejects_is_listed() -> None:
    listed = {name.strip("`") for name, _, _ in rows("Rows that cannot be read")}
    sources = (ROOT / "trainer" / "logs").glob("*.py")
    code = "\n".join(path.read_text("utf-8") for path in sources)
    raised = set(re.findall(r"""(?:BadRow\(|reason = )f?["']([^:"']+):""", code))
    raised |= {reason("", 0).partition(":")[0] for reason in REASONS.values()}
    assert raised == listed


def test_sizes_are_those_of_the_code() -> None:
    assert f"a block ({BATCH_BYTES >> 20} MiB)" in PAGE
    assert re.search(rf"A row may be up to {MAX_ROW_BYTES >> 20} MiB\s+long", PAGE)
