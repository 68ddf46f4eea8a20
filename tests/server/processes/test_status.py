"""Whether a server is ready: a statement about now, with its reason."""

from __future__ import annotations

import pytest

from server.telemetry.status import ModelStatus, SupervisorStatus, WorkerState, WorkerStatus


def status(begun: bool, draining: bool, *states: WorkerState) -> SupervisorStatus:
    workers = tuple(WorkerStatus(n, 7 + n, state, 0, {}) for n, state in enumerate(states))
    model = ModelStatus("shop", problem="version 2 was refused (damaged)")
    return SupervisorStatus("here:1", begun, draining, (model,), workers)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (status(True, False, "serving", "serving"), ""),
        (status(True, False, "gone", "serving"), ""),
        (
            status(True, False, "gone", "starting"),
            "no worker serves every model (worker 0 gone, worker 1 starting); "
            "shop: version 2 was refused (damaged)",
        ),
        (
            status(False, False, "serving", "starting"),
            "starting: not all workers serve every model yet (worker 0 serving, worker 1 starting); "
            "shop: version 2 was refused (damaged)",
        ),
        (status(True, True, "serving", "draining"), "draining"),
    ],
)
def test_ready_follows_the_workers_and_says_why_not(now: SupervisorStatus, reason: str) -> None:
    assert (now.ready, now.not_ready) == (not reason, reason)
    assert (now.to_json()["ready"], now.to_json()["not_ready"]) == (not reason, reason)
