"""Checkpoints written by ftrie 0.1 before the code was regrouped resume bit for bit.

`data/train` and `data/trainer` each hold a spec, an input, and the state that a run left halfway through it. The
digests are those of the artefact that the same release made of the whole input in one run.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
from pathlib import Path

import pytest

from ftrie.cli import run

DATA = Path(__file__).parent / "data"
TRAIN = "train spec.toml - --format csv --checkpoint state --resume --window 100 --save model.arrow"
TRAINER = (
    "trainer spec.toml --from events.jsonl --checkpoint state --once --no-publish --store embedded:store "
    "--save model.arrow"
)


@pytest.mark.parametrize(
    ("name", "command", "says", "digest"),
    [
        # Its learner is one that nothing else compiles.
        pytest.param(
            *("train", TRAIN, ["145 rows learned"]),
            "bc1bb4cb85f40cb2ada94427e5bd67962b41a3f420a41b753fe7692970acf06b",
            marks=pytest.mark.slow,
        ),
        # The model, its open join windows, its offset in the events file and its counts.
        (
            *("trainer", TRAINER, ["229 examples learned", "506 examples"]),
            "f6878fadb491a0214d6f056f7bcf7fe4fbd5945bc3c131884e51831e41fcef5f",
        ),
    ],
)
def test_a_run_resumes_from_an_earlier_release(tmp_path, monkeypatch, capsys, name, command, says, digest):
    shutil.copytree(DATA / name, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    monkeypatch.chdir(tmp_path)
    with (tmp_path / ("log.csv" if name == "train" else "spec.toml")).open("rb") as file:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file}))
        assert run(command.split()) == 0
    said = capsys.readouterr().err
    assert all(text in said for text in says)
    assert hashlib.sha256((tmp_path / "model.arrow").read_bytes()).hexdigest() == digest
