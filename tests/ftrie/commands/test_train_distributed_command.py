"""`ftrie train-distributed` as a user types it: flags, and whole runs on a Ray that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ftrie.commands.train_distributed import NOT_CONVERGED
from model_store.artefact.artefact import Artefact
from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.ftrie.conftest import Ask, Say
from tests.trainer.runs.runs import rows, write_log
from tests.trainer.runs.test_train_distributed import OWN, SPEC
from tests.waiting import eventually
from trainer.checkpoint.folder import checkpoints_in
from trainer.distributed.cluster import RayCrew, open_crew
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.train_distributed import train_distributed
from trainer.settings import DistributedOptions, MethodOptions

TURNS = ["--workers=2", "--method=admm", "--tolerance=0", "--every=1"]
ON_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'ftrie[distributed]'")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "shop.toml").write_text(SPEC)
    return str(tmp_path / "shop.toml")


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    return [str(write_log(tmp_path / f"{seed}.csv", rows(700, seed))) for seed in (1, 2)]


def test_what_does_not_fit_several_workers_is_refused_before_anything_starts(
    spec: str, logs: list[str], tmp_path: Path, say: Say
) -> None:
    for flags, said in (
        ("", "Missing option '--workers'"),
        ("--workers 0", "Input should be greater than or equal to 1"),
        ("--workers 2 --method average", "--method average: expected surrogate or admm"),
        ("--workers 2 --method admm-adaptive --rho 2", "--method admm-adaptive: expected surrogate or admm"),
        ("--workers 2 --consensus plain", "--consensus plain belongs to --method admm, not to surrogate"),
        ("--workers 2 --keep first", "--keep first: expected best or last"),
        ("--workers 2 --penalties 1,2", "--penalties chooses by rows that are not learned: add --held-out"),
        ("--workers 2 --held-out 0.1 --penalties 1,x", "--penalties 1,x: expected numbers from 0 on"),
        (
            "--workers 2 --held-out 0.1 --penalties 1 --method admm",
            "--penalties belongs to --method surrogate",
        ),
        ("--workers 2 --loss parts", "--loss parts: expected rows or workers"),
        ("--workers 2 --rho 2", "--rho belongs to --method admm, not to surrogate"),
        ("--workers 2 --held-out 1.5", "--held-out 1.5: expected a share between 0 and 1"),
        ("--workers 2 --resume", "--resume and --every need --checkpoint DIR"),
        ("--workers 2 --save m.json", "a model is saved as .arrow"),
    ):
        code, _, err = say("train-distributed", spec, *logs, *flags.split())
        assert (code, said in err) == (2, True), err
    code, _, err = say("train-distributed", spec, "-", "--workers", "2")
    assert (code, "standard input, which several workers cannot read" in err) == (3, True)
    if find_spec("ray") is None:
        code, _, err = say("train-distributed", spec, *logs, "--workers", "2")
        assert (code, "pip install 'ftrie[distributed]'" in err) == (2, True)
    (tmp_path / "shop.toml").write_text(SPEC + "hash_bits = 20\n")
    code, _, err = say("train-distributed", spec, *logs, "--workers", "2")
    assert (code, "learner.hash_bits = 20 does not go with several workers" in err) == (2, True)


@ON_RAY
def test_a_run_publishes_what_it_saves_and_the_trainer_of_one_process_goes_on_from_it(
    spec: str, logs: list[str], tmp_path: Path, store: Store, store_url: str, ask: Ask
) -> None:
    (tmp_path / "shop.toml").write_text(OWN)
    saved, report = tmp_path / "m.arrow", tmp_path / "report.json"
    flags = ["--workers=2", "--held-out=0.1", f"--save={saved}", f"--report={report}", f"--store={store_url}"]
    answer = ask("train-distributed", spec, *logs, *flags, "--activate")
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
    more = write_log(tmp_path / "more.csv", rows(50, 3))
    assert ask("train", spec, more, "--init-from=active", f"--store={store_url}")["keys"] >= artefact.rows


@ON_RAY
@pytest.mark.slow
@pytest.mark.parametrize("member", ["worker 1", "reducer 0"])
def test_a_process_that_is_killed_in_an_iteration_is_replaced_and_the_model_is_the_same(
    logs: list[str], member: str
) -> None:
    """The real crew: the process is killed just before its third turn of an iteration's last step."""
    options = DistributedOptions(workers=2, reducers=2, method=MethodOptions(iterations=6))

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
    spec: str, logs: list[str], tmp_path: Path, say: Say
) -> None:
    command = ["train-distributed", spec, *logs, *TURNS, "--iterations=20"]
    state, whole, saved = (tmp_path / name for name in ("state", "whole.arrow", "m.arrow"))
    assert say(*command, f"--checkpoint={tmp_path / 'other'}", f"--save={whole}")[0] == NOT_CONVERGED
    kept = [*command, f"--checkpoint={state}", "--resume", f"--save={saved}"]
    process = subprocess.Popen([sys.executable, "-m", "ftrie", *kept], start_new_session=True)
    eventually(lambda: has_kept(process, state, 3), within_s=120)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not saved.exists()
    code, _, err = say(*kept)
    assert (code, "resuming from" in err, "has not converged" in err) == (NOT_CONVERGED, True, True)
    assert saved.read_bytes() == whole.read_bytes()


@ON_RAY
@pytest.mark.slow
def test_a_signal_ends_ray_too_and_has_its_exit_code(spec: str, logs: list[str], tmp_path: Path) -> None:
    command = ["train-distributed", spec, *logs, *TURNS, "--iterations=500", f"--checkpoint={tmp_path / 's'}"]
    process = subprocess.Popen([sys.executable, "-m", "ftrie", *command], stderr=subprocess.PIPE, text=True)
    eventually(lambda: has_kept(process, tmp_path / "s", 1), within_s=120)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "stopped by SIGTERM after iteration" in said and "--resume continues" in said


def has_kept(process: subprocess.Popen[Any], state: Path, checkpoints: int) -> bool:
    """Whether a run has written so many checkpoints, or has ended."""
    return process.poll() is not None or (state.exists() and len(checkpoints_in(state)) >= checkpoints)
