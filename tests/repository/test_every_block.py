"""Every fenced block of README.md and docs/ is run, parsed, or says in a comment which test covers it or why none can.

Commands and Python are run by test_typed_commands.py, the tutorials' cells by test_tutorials.py; specs and JSON are
parsed here. A block in the language `text` is a drawing, a layout or a formula, and may hold no command.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from model_store.spec.spec import parse_spec
from tests.repository.typed import Fence, blocks_of, fences_of

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted(f"docs/tutorials/{path.name}" for path in (ROOT / "docs/tutorials").glob("*.md"))
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
FENCES = [fence for page in PAGES for fence in fences_of(page, (ROOT / page).read_text("utf-8"))]
RUN = {str(block) for page in PAGES for block in blocks_of(page, (ROOT / page).read_text("utf-8"))}
# What a fragment of a spec is completed with; its own tables come before these.
REST: dict[str, dict[str, Any]] = {
    "model": {"name": "ads"},
    "input": {"label": "click", "timestamp": "ts", "cookie": "cookie", "item": "item"},
    "fields": {"device": {}, "hour": {}, "device_id": {}, "ad_id": {}, "user": {}, "ad": {}},
}


def kind(fence: Fence) -> str:
    """How a block is covered; "" where it is not."""
    if fence.said("not run"):
        return "not run"
    if fence.said("run by"):
        return "run by"
    if fence.page in TUTORIALS:
        return {"python": "tutorial", "bash": "tutorial", "text": "text"}.get(fence.language, "")
    if str(fence) in RUN:
        return "run"
    if ("output", "") in fence.comments:
        return "output"
    return fence.language if fence.language in ("toml", "json", "text") else ""


def of_kind(name: str) -> list[Fence]:
    return [fence for fence in FENCES if kind(fence) == name]


def test_every_block_is_covered() -> None:
    assert [str(fence) for fence in FENCES if not kind(fence)] == [], (
        "neither run nor parsed: give it a language, or say in a comment `run by: tests/…` or `not run: REASON`"
    )


def test_a_drawing_holds_no_commands() -> None:
    assert [str(fence) for fence in FENCES if kind(fence) == "text" and fence.has_commands] == []


def test_an_output_stands_below_the_python_that_prints_it() -> None:
    before = dict(zip(FENCES[1:], FENCES, strict=False))
    for fence in FENCES:
        if kind(fence) == "output":
            assert before[fence].language == "python" and before[fence].page == fence.page, fence


def test_what_a_block_names_or_holds_is_valid() -> None:
    """A test that runs it exists, a spec or JSON can be read."""
    for fence in of_kind("run by"):
        for path in fence.said("run by"):
            assert path.startswith("tests/") and (ROOT / path).is_file(), fence
    for fence in of_kind("json"):
        assert isinstance(json.loads("\n".join(fence.body)), dict), fence


@pytest.mark.parametrize("fence", of_kind("toml"), ids=str)
def test_a_spec_is_valid(fence: Fence) -> None:
    given = tomllib.loads("\n".join(fence.body))
    whole = {**given, **{name: {**rest, **given.get(name, {})} for name, rest in REST.items()}}
    assert {*given} <= {*type(parse_spec(_toml(whole))).model_fields}


def _toml(value: dict[str, Any]) -> str:
    """A spec as TOML: a table for each section, inline below it."""
    lines = []
    for name, section in value.items():
        for part in section if isinstance(section, list) else [section]:
            lines.append(f"[[{name}]]" if isinstance(section, list) else f"[{name}]")
            lines.extend(f"{json.dumps(key)} = {_inline(each)}" for key, each in part.items())
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)
