"""The tutorials of docs/tutorials/, executed as notebooks: every cell runs and shows what the text says."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupytext", reason="the extra `docs` is not installed")
pytest.importorskip("nbclient", reason="the extra `docs` is not installed")

import jupytext
import nbformat

from docs import notebooks
from tests.repository.typed import fences_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in (ROOT / "docs/tutorials").glob("*.md") if path.name != "README.md")
# Of each day, where neither the text nor what it decides depends on how many there are.
FEWER = 100_000
ROWS = {"3-serve": FEWER, "4-the-closed-loop": FEWER, "5-off-policy-evaluation": FEWER}
# What each page must show; the numbers are those of the simulated shop, in which books are for those above 50.
SHOWN = {
    "0-thirty-lines": [
        r"serving notebook version 1 on 127\.0\.0\.1:50051",
        r"\n?books-1 +0\.1\d+\n",
        r"age\*category",
    ],
    "1-your-own-log": [r"500000 rows", r"nothing found", r'label = "click"', r"ctr 0\.\d+"],
    "2-experiment": [r"plain minus base: \+0\.0\d+", r"base against plain: CTR \+\d+"],
    "3-serve": [r"12 items, 400 users", r"'ranking\.proto'", r"books-1 +0\.1\d+"],
    "4-the-closed-loop": [r"versions served: 1 to \d+", r"trainer 0 server 0"],
    "5-off-policy-evaluation": [r"shop\.arrow@base greedy", r"effective rows"],
}


def excerpt() -> tuple[list[str], list[str]]:
    """The README's excerpt of the first tutorial: lines of code, and of output; empty without one."""
    for code, output in pairwise(fences_of("README.md", (ROOT / "README.md").read_text("utf-8"))):
        if code.language == "python" and ("output", "") in output.comments:
            return [line for line in code.body if line], [*output.body]
    return [], []


def test_the_first_tutorial_has_at_most_thirty_lines_and_the_readme_s_excerpt_is_of_them() -> None:
    assert [page.stem for page in PAGES] == sorted(SHOWN)
    cells = jupytext.read(ROOT / "docs/tutorials/0-thirty-lines.md", fmt="md").cells
    lines = [line for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines() if line]
    assert len(lines) <= 30
    left = iter(lines)
    assert [line for line in excerpt()[0] if line not in left] == []  # in the same order


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_shows_what_it_says(page: Path, tmp_path: Path) -> None:
    notebooks.prepare(tmp_path, ROWS.get(page.stem, notebooks.ROWS))
    notebook = notebooks.execute(page, tmp_path)
    shown = notebooks.shown_text(notebook)
    assert [pattern for pattern in SHOWN[page.stem] if not re.search(pattern, shown)] == [], shown
    if page.stem == "0-thirty-lines":
        lines = iter(shown.splitlines())
        assert [line for line in excerpt()[1] if line not in lines] == []
    if page.stem == "3-serve" and notebooks.has_node():
        check_node(notebook.cells)
    (tmp_path / "site").mkdir()
    rendered = notebooks.render(notebook, page.stem, tmp_path / "site")
    assert len(list((tmp_path / "site").glob("*.png"))) == rendered.count(f"({page.stem}-")
    assert str(tmp_path) not in rendered and str(ROOT) not in rendered


def check_node(cells: list[Any]) -> None:
    """Node gets the order and the rates that Python gets."""
    printed = [
        "".join(output.get("text", "") for output in cell.outputs)
        for cell in cells
        if cell.cell_type == "code"
        and ("node rank.js" in cell.source or "ranking = client.rank" in cell.source)
    ]
    assert len(printed) == 2 and printed[0] == printed[1] and printed[0].count("\n") == 3


def test_of_an_overwritten_line_the_last_state_is_shown() -> None:
    notebook = jupytext.reads("# T\n\n```python\nprint()\n```\n", fmt="md")
    cell = notebook.cells[1]
    printed = "10 %\r100 %\n\x1b[1mdone\x1b[0m\n"
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)]
    assert notebooks.render(notebook, "t", Path()).endswith("```text\n100 %\ndone\n```\n")
