"""The cache of compiled kernels: where it lies, so that a stale one is never run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model_store import jit
from model_store.hash_kernels import digest
from model_store.jit import CACHE_FOLDER

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("model_store", "trainer", "server")

MODULES = ("trainer.learn.loops_kernels", "trainer.learn.table_kernels", "server.ranking.scoring_kernels")
SHOW = """
import importlib, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    caches = [getattr(value, "_cache", None) for value in vars(module).values()]
    paths = {cache.cache_path for cache in caches if getattr(cache, "cache_path", None)}
    print(name, *paths)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    ["numba", "model_store.hash_kernels", MODULES[0], "trainer.runs.train", "model_store.trie.trie_kernels"],
)
def test_kernels_are_cached_under_the_hash_of_all_sources_whatever_is_imported_first(first):
    command = [sys.executable, "-c", f"import {first}\n{SHOW}", *MODULES]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in shown.splitlines():
        _, *folders = line.split()
        assert folders, line
        assert all(folder.startswith(str(CACHE_FOLDER)) for folder in folders)
    assert shown.count("\n") == len(MODULES)


# Prints the folder of the package, then each kernel that was compiled, not read from the cache.
COMPILE = """
import sys
import time
import numpy as np
import model_store
from model_store.jit import mark_kernels_cached, on_compile
from model_store.normal_kernels import normal_cdfs

compiled = []
with on_compile(on_end=lambda name, seconds, inside: inside or compiled.append(name)):
    normal_cdfs(np.zeros(1), np.zeros(1))
mark_kernels_cached("test")
print(model_store.__path__[0], *compiled)
"""


def compiled_by(package: Path, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", COMPILE], stdout=subprocess.PIPE, env=environment, text=True
    )


def names_of(process: subprocess.Popen[str], package: Path) -> list[str]:
    out, _ = process.communicate()
    folder, *names = out.split()
    assert (process.returncode, folder) == (0, str(package / "model_store"))
    return names


def reinstalled(folder: Path) -> Path:
    """The packages again, elsewhere and with other times."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, copy_function=shutil.copy)
    return folder


@pytest.mark.slow
def test_a_kernel_is_compiled_once_by_processes_that_start_together_and_not_again_after_reinstallation(
    tmp_path,
):
    cache, name = tmp_path / "cache", "model_store.normal_kernels.normal_cdfs"
    for age in range(6):
        old = cache / f"kernels-{age}"
        old.mkdir(parents=True)
        os.utime(old, (1_000 - age, 1_000 - age))
    copy = reinstalled(tmp_path / "copy")
    together = [compiled_by(ROOT, cache) for _ in range(2)]
    assert [name for process in together for name in names_of(process, ROOT)] == [name]
    kept = {path.name for path in cache.iterdir()}  # those used last
    assert kept == {"kernels-0", "kernels-1", "kernels-2", CACHE_FOLDER.name}
    assert names_of(compiled_by(copy, cache), copy) == []
    with (copy / "model_store" / "hash_kernels.py").open("a") as source:
        source.write("# changed\n")
    assert names_of(compiled_by(copy, cache), copy) == [name]
    new = {path.name for path in cache.iterdir()} - {f"kernels-{age}" for age in range(6)}
    assert len(new) == 2 and CACHE_FOLDER.name in new


def test_a_kernel_runs_without_a_cache_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert names_of(compiled_by(ROOT, tmp_path / "file"), ROOT)


def test_an_inlined_function_refuses_to_be_called_from_python():
    with pytest.raises(TypeError, match="digest is compiled into kernels only"):
        digest(0, 0)


def test_no_machine_code_is_made_of_an_inlined_function_and_the_kernel_has_its_own():
    half = jit.inline(lambda x: 0.5 * x)
    code = jit.kernel(lambda x: half(x) + 1.0)
    assert code(3.0) == 2.5
    (inlined,), (called,) = (each.overloads.values() for each in (half, code))
    engine = called.library.codegen._engine
    assert engine.is_symbol_defined(called.fndesc.mangled_name)
    assert not engine.is_symbol_defined(inlined.fndesc.mangled_name)


def test_caches_that_are_in_use_stay_and_of_the_others_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "CACHE_FOLDER", tmp_path / "kernels-own")
    hours = {"own": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 30, "f": 40}
    for name, age in hours.items():
        (tmp_path / f"kernels-{name}").mkdir()
        os.utime(tmp_path / f"kernels-{name}", times=(time.time() - 3600 * age,) * 2)
    jit._remove_old()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"kernels-{name}" for name in ("a", "b", "c", "d", "own")
    ]
    for name in "abcd":
        os.utime(tmp_path / f"kernels-{name}", times=(time.time() - 90_000,) * 2)
    jit._remove_old()
    assert len(list(tmp_path.iterdir())) == 4
