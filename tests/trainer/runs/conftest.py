"""What the tests of runs may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.artefact.artefact import Artefact
from tests.trainer.runs.judging import FTRL, SPEC, Judge, rows_of, trained, write
from tests.trainer.runs.runs import Shared, Shop


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Judge:
    return Judge(tmp_path, capsys)


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    """A model that has seen a log like the ones it is judged on, but not all of its keys."""
    return trained(SPEC + FTRL, write(tmp_path_factory.mktemp("log") / "log.csv", rows_of(400, seed=1)))


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def shop(tmp_path: Path, shared_runs: Shared) -> Shop:
    return Shop(tmp_path, shared_runs)
