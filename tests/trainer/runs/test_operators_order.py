"""An operator's rollback holds against the trainer, also when it is restarted, until `ftrie store resume`."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.store import Store
from tests.simulated import event_logs
from tests.trainer.runs.running import NAME, Trainer
from tests.waiting import eventually


class Shown:
    """The impressions of a day, appended to a store's stream a few at a time."""

    def __init__(self, store: Store) -> None:
        self._stream = store.impressions(NAME)
        self._lines = iter(event_logs(400).impressions)

    def some(self) -> None:
        """The next ones."""
        self._stream.append([next(self._lines) for _ in range(40)])


@pytest.fixture
def shown(store: Store) -> Shown:
    return Shown(store)


@pytest.mark.slow
def test_after_a_rollback_versions_stay_inactive_over_restarts_until_they_may_go_on(
    shown: Shown, store: Store, store_url: str, tmp_path: Path
) -> None:
    versions = store.model(NAME)
    shown.some()
    trainer = Trainer(tmp_path, store_url)
    first = trainer.until("active", 1)["active"]
    shown.some()
    trainer.until("active", first + 1)
    versions.rollback(first)
    shown.some()
    status = trainer.line()
    while not status["inactive"]:
        status = trainer.line()
    assert f"pinned version {first}" in status["inactive"]
    ended = trainer.terminate()
    assert ended["version"] > ended["active"] == first

    again = Trainer(tmp_path, store_url)
    shown.some()
    status = again.until("version", ended["version"] + 1)
    assert versions.active() == first and "ftrie store resume hotels" in status["inactive"]
    versions.pin.resume()
    eventually(lambda: (versions.active() or 0) >= status["version"], "its last version is served")
    assert again.terminate()["inactive"] == ""
