"""The cache of compiled kernels: where it lies, so that a stale one is never run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from model_store.jit import CACHE_FOLDER

SHOW = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
for value in vars(module).values():
    cache = getattr(value, "_cache", None)
    if getattr(cache, "cache_path", None):
        print(cache.cache_path)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "numba",
        "model_store.hash_kernels",
        "trainer.learn.learners.loops",
        "trainer.runs.train",
        "model_store.trie.trie_kernels",
    ],
)
@pytest.mark.parametrize(
    "module",
    ["trainer.learn.learners.loops", "trainer.learn.table_kernels", "server.ranking.scoring_kernels"],
)
def test_kernels_are_cached_under_the_hash_of_all_sources_whatever_is_imported_first(first, module):
    code = f"import {first}\n{SHOW}"
    finished = subprocess.run(
        [sys.executable, "-c", code, module], check=True, capture_output=True, text=True
    )
    folders = finished.stdout.split()
    assert folders
    assert all(folder.startswith(str(CACHE_FOLDER)) for folder in folders)
