"""An operator's rollback holds against the trainer, also when it is restarted, until `ftrie store resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_store.store import Store
from tests.simulated import event_logs
from tests.trainer.runs.running import NAME, once


def test_after_a_rollback_versions_stay_inactive_over_restarts_until_they_may_go_on(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    versions, lines = store.model(NAME), iter(event_logs(400).impressions)

    def learned() -> dict[str, Any]:
        store.impressions(NAME).append([next(lines) for _ in range(40)])
        return once(tmp_path, store_url)

    first = learned()["active"]
    assert learned()["active"] == first + 1
    versions.rollback(first)
    for more in (2, 3):
        status = learned()
        assert (status["version"], status["active"], versions.active()) == (first + more, first, first)
        assert f"pinned version {first}" in status["inactive"]
        assert "ftrie store resume hotels" in status["inactive"]
    versions.pin.resume()
    status = learned()
    assert (status["inactive"], versions.active()) == ("", status["version"])
