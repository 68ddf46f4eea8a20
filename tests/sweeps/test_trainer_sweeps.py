"""The n-th failure of a whole run of `ftrie trainer`: events in, versions and checkpoints out.

Whatever it meets, the same command line then ends with the model and the counts of a run without faults: each
impression is learned exactly once.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from ftrie.cli import run
from model_store.store import Store
from tests.sweeps.failing import Failing, Fault, nothing_left
from tests.sweeps.sweep import counted_as, thinned
from tests.trainer.runs.running import NAME, command_of
from tests.worlds import event_logs
from trainer.runs import trainer

REQUESTS = 40
PARTS = 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_trainer(
    tmp_path: Path,
    socket_url: str,
    control: Redis[bytes],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    part: int,
) -> None:
    monkeypatch.setattr(trainer, "ONCE_WAITS_S", 0.1)
    flags = ["--every", "200", "--publish-every", "200"]
    command = [*command_of(tmp_path, socket_url, flags=flags), "--once"]

    def fresh() -> None:
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        with Store.open(socket_url) as store:
            store.client.flushall()
            store.impressions(NAME).append(event_logs(REQUESTS).impressions)
            store.clicks(NAME).append(event_logs(REQUESTS).clicks)

    def outcome() -> Any:
        """What the last run says, and what is served."""
        status = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert status["ended"]
        with Store.open(socket_url) as store:
            assert not store.check()
            versions = store.model(NAME)
            served = versions.materialise(versions.active_or_fail())
        counts = {name: count for name, count in status["counts"].items() if name != "through_us"}
        return served.content, status["events"], status["examples"], status["logloss"], counts, status["join"]

    fresh()
    assert run(command) == 0  # what is compiled once is compiled now
    expected = outcome()
    fresh()
    with Failing() as counted:
        assert run(command) == 0
    assert outcome() == expected
    tried = list(thinned(counted.calls))
    print(counted_as("trainer", counted.calls, tried))
    failed: list[Exception] = []
    for fault in tried[part::PARTS]:
        fresh()
        try:
            _try(fault, control, command, capfd)
            assert outcome() == expected
            left = [path.name for path in (tmp_path / "state").rglob("*.begun")]
            assert not left, left
        except Exception as error:
            error.add_note(str(fault))
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} faults", failed)


def _try(fault: Fault, control: Redis[bytes], command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with nothing_left():
        capfd.readouterr()
        with Failing(fault, control):
            code = run(command)
        said = capfd.readouterr().err
        assert "Traceback" not in said, said
        assert code == 0 or '{"error": ' in said, said
        assert run(command) == 0, capfd.readouterr().err
