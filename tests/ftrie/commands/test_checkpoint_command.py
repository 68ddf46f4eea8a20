"""`ftrie checkpoint`: what a folder holds, verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import CheckpointError
from tests.trainer.runs.runs import Training, rows, write_log, write_spec
from trainer.checkpoint.folder import checkpoints_in


@pytest.fixture
def training(tmp_path: Path) -> Training:
    training = Training(tmp_path / "t", write_spec(tmp_path / "shop.toml"))
    assert run(training.keeping([write_log(tmp_path / "a.csv", rows(500, 1))])) == 0
    return training


def test_checkpoints_are_listed_newest_first_with_what_was_read(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["checkpoint", str(training.checkpoints), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [answer["file"] for answer in answers] == [
        path.name for path in checkpoints_in(training.checkpoints)
    ]
    newest = answers[0]
    assert (newest["model"], newest["rows"], newest["rejected"], newest["damaged"]) == ("shop", 494, 6, None)
    (read,) = newest["read"]
    assert (Path(read["file"]).name, read["line"], read["finished"]) == ("a.csv", 502, True)
    assert sum(newest["arrays"].values()) < newest["bytes"]


def test_a_damaged_one_is_said_to_be_so(training: Training, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoints_in(training.checkpoints)[0]
    path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    assert run(["checkpoint", str(training.checkpoints)]) == 0
    shown = capsys.readouterr().out
    assert "is cut short" in shown and "yes" in shown
    for each in checkpoints_in(training.checkpoints):
        each.write_bytes(b"")
    assert run(["checkpoint", str(training.checkpoints)]) == CheckpointError.exit_code


def test_a_folder_without_checkpoints_is_an_error(tmp_path: Path) -> None:
    assert run(["checkpoint", str(tmp_path)]) == CheckpointError.exit_code
