"""The pages of docs/, and their tables, as the tests that hold them to the code read them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def tables(name: str, heading: str = "") -> list[list[str]]:
    """The cells of every table row below a heading, heads too, without backticks; "": of the whole page."""
    text = page(name)
    if heading:
        level = heading.partition(" ")[0]
        text = re.split(rf"^#{{1,{len(level)}}} ", text.split(f"\n{heading}\n", 1)[1], flags=re.MULTILINE)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in row] for row in rows]
