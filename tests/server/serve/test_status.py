"""Whether a server is ready: a statement about now, with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from server.sync.store_sync import StoreWatch
from server.telemetry.meter import Meter, Totals
from server.telemetry.prometheus import note_status, registry
from server.telemetry.status import ModelStatus, SupervisorStatus, WorkerState, WorkerStatus
from tests.clocks import ManualClock
from tests.stores import Node, await_that


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


def test_a_store_of_users_that_is_away_and_a_replica_that_lost_its_primary_are_seen_without_a_request(
    tmp_path: Path,
) -> None:
    meter, totals, clock = Meter(), Totals(), ManualClock()

    def seen(watch: StoreWatch) -> tuple[str, float, float]:
        found = watch.look()
        note_status(meter, SupervisorStatus("here:1", True, False, (), (), (found,)))
        totals.add("supervisor", meter.take())
        page = generate_latest(registry(totals)).decode()
        lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        lag = lines.get('ftrie_replica_lag_seconds{store="users"}', "nan")
        return found.problem, float(lines["ftrie_user_store_away"]), float(lag)

    primary = Node(tmp_path, "primary", {})
    replica = Node(tmp_path, "replica", {"replicaof": f"127.0.0.1 {primary.port}"})
    try:
        watch = StoreWatch("users", f"redis://127.0.0.1:{replica.port}", clock)
        await_that(lambda: replica.client.info("replication")["master_link_status"] == "up", "a replica")
        assert seen(watch)[:2] == ("", 0.0) and seen(watch)[2] < 15
        assert seen(StoreWatch("users", f"redis://127.0.0.1:{primary.port}")) == ("", 0.0, 0.0)
        primary.kill()
        await_that(lambda: replica.client.info("replication")["master_link_status"] == "down", "no link")
        assert seen(watch)[0] == ""
        clock.advance(40)
        problem, away, lag = seen(watch)
        assert "heard nothing from its primary for 4" in problem and away == 0.0 and 40 <= lag < 60
        replica.client.execute_command("ACL", "SETUSER", "default", "-info")
        assert "cannot be seen" in seen(watch)[0]
        replica.kill()
        assert seen(watch)[0].startswith("away: ") and seen(watch)[1] == 1.0
    finally:
        for node in (primary, replica):
            node.kill()
