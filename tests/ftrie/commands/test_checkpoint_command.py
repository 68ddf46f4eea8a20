"""`ftrie checkpoint`: what a folder holds, verified."""

from __future__ import annotations

from pathlib import Path

from ftrie.cli import run
from model_store.errors import CheckpointError
from tests.ftrie.conftest import Ask, Say
from tests.trainer.runs.runs import Training, rows, write_log, write_spec
from trainer.checkpoint.folder import checkpoints_in


def test_checkpoints_are_listed_newest_first_with_what_was_read_and_what_is_damaged(
    tmp_path: Path, ask: Ask, say: Say
) -> None:
    training = Training(tmp_path / "t", write_spec(tmp_path / "shop.toml"))
    assert run(training.keeping([write_log(tmp_path / "a.csv", rows(500, 1))])) == 0
    answers = ask("checkpoint", training.checkpoints)
    paths = checkpoints_in(training.checkpoints)
    assert [answer["file"] for answer in answers] == [path.name for path in paths]
    newest = answers[0]
    assert (newest["model"], newest["rows"], newest["rejected"], newest["damaged"]) == ("shop", 494, 6, None)
    (read,) = newest["read"]
    assert (Path(read["file"]).name, read["line"], read["finished"]) == ("a.csv", 502, True)
    assert sum(newest["arrays"].values()) < newest["bytes"]

    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    code, shown, _ = say("checkpoint", training.checkpoints)
    assert code == 0 and "is cut short" in shown and "yes" in shown
    for each in paths:
        each.write_bytes(b"")
    assert say("checkpoint", training.checkpoints)[0] == CheckpointError.exit_code
    assert say("checkpoint", tmp_path)[0] == CheckpointError.exit_code  # which holds none
