"""What `ftrie train` says at its end: why rows were rejected, and how much memory a model of some size takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.cli import run

SPEC = '[model]\nname = "m"\n[input]\nlabel = "label"\n'


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "m.toml").write_text(SPEC)
    return str(tmp_path / "m.toml")


def test_rejected_rows_are_told_by_their_reasons(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.libsvm"
    log.write_text("1 1:1\n0 2:1\n2 1:1\n1 a:1\n3 1:1\n")
    assert run(["train", spec, str(log)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "3 rejected; 3 keys" in first
    assert second == "rejected for: bad label (2), malformed feature (1)"
    assert run(["train", spec, str(log), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rejected"], answer["reasons"]) == (3, {"bad label": 2, "malformed feature": 1})


def test_more_than_five_reasons_are_cut(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.vw"
    bad = ["2 |a b", "|a b", "1", "1 1 1 1 |a b", "1 |a :1", "1 |a b:x", "1 1 2 |a b"]
    log.write_text("1 |a b\n" + "\n".join(bad))
    assert run(["train", spec, str(log)]) == 0
    reasons = capsys.readouterr().out.splitlines()[1]
    assert reasons.endswith(", and 1 more")


def test_memory_is_told_of_a_model_of_some_size(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.libsvm").write_text("1 1:1\n")
    (tmp_path / "large.libsvm").write_text("1 " + " ".join(f"{n}:1" for n in range(20_000)))
    assert run(["train", spec, str(tmp_path / "small.libsvm")]) == 0
    assert "bytes a key" not in capsys.readouterr().out
    assert run(["train", spec, str(tmp_path / "large.libsvm")]) == 0
    assert "table 2.1 MB, 104.9 bytes a key" in capsys.readouterr().out
