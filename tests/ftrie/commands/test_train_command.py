"""What `ftrie train` says at its end, and `ftrie checkpoint` of the states that it leaves."""

from __future__ import annotations

from pathlib import Path

from ftrie.cli import run
from model_store.errors import CheckpointError
from tests.ftrie.conftest import Ask, Say
from tests.trainer.runs.runs import Training, rows, write_log, write_spec
from trainer.checkpoint.folder import checkpoints_in


def test_a_training_tells_why_rows_were_rejected_and_the_memory_of_a_model_of_some_size(
    tmp_path: Path, ask: Ask, say: Say
) -> None:
    spec = tmp_path / "m.toml"
    spec.write_text('[model]\nname = "m"\n[input]\nlabel = "label"\n')
    log, many, large = tmp_path / "log.libsvm", tmp_path / "log.vw", tmp_path / "large.libsvm"
    log.write_text("1 1:1\n0 2:1\n2 1:1\n1 a:1\n3 1:1\n")
    first, second, *_ = say("train", spec, log)[1].splitlines()
    assert "3 rejected; 3 keys" in first and "bytes a key" not in first
    assert second == "rejected for: bad label (2), malformed feature (1)"
    answer = ask("train", spec, log)
    assert (answer["rejected"], answer["reasons"]) == (3, {"bad label": 2, "malformed feature": 1})

    bad = ["2 |a b", "|a b", "1", "1 1 1 1 |a b", "1 |a :1", "1 |a b:x", "1 1 2 |a b"]
    many.write_text("1 |a b\n" + "\n".join(bad))
    assert say("train", spec, many)[1].splitlines()[1].endswith(", and 1 more")  # of six reasons

    large.write_text("1 " + " ".join(f"{n}:1" for n in range(20_000)))
    assert "table 2.1 MB, 104.9 bytes a key" in say("train", spec, large)[1]


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
