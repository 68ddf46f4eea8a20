"""What decides by time takes a `Clock` (model_store/clock.py, docs/adr/0020): who asks the machine's, and why."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("model_store", "server", "trainer")
CLOCKS = {"time", "monotonic", "time_ns", "monotonic_ns"}
SOCKET = "bounds waits on a socket"
THREAD = "bounds waits on a thread"
PROCESS = "bounds waits on a process"
MEASURES = "measures how long something took"
OTHERS = "keeps the pace of another program's files or broker"
ASKS_THE_MACHINE = {
    "model_store/clock.py": "is the clock",
    "model_store/jit.py": "deletes kernels of other releases by the age of their folder",
    "model_store/redis/direct_connection.py": SOCKET,
    "model_store/redis/embedded.py": PROCESS,
    "model_store/redis/servers.py": SOCKET,
    "model_store/versions/model_versions.py": SOCKET,
    "server/errors.py": "the deadline of a call, which its peer's machine counts too",
    "server/serve/ranking_service.py": "the deadline of a call, which its peer's machine counts too",
    "server/serve/gate.py": "the deadline of a call, which its peer's machine counts too",
    "server/events/log.py": THREAD,
    "server/events/shadows.py": THREAD,
    "server/events/writer.py": THREAD,
    "server/ranking/warmup.py": MEASURES,
    "server/serve/crew.py": PROCESS,
    "server/serve/health.py": THREAD,
    "server/serve/observers.py": "dates recorded requests, which are replayed at that pace",
    "server/serve/security.py": "looks at a file of the machine once a second",
    "server/serve/supervisor.py": PROCESS,
    "server/serve/takeover.py": PROCESS,
    "server/sync/last_good.py": MEASURES,
    "server/sync/model_builder.py": MEASURES,
    "server/sync/model_sync.py": MEASURES,
    "server/sync/store_sync.py": THREAD,
    "trainer/distributed/cluster.py": PROCESS,
    "trainer/events/histories.py": MEASURES,
    "trainer/inspect/event_checks.py": "judges a log by the day it is looked at",
    "trainer/inspect/examine.py": MEASURES,
    "trainer/runs/first_events.py": THREAD,
    "trainer/sources/file_tracker.py": OTHERS,
    "trainer/sources/kafka.py": OTHERS,
    "trainer/sources/merge.py": THREAD,
}


def asks(path: Path) -> bool:
    """Whether the file reads a clock of the machine."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr=name) if name in CLOCKS:
                return True
            case ast.Attribute(value=ast.Name(id="datetime"), attr="now" | "utcnow"):
                return True
            case ast.ImportFrom(module="time", names=names) if CLOCKS & {each.name for each in names}:
                return True
    return False


def test_only_these_ask_the_machines_clock() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if asks(path)}
    assert found - ASKS_THE_MACHINE.keys() == set(), "take a Clock, or say here why not"
    assert ASKS_THE_MACHINE.keys() - found == set(), "they no longer do"
