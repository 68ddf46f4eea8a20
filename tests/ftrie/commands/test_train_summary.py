"""What `ftrie train` says at its end: why rows were rejected, and how much memory a model of some size takes."""

from __future__ import annotations

from pathlib import Path

from tests.ftrie.conftest import Ask, Say


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
