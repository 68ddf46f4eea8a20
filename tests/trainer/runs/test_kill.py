"""kill -9 at any moment, resume, go on: real processes, killed over and over, end as if they had never been."""

from __future__ import annotations

import json
import random
import resource
import signal
import time
from pathlib import Path

import pytest

from tests.trainer.runs.children import finish, start
from tests.trainer.runs.runs import Outcome, Training, rows, undisturbed, write_log, write_spec
from trainer.checkpoint.file import read_description
from trainer.checkpoint.folder import checkpoints_in


def logs_and_outcome(tmp_path: Path, name: str, count: int, *flags: str) -> tuple[Path, list[Path], Outcome]:
    spec = write_spec(tmp_path / "shop.toml", name)
    logs = [
        write_log(tmp_path / f"a.{kind}", rows(count, seed))
        for seed, kind in enumerate(("csv", "jsonl.gz", "parquet"), 1)
    ]
    return spec, logs, undisturbed(tmp_path / "whole", spec, logs, *flags)


def kill_at_random(tmp_path: Path, name: str, count: int, kills: int, seed: int, *more: str) -> None:
    """Kill a run at random moments and go on, run after run, until so many were killed."""
    spec, logs, expected = logs_and_outcome(tmp_path, name, count, *more)
    draw = random.Random(seed)
    training = Training(tmp_path / "timed", spec)
    began = time.monotonic()
    assert finish(training.keeping(logs, *more), tmp_path / "said") == 0
    whole_s = time.monotonic() - began
    assert training.outcome() == expected
    killed = runs = 0
    while killed < kills:
        runs += 1
        training = Training(tmp_path / str(runs), spec)
        while True:
            flags = [f"--threads={draw.randint(1, 3)}", *more]
            process = start(
                training.keeping(logs, *flags, batch_bytes=draw.randint(4000, 9000)), tmp_path / "said"
            )
            process.join(draw.uniform(0, 0.8 * whole_s))
            if process.exitcode is None:
                number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                (process.kill if number == signal.SIGKILL else process.terminate)()
                process.join()
            if process.exitcode == 0:
                break
            # SIGTERM ends it at once before its handlers are there, and when Python has taken them down.
            ended = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
            assert process.exitcode in ended, (tmp_path / "said").read_text()
            killed += 1
        assert training.outcome() == expected


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(tmp_path: Path) -> None:
    kill_at_random(tmp_path, "ftrl", 1200, kills=20, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name",
    ["subsample", "bloom", "fobos, rows to live", "own values in 16 bits by counts", "poisson", "buckets"],
)
def test_runs_of_other_learners_killed_at_random_moments(tmp_path: Path, name: str) -> None:
    kill_at_random(tmp_path, name, 2000, kills=40, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["ftrl", "subsample"])
def test_runs_of_several_passes_killed_at_random_moments(tmp_path: Path, name: str) -> None:
    kill_at_random(tmp_path, name, 1200, 10, 3, "--passes=4", "--tolerance=0")


@pytest.mark.slow
def test_a_run_killed_at_any_byte_of_a_checkpoint_goes_on_from_the_one_before(tmp_path: Path) -> None:
    spec, logs, expected = logs_and_outcome(tmp_path, "ftrl", 600)
    training = Training(tmp_path / "resumed", spec)
    said = tmp_path / "said"
    assert finish(training.keeping(logs[:1]), said) == 0
    before = checkpoints_in(training.checkpoints)
    size = before[0].stat().st_size
    listed = max(expected.metrics.find(b'"detail"'), len(expected.rejects))
    begins = [listed + 100, 64 << 10, (64 << 10) + 1, size // 3, size // 2, size - 5000]
    ends = [size - back for back in (1000, 49, 48, 41, 40, 9, 8, 7, 1)]
    for at in (*begins, *ends):
        assert finish(training.keeping(logs), said, file_bytes=at) == -signal.SIGXFSZ, said.read_text()
        (half,) = training.checkpoints.glob("*.begun")
        assert half.stat().st_size == at
        assert checkpoints_in(training.checkpoints) == before
    assert finish(training.keeping(logs), said) == 0
    assert training.outcome() == expected


@pytest.mark.slow
def test_a_run_killed_before_any_operation_on_its_files_goes_on(tmp_path: Path) -> None:
    spec, logs, expected = logs_and_outcome(tmp_path, "ftrl", 300)
    training = Training(tmp_path / "resumed", spec)
    said = tmp_path / "said"
    for operation in range(1, 200):
        code = finish(training.keeping(logs, every="200"), said, operation=operation)
        if code == 0:
            break
        assert code == -signal.SIGKILL, said.read_text()
    assert operation >= 12
    assert training.outcome() == expected


def test_a_full_disk_costs_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    spec, logs, expected = logs_and_outcome(tmp_path, "ftrl", 600)
    training = Training(tmp_path / "resumed", spec)
    said = tmp_path / "said"
    assert finish(training.keeping(logs[:1]), said) == 0
    before = checkpoints_in(training.checkpoints)
    full = before[0].stat().st_size - 5000
    assert finish(training.keeping(logs), said, file_bytes=full, dies_of_it=False) == 0
    assert checkpoints_in(training.checkpoints) == before
    assert not list(training.checkpoints.glob("*.begun"))
    warnings = [line for line in said.read_text().splitlines() if "warning" in line]
    outcome = training.outcome()
    failed = outcome.report.pop("checkpoints")["failed"]
    assert failed == len(warnings) > 5
    assert "could not be written" in warnings[0] and "File too large" in warnings[0]
    del expected.report["checkpoints"]
    assert outcome == expected


@pytest.mark.slow
def test_a_run_that_a_signal_stops_says_so_and_keeps_all_it_learned(tmp_path: Path) -> None:
    spec, logs, expected = logs_and_outcome(tmp_path, "subsample", 3000)
    training = Training(tmp_path / "resumed", spec)
    said = tmp_path / "said"
    process = start(training.keeping(logs, batch_bytes=4000), said)
    while len(checkpoints_in(training.checkpoints)) < 2:
        assert process.is_alive(), said.read_text()
    process.terminate()
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM
    learned = json.loads((training.folder / "report.json").read_text())["rows"]
    assert read_description(checkpoints_in(training.checkpoints)[0])["rows"] == learned
    assert f"stopped by SIGTERM after {learned:,} rows were learned; --resume continues" in said.read_text()
    assert not (training.folder / "save.arrow").exists()
    assert finish(training.keeping(logs), said) == 0
    assert training.outcome() == expected


def test_limits_of_children_do_not_reach_the_tests() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
