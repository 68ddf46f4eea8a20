"""The whole loop under a simulated clock, with faults, drawn from seeds; CONTRIBUTING.md says how to replay one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import pytest
import structlog

from tests.loop.loop import SPEC, run
from tests.loop.simulation import warm

FAST, SEEDS, PARTS = 8, 1_000, 8


@pytest.fixture(scope="module")
def url(valkey_url: str) -> str:
    """The store's socket: without the locks by which processes share an embedded one."""
    warm(SPEC)
    return f"unix://{valkey_url.removeprefix('embedded:')}/valkey.sock"


def run_all(seeds: Iterable[int], url: str, folder: Path, config: pytest.Config) -> None:
    only = config.getoption("--loop-seed")
    if only is None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in seeds if only is None else [only]:
        run(seed, url, folder / str(seed), print if only is not None else None)


def test_what_is_shown_and_clicked_is_learned_once_and_served(
    url: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    run_all(range(1, FAST + 1), url, tmp_path, pytestconfig)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_more_seeds(part: int, url: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    run_all(range(FAST + 1 + part, SEEDS + 1, PARTS), url, tmp_path, pytestconfig)
