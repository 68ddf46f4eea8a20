"""Commands that would activate a version while `ftrie trainer` has the model: refused before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.store import Store
from tests.trainer.runs.runs import Training, rows, write_log, write_spec

REFUSED = "shop has a trainer: process"


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "run", write_spec(tmp_path / "shop.toml"))


@pytest.fixture
def arguments(tmp_path: Path, training: Training, store_url: str) -> list[str]:
    return [*training.arguments([write_log(tmp_path / "log.csv", rows(300, 1))], f"--store={store_url}")]


@pytest.mark.parametrize("flags", [["--activate"], ["--activate", "--publish-every=100"]])
def test_a_training_run_that_would_activate_is_refused_before_it_begins(
    arguments: list[str],
    training: Training,
    store: Store,
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    lease = store.trainer_lease("shop", "folder")
    lease.take()
    assert run([*arguments, *flags]) == 5
    assert REFUSED in capsys.readouterr().err
    assert not (training.folder / "save.arrow").exists()
    lease.release()
    assert run([*arguments, *flags]) == 0
    assert store.model("shop").active() is not None


def test_a_training_run_may_publish_beside_a_trainer_and_an_operator_may_activate_it(
    arguments: list[str], store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.trainer_lease("shop", "folder").take()
    assert run([*arguments, "--publish"]) == 0
    assert store.model("shop").active() is None
    assert run(["store", "activate", "shop", "1", "--store", store_url]) == 0
    assert store.model("shop").active() == 1


def test_a_model_is_not_imported_beside_a_trainer(
    arguments: list[str],
    training: Training,
    store: Store,
    store_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(arguments) == 0
    store.trainer_lease("shop", "folder").take()
    file = str(training.folder / "save.arrow")
    assert run(["store", "import", "shop", file, "--store", store_url]) == 5
    assert REFUSED in capsys.readouterr().err
