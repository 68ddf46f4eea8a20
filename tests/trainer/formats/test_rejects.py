"""The reject log: order, counts, the file, and --strict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store.errors import InputError, OutputError
from trainer.formats.rejects import Reject, RejectLog

ARITY, OTHER_ARITY = (
    Reject("log.csv", line, f"wrong number of columns: got {got}, expected 5")
    for line, got in ((7, 3), (4, 1))
)
LABEL = Reject("log.csv", 9, "label: got 'x', expected 1, 0, -1, true or false")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rejects.jsonl"


def test_rejects_are_counted_by_category_most_frequent_first() -> None:
    log = RejectLog()
    log.add_all([LABEL, ARITY, OTHER_ARITY])
    assert log.count == 3
    assert list(log.counts.items()) == [("wrong number of columns", 2), ("label", 1)]


def test_file_holds_one_json_object_a_reject_in_the_order_of_lines_at_once(path: Path) -> None:
    with RejectLog(path) as log:
        assert path.read_bytes() == b""
        log.add_all([LABEL, OTHER_ARITY, ARITY])
        log.add(Reject("a\nb.csv", 1, "label: got '\u2028\x00é'"))  # stays one line
        rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    log.close()
    assert [(row["file"], row["line"]) for row in rows] == [
        *(("log.csv", n) for n in (4, 7, 9)),
        ("a\nb.csv", 1),
    ]
    assert rows[1] == {"file": "log.csv", "line": 7, "reason": "wrong number of columns: got 3, expected 5"}


def test_strict_stops_at_the_first_and_names_file_line_and_reason(path: Path) -> None:
    said = r"^log\.csv:4: wrong number of columns: got 1, expected 5 \("
    with RejectLog(path, strict=True) as log, pytest.raises(InputError, match=said):
        log.add_all([ARITY, OTHER_ARITY])
    assert log.count == 1


def test_a_file_that_cannot_be_written_and_a_full_disk_are_named_and_said_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write the rejects to"):
        RejectLog(tmp_path / "no folder" / "rejects.jsonl")
    log = RejectLog(Path("/dev/full"))
    with pytest.raises(OutputError, match=r"cannot write the rejects to /dev/full: No space left on device"):
        log.add(ARITY)
    log.close()
