"""The n-th failure of a whole run of `ftrie train`: it ends with an error that says why, or goes on; the same command
line then gives, to the bit, what a run without faults gives. Each row is learned exactly once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from redis import Redis

from ftrie.cli import run
from model_store.store import Store
from tests.sweeps.failing import Failing, Fault, nothing_left
from tests.sweeps.sweep import counted_as, thinned
from tests.trainer.runs.runs import Shared, Shop, Training

PARTS = 2
OF_THE_RUN = ("version", "published", "checkpoints")
"""Parts of the report that tell how a run went, not what it learned."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory.mktemp("shared"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_with_checkpoints_a_cache_rejects_metrics_and_a_published_model(
    tmp_path: Path,
    shared: Shared,
    socket_url: str,
    control: Redis[bytes],
    part: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(tmp_path, shared)
    log = shop.log(500)
    expected = shop.expected([log])
    published = [f"--store={socket_url}", "--activate", f"--cache={tmp_path / 'cache'}"]

    def fresh() -> Training:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "cache").unlink(missing_ok=True)
        with Store.open(socket_url) as store:
            store.client.flushall()
        return Training(tmp_path / "run", shop.spec)

    def command(training: Training) -> list[str]:
        return training.keeping([log], *published, every="100")

    def check(training: Training) -> None:
        found = training.outcome()
        for outcome in (found, expected):
            for name in OF_THE_RUN:
                outcome.report.pop(name, None)
        for name in found.__dataclass_fields__:
            assert getattr(found, name) == getattr(expected, name), name
        with Store.open(socket_url) as store:
            shop_model = store.model(store.model_names()[0])
            assert shop_model.active() == max(info.version for info in shop_model.versions())
            assert not store.check()

    training = fresh()
    with Failing() as counted:
        assert run(command(training)) == 0
    check(training)
    tried = list(thinned(counted.calls))
    print(counted_as("train", counted.calls, tried))
    failed: list[Exception] = []
    for fault in tried[part::PARTS]:
        training = fresh()
        try:
            _try(training, fault, control, command(training), capfd)
            check(training)
        except Exception as error:
            error.add_note(str(fault))
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} faults", failed)


def _try(
    training: Training,
    fault: Fault,
    control: Redis[bytes],
    command: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    with nothing_left():
        capfd.readouterr()
        with Failing(fault, control):
            code = run(command)
        said = capfd.readouterr().err
        assert "Traceback" not in said
        assert code == 0 or "ftrie: " in said, said
        left = [path.name for path in training.folder.rglob("*") if path.name.startswith(".")]
        assert not left, left
        assert run(command) == 0, capfd.readouterr().err
