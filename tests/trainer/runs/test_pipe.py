"""A run that learns from a pipe, stopped while the pipe brings nothing, and gone on with from the same stream."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.runs.runs import Training, rows, undisturbed, write_log, write_spec
from trainer.checkpoint.folder import checkpoints_in

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_stop_does_not_wait_for_the_pipe(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    log = write_log(tmp_path / "a.csv", rows(2000, 1))
    expected = undisturbed(tmp_path / "whole", spec, [log])
    training = Training(tmp_path / "resumed", spec)
    command = [sys.executable, "-m", "ftrie", *training.keeping([Path("-")])]
    data = log.read_bytes()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(data[: len(data) // 2 + 7])
        process.stdin.flush()
        while len(checkpoints_in(training.checkpoints)) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    subprocess.run(command, cwd=ROOT, input=data, check=True, capture_output=True)
    outcome = training.outcome()
    assert (outcome.model, outcome.report) == (expected.model, expected.report)
