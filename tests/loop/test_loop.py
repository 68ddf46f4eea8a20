"""The whole loop under a simulated clock, with faults, drawn from seeds; CONTRIBUTING.md says how to replay one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAST, SEEDS, PARTS = 8, 1_000, 8


@pytest.fixture(scope="module")
def url(valkey_url: str) -> str:
    """The store's socket: without the locks by which processes share an embedded one."""
    return f"unix://{valkey_url.removeprefix('embedded:')}/valkey.sock"


def run_all(seeds: Iterable[int], url: str, folder: Path, config: pytest.Config) -> None:
    """Run them in a process that has no threads but those of the simulation."""
    only = config.getoption("--loop-seed")
    chosen = map(str, seeds) if only is None else ("--trace", str(only))
    run = subprocess.run(
        [sys.executable, "-m", "tests.loop.loop", url, folder, *chosen],
        cwd=ROOT,
        stderr=subprocess.PIPE if only is None else None,
        text=True,
    )
    assert run.returncode == 0, run.stderr


def test_what_is_shown_and_clicked_is_learned_once_and_served(
    url: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    run_all(range(1, FAST + 1), url, tmp_path, pytestconfig)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_more_seeds(part: int, url: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    run_all(range(FAST + 1 + part, SEEDS + 1, PARTS), url, tmp_path, pytestconfig)
