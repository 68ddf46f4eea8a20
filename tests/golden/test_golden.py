"""Nothing that ftrie computes has changed: artefacts, reports, rejects, resumed checkpoints, answers, bit for bit.

A change that is meant is recorded by `python -m tests.golden.recording`, whose diff is then part of the commit. The
checkpoints are not made again: those written by an earlier version must resume.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import recording

pytestmark = pytest.mark.slow
RECORDED: dict[str, dict[str, Any]] = json.loads(recording.FILE.read_text("utf-8"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    # Through JSON, as the file was: a tuple is then a list.
    found = recording.record(Path(tmp_path_factory.mktemp("golden")), recording.CHECKPOINTS)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, names in RECORDED.items() for name in names]
)
def test_is_as_recorded(part: str, name: str, made: dict[str, dict[str, Any]]) -> None:
    assert made[part][name] == RECORDED[part][name]


def test_nothing_is_made_that_was_not_recorded(made: dict[str, dict[str, Any]]) -> None:
    assert {part: sorted(names) for part, names in made.items()} == {
        part: sorted(names) for part, names in RECORDED.items()
    }
