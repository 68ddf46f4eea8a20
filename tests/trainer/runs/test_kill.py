"""kill -9 at any moment, resume, go on: real processes, killed over and over, end as if they had never been."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import CheckpointError
from tests.trainer.runs.children import finish, start
from tests.trainer.runs.runs import Shop
from tests.waiting import eventually
from trainer.checkpoint.file import read_description
from trainer.checkpoint.folder import checkpoints_in

ROOT = Path(__file__).resolve().parents[3]


def logs_of(shop: Shop, count: int) -> list[Path]:
    return [shop.log(count, seed, kind) for seed, kind in enumerate(("csv", "jsonl.gz", "parquet"), 1)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "kills", "more"),
    [
        ("ftrl", 5, ()),
        ("own values in 16 bits by counts", 4, ()),
        ("subsample", 4, ("--passes=3", "--tolerance=0")),
    ],
)
def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(shop, name, kills, more):
    """Killed at random moments and gone on with, run after run, until so many were killed."""
    shop.use(name)
    logs, said, draw = logs_of(shop, 600), shop.folder / "said", random.Random(name)
    expected, training = shop.expected(logs, *more), shop.training("timed")
    began = time.monotonic()
    assert finish(training.keeping(logs, *more), said) == 0
    whole_s = time.monotonic() - began
    assert training.outcome() == expected
    killed = runs = 0
    while killed < kills:
        runs += 1
        training, ended = shop.training(str(runs)), None
        while ended != 0:
            flags = [f"--threads={draw.randint(1, 3)}", *more]
            process = start(training.keeping(logs, *flags, batch_bytes=draw.randint(4000, 9000)), said)
            process.join(draw.uniform(0, 0.8 * whole_s))
            if process.exitcode is None:
                number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                (process.kill if number == signal.SIGKILL else process.terminate)()
                process.join()
            ended = process.exitcode
            # SIGTERM ends it at once before its handlers are there, and when Python has taken them down.
            assert ended in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM), said.read_text()
            killed += ended != 0
        assert training.outcome() == expected


@pytest.mark.slow
def test_a_run_killed_before_any_operation_on_its_files_goes_on(shop: Shop) -> None:
    logs, training, said = logs_of(shop, 300), shop.training(), shop.folder / "said"
    for operation in range(1, 200):
        code = finish(training.keeping(logs, every="200"), said, operation=operation)
        if code == 0:
            break
        assert code == -signal.SIGKILL, said.read_text()
    assert operation >= 12 and training.outcome() == shop.expected(logs)


def test_a_full_disk_costs_checkpoints_and_nothing_else(shop: Shop, capsys) -> None:
    """No file of this process grows beyond a limit meanwhile; Python ignores the signal of that."""
    logs, training = logs_of(shop, 600), shop.training()
    expected = shop.expected(logs)
    assert run(training.keeping(logs[:1])) == 0
    before = checkpoints_in(training.checkpoints)
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[0].stat().st_size - 5000, limits[1]))
    try:
        assert run(training.keeping(logs)) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoints_in(training.checkpoints) == before
    assert not list(training.checkpoints.glob("*.begun"))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    outcome = training.outcome()
    assert outcome.report.pop("checkpoints")["failed"] == len(warnings) > 5
    assert "could not be written" in warnings[0] and "File too large" in warnings[0]
    del expected.report["checkpoints"]
    assert outcome == expected


@pytest.mark.slow
def test_a_stop_whose_checkpoint_cannot_be_written_says_so_and_the_exit_code_tells(shop: Shop) -> None:
    log, training = shop.log(2000), shop.training()
    command = [sys.executable, "-m", "ftrie", *training.keeping([Path("-")])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        data = log.read_bytes()
        process.stdin.write(data[:100_000])
        process.stdin.flush()
        eventually(lambda: len(checkpoints_in(training.checkpoints)) >= 2, "two checkpoints", 120)
        most = checkpoints_in(training.checkpoints)[0].stat().st_size - 5_000
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        # All of the first part may be saved by now: these rows cannot be.
        process.stdin.write(data[100_000:150_000])
        process.stdin.flush()
        for line in process.stderr:
            if b"could not be written" in line:
                break
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().decode()
        assert process.wait(60) == CheckpointError.exit_code
    assert (
        "stopped by SIGTERM" in said
        and "which could not be saved; --resume continues from an earlier" in said
    )


@pytest.mark.slow
def test_ctrl_c_without_a_checkpoint_says_where_it_stopped_and_that_nothing_was_published(shop: Shop) -> None:
    training = shop.training()
    command = [sys.executable, "-m", "ftrie", *training.arguments([Path("-")], "--batch-bytes=9000")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(shop.log(2000).read_bytes())
        process.stdin.flush()
        metrics = training.folder / "metrics.jsonl"
        eventually(
            lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) > 2, "two windows", 120
        )
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(60) == 128 + signal.SIGINT
    assert re.search(
        r"^ftrie: stopped by Ctrl-C after [\d,]{3,} rows were learned; nothing was published$", said, re.M
    )
    assert not (training.folder / "save.arrow").exists()


@pytest.mark.slow
def test_a_stop_does_not_wait_for_the_pipe_and_says_what_was_learned(shop: Shop) -> None:
    log, training = shop.log(2000), shop.training()
    command = [sys.executable, "-m", "ftrie", *training.keeping([Path("-")])]
    data = log.read_bytes()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(data[: len(data) // 2 + 7])
        process.stdin.flush()
        eventually(lambda: len(checkpoints_in(training.checkpoints)) >= 2, "two checkpoints", 120)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().decode()
        assert process.wait(60) == 128 + signal.SIGTERM
    learned = json.loads((training.folder / "report.json").read_text())["rows"]
    assert read_description(checkpoints_in(training.checkpoints)[0])["rows"] == learned
    assert f"stopped by SIGTERM after {learned:,} rows were learned; --resume continues" in said
    assert "; nothing was published" in said
    assert not (training.folder / "save.arrow").exists()
    subprocess.run(command, cwd=ROOT, input=data, check=True, capture_output=True)
    outcome, expected = training.outcome(), shop.expected([log])
    assert (outcome.model, outcome.report) == (expected.model, expected.report)
