"""`ftrie warmup`: after it, neither training nor serving nor the demo compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ftrie.conftest import Say

SERVED_AND_TRAINED = """
from model_store.jit import on_compile
from model_store.spec.spec import load_spec
from ftrie.demo.market import SHOP_SPEC
from server.ranking.warmup import run_kernels
from trainer.runs.warmup import compile_kernels

with on_compile(print):
    compile_kernels(load_spec(SHOP_SPEC), ["csv"])
    run_kernels()
"""


def python(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_the_second_warm_up_has_nothing_to_compile(say: Say) -> None:
    assert say("warmup", "--processes", 1)[0] == 0
    code, _, err = say("warmup")
    assert (code, "nothing to compile" in err) == (0, True)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = python(tmp_path / "file", "-m", "ftrie", "warmup")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Not a directory" in done.stderr


@pytest.mark.slow
def test_after_it_training_and_serving_compile_nothing(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "ftrie", "warmup", "--json", "--processes", "3")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert len(answer["parts"]) == 5
    names = [kernel["kernel"] for kernel in answer["kernels"]]
    assert {"server.ranking.scoring_kernels.rank", "trainer.learn.learners.loops.learn_shared"} <= set(names)
    again = json.loads(python(tmp_path, "-m", "ftrie", "warmup", "--json").stdout)
    assert (again["parts"], again["kernels"]) == ([], [])
    done = python(tmp_path, "-c", SERVED_AND_TRAINED)
    assert (done.returncode, done.stdout) == (0, "")
