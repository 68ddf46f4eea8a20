"""The reject log: order, counts, the file, and --strict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store.errors import InputError, OutputError
from trainer.logs.rejects import Reject, RejectLog

ARITY = Reject("log.csv", 7, "wrong number of columns: got 3, expected 5")
OTHER_ARITY = Reject("log.csv", 4, "wrong number of columns: got 1, expected 5")
LABEL = Reject("log.csv", 9, "label: got 'x', expected 1, 0, -1, true or false")


def test_rejects_are_counted_by_category_most_frequent_first() -> None:
    log = RejectLog()
    log.add_all([LABEL, ARITY, OTHER_ARITY])
    assert log.count == 3
    assert list(log.counts.items()) == [("wrong number of columns", 2), ("label", 1)]


def test_file_holds_one_json_object_a_reject_in_the_order_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    with RejectLog(path) as log:
        log.add_all([LABEL, OTHER_ARITY, ARITY])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["line"] for row in rows] == [4, 7, 9]
    assert rows[1] == {"file": "log.csv", "line": 7, "reason": "wrong number of columns: got 3, expected 5"}


def test_each_reject_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    log = RejectLog(path)
    log.add(ARITY)
    assert path.read_text().count("\n") == 1
    log.close()
    log.close()


def test_without_rejects_the_file_is_there_and_empty(tmp_path: Path) -> None:
    with RejectLog(tmp_path / "rejects.jsonl"):
        pass
    assert (tmp_path / "rejects.jsonl").read_bytes() == b""


def test_strict_stops_at_the_first_and_names_file_line_and_reason(tmp_path: Path) -> None:
    with (
        RejectLog(tmp_path / "rejects.jsonl", strict=True) as log,
        pytest.raises(InputError, match=r"^log\.csv:4: wrong number of columns: got 1, expected 5 \("),
    ):
        log.add_all([ARITY, OTHER_ARITY])
    assert log.count == 1


def test_file_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write the rejects to"):
        RejectLog(tmp_path / "no folder" / "rejects.jsonl")


def test_odd_text_stays_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    with RejectLog(path) as log:
        log.add(Reject("a\nb.csv", 1, "label: got '\u2028\x00é'"))
    (line,) = path.read_text().split("\n")[:-1]
    assert json.loads(line)["file"] == "a\nb.csv"


def test_a_full_disk_is_named_and_said_once() -> None:
    log = RejectLog(Path("/dev/full"))
    with pytest.raises(OutputError, match=r"cannot write the rejects to /dev/full: No space left on device"):
        log.add(Reject("clicks.csv", 2, "wrong number of columns: got 1, expected 2"))
    log.close()
