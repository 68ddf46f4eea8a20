"""Writes docs/numbers.md from numbers_page.md and benchmarks/results/*.json: `python -m benchmarks.numbers`.

The words are in numbers_page.md, with `<!-- NAME -->` where the table of results/NAME.json goes. Nothing is measured
here; a test holds the page to both.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks import common
from model_store.errors import shown

PAGE = Path(__file__).resolve().parents[1] / "docs" / "numbers.md"
WORDS = Path(__file__).with_name("numbers_page.md")


def page() -> str:
    """The whole page."""
    return re.sub(r"<!-- (\w+) -->", lambda found: _table(found.group(1)), WORDS.read_text("utf-8"))


def _table(name: str) -> str:
    """A result as a table below the command, the machine and the day that made it."""
    path = common.RESULTS / f"{name}.json"
    command = (
        "train"
        if name == "variants"
        else re.sub("_(vw|pruned|links|cost|scaling|speed|loss|many|peers)$", "", name)
    )
    if not path.exists():
        return f"Not measured yet: `ftrie bench {command}`."
    result = json.loads(path.read_text("utf-8"))
    columns = list(result["rows"][0])
    lines = [
        f"`ftrie bench {command}`: {result['title']}. {result['machine']}, {result['date']}.",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(map(shown, row.values()))} |" for row in result["rows"]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
