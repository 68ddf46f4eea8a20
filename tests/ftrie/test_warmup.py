"""`ftrie warmup`: after it, neither training nor serving nor the demo compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model_store.jit import CACHE_FOLDER
from tests.ftrie.conftest import Say

# Prints which kernels serving and training compile or load that no part of a warm-up has.
SERVED_AND_TRAINED = """
import gc
from numba.core.dispatcher import Dispatcher
from model_store.spec.spec import load_spec
from ftrie.demo.market import SHOP_SPEC
from ftrie.warmup import _PARTS
from server.ranking.warmup import run_kernels
from trainer.runs.warmup import compile_kernels

def made():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(each.py_func.__qualname__, kinds) for each in kernels for kinds in each.overloads}

for part in _PARTS.values():
    part()
before = made()
compile_kernels(load_spec(SHOP_SPEC), ["csv"])
run_kernels()
print(len(before) > 50, sorted({name for name, _ in made() - before}))
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
def test_after_it_training_and_serving_compile_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED_AND_TRAINED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr


@pytest.mark.slow
def test_it_tells_what_it_compiled_and_compiles_it_once(tmp_path: Path) -> None:
    """Of all kernels two, which the cache lacks: compiling all takes minutes."""
    lacks = shutil.ignore_patterns("*.complete", "scoring_kernels.rank-*", "loops_kernels.learn_shared-*")
    shutil.copytree(CACHE_FOLDER, tmp_path / CACHE_FOLDER.name, ignore=lacks)
    done = python(tmp_path, "-m", "ftrie", "warmup", "--json", "--processes", "3")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["parts"]) == 5
    names = [kernel["kernel"] for kernel in answer["kernels"]]
    assert {"server.ranking.scoring_kernels.rank", "trainer.learn.loops_kernels.learn_shared"} <= set(names)
    again = json.loads(python(tmp_path, "-m", "ftrie", "warmup", "--json").stdout)
    assert (again["parts"], again["kernels"]) == ([], [])
