"""`ftrie train-distributed` as a user types it: flags, and whole runs on a Ray that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.trainer.runs.runs import rows, write_log
from tests.trainer.runs.test_train_distributed import OWN, SPEC
from trainer.checkpoint.folder import checkpoints_in
from trainer.distributed.cluster import RayCrew, open_crew
from trainer.distributed.methods import MethodOptions
from trainer.examples.open_log import Log
from trainer.logs.rejects import RejectLog
from trainer.runs.train_distributed import DistributedOptions, train_distributed

ON_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'ftrie[distributed]'")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "shop.toml").write_text(SPEC)
    return str(tmp_path / "shop.toml")


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    return [str(write_log(tmp_path / f"{seed}.csv", rows(700, seed))) for seed in (1, 2)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "Missing option '--workers'"),
        (["--workers", "0"], "Input should be greater than or equal to 1"),
        (
            ["--workers", "2", "--method", "sgd"],
            "--method sgd: expected surrogate, admm, admm-adaptive or average",
        ),
        (
            ["--workers", "2", "--rho", "2"],
            "--rho belongs to --method admm or admm-adaptive, not to surrogate",
        ),
        (["--workers", "2", "--held-out", "1.5"], "--held-out 1.5: expected a share between 0 and 1"),
        (["--workers", "2", "--resume"], "--resume and --every need --checkpoint DIR"),
        (["--workers", "2", "--save", "m.json"], "a model is saved as .arrow"),
    ],
)
def test_flags_that_do_not_fit_are_named(
    spec: str, logs: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert run(["train-distributed", spec, *logs, *flags]) == 2
    assert said in capsys.readouterr().err


def test_standard_input_and_a_setting_that_needs_one_order_are_refused_before_anything_starts(
    spec: str, logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train-distributed", spec, "-", "--workers", "2"]) == 3
    assert "standard input, which several workers cannot read" in capsys.readouterr().err
    (tmp_path / "shop.toml").write_text(SPEC + "hash_bits = 20\n")
    assert run(["train-distributed", spec, *logs, "--workers", "2"]) == 2
    assert "learner.hash_bits = 20 does not go with several workers" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_the_extra_the_command_says_what_to_install(
    spec: str, logs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train-distributed", spec, *logs, "--workers", "2"]) == 2
    assert "pip install 'ftrie[distributed]'" in capsys.readouterr().err


@ON_RAY
def test_a_run_publishes_what_it_saves_and_the_trainer_of_one_process_goes_on_from_it(
    spec: str,
    logs: list[str],
    tmp_path: Path,
    store: Store,
    store_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "shop.toml").write_text(OWN)
    saved, report = tmp_path / "m.arrow", tmp_path / "report.json"
    flags = ["--workers=2", "--held-out=0.1", f"--save={saved}", f"--report={report}", f"--store={store_url}"]
    assert run(["train-distributed", spec, *logs, *flags, "--activate", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads(report.read_text())
    assert [each["name"] for each in answer["problems"]] == ["base", "plain", "lean"]
    for problem in answer["problems"]:
        objectives = [each["objective"] for each in problem["iterations"]]
        assert objectives == sorted(objectives, reverse=True) and problem["converged"]
        assert all(each["bytes"] > 0 and each["held_out"] > 0.0 for each in problem["iterations"])
    assert sum(worker["rows"] for worker in answer["workers"]) == answer["rows"]
    assert all(worker["peak_bytes"] > worker["shard_bytes"] > 0 for worker in answer["workers"])
    shop, artefact = store.model("shop"), Artefact.read(saved)
    assert shop.active() == answer["version"] == 1
    assert shop.materialise(1).to_bytes() == artefact.to_bytes()
    more = str(write_log(tmp_path / "more.csv", rows(50, 3)))
    assert run(["train", spec, more, "--init-from=active", f"--store={store_url}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] >= artefact.rows


@ON_RAY
@pytest.mark.slow
@pytest.mark.parametrize("member", ["worker 1", "reducer 0"])
def test_a_process_that_is_killed_in_an_iteration_is_replaced_and_the_model_is_the_same(
    logs: list[str], member: str
) -> None:
    """The real crew: the process is killed just before its third turn of an iteration's last step."""
    options = DistributedOptions(2, 2, MethodOptions(iterations=6))

    @contextmanager
    def losing(*plans: Any, **how: Any) -> Iterator[RayCrew]:
        with open_crew(*plans, **how) as crew:
            ask, asked = crew.ask_reducers, Counter[str]()

            def asking(step: str, *arguments: Any, **inbox: Any) -> Any:
                asked[step] += 1
                if (step, asked[step]) == ("combine", 3):
                    os.kill(crew.processes[member][1], signal.SIGKILL)
                return ask(step, *arguments, **inbox)

            crew.ask_reducers = asking  # type: ignore[method-assign]
            yield crew

    runs = [
        train_distributed(parse_spec(SPEC), Log(logs), options, rejects=RejectLog(), crew=crew)
        for crew in (open_crew, losing)
    ]
    assert [run.report.recoveries for run in runs] == [0, 1]
    assert runs[0].model.artefact().to_bytes() == runs[1].model.artefact().to_bytes()


@ON_RAY
@pytest.mark.slow
def test_killed_and_resumed_the_run_ends_with_the_same_bytes(
    spec: str, logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "train-distributed",
        spec,
        *logs,
        "--workers=2",
        "--method=admm",
        "--iterations=40",
        "--tolerance=0",
    ]
    assert run([*command, f"--save={tmp_path / 'whole.arrow'}"]) == 0
    state = tmp_path / "state"
    kept = [*command, f"--checkpoint={state}", "--every=1", "--resume", f"--save={tmp_path / 'm.arrow'}"]
    process = subprocess.Popen([sys.executable, "-m", "ftrie", *kept], start_new_session=True)
    while process.poll() is None and (not state.exists() or len(checkpoints_in(state)) < 3):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "m.arrow").exists()
    capsys.readouterr()
    assert run(kept) == 0
    assert "resuming from" in capsys.readouterr().err
    assert (tmp_path / "m.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()


@ON_RAY
@pytest.mark.slow
def test_a_signal_ends_ray_too_and_has_its_exit_code(spec: str, logs: list[str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [
        "train-distributed",
        spec,
        *logs,
        "--workers=2",
        "--method=admm",
        "--iterations=500",
        "--tolerance=0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "ftrie", *command, f"--checkpoint={state}", "--every=1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and (not state.exists() or not checkpoints_in(state)):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "stopped by SIGTERM after iteration" in said and "--resume continues" in said
