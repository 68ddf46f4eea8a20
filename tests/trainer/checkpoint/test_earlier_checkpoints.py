"""Checkpoints written by ftrie 0.1 before the code was regrouped resume bit for bit.

`data/train` and `data/trainer` each hold a spec, an input, and the state that a run left halfway through it. The
digests are those of the artefact that the same release made of the whole input in one run.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parent / "data"
TRAINED = "bc1bb4cb85f40cb2ada94427e5bd67962b41a3f420a41b753fe7692970acf06b"
JOINED = "f6878fadb491a0214d6f056f7bcf7fe4fbd5945bc3c131884e51831e41fcef5f"


def unpacked(name: str, folder: Path) -> Path:
    """Copy data/NAME into the folder, decompressed."""
    for path in (DATA / name).rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(DATA / name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".gz":
                target.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            else:
                shutil.copy(path, target)
    return folder


def ftrie(folder: Path, *words: str, stdin: Path | None = None) -> str:
    """Run a command in the folder; return what it wrote to stderr."""
    command = [sys.executable, "-m", "ftrie", *words]
    sent = stdin.read_bytes() if stdin else b""
    done = subprocess.run(command, cwd=folder, input=sent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_training_run_resumes_from_an_earlier_release(tmp_path: Path) -> None:
    folder = unpacked("train", tmp_path)
    flags = ["--checkpoint", "state", "--resume", "--window", "100", "--save", "model.arrow"]
    said = ftrie(folder, "train", "spec.toml", "-", "--format", "csv", *flags, stdin=folder / "log.csv")
    assert "145 rows learned" in said
    assert sha256(folder / "model.arrow") == TRAINED


def test_a_trainer_resumes_from_an_earlier_release(tmp_path: Path) -> None:
    """Its model, its open join windows, its offset in the events file and its counts."""
    folder = unpacked("trainer", tmp_path)
    flags = ["--once", "--no-publish", "--store", "embedded:store", "--save", "model.arrow"]
    said = ftrie(folder, "trainer", "spec.toml", "--from", "events.jsonl", "--checkpoint", "state", *flags)
    assert "229 examples learned" in said
    assert "506 examples" in said
    assert sha256(folder / "model.arrow") == JOINED
