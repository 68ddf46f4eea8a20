"""The server's log as a program reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import structlog

from server.telemetry.log import OFTEN_LINES, Sparse
from tests.clocks import ManualClock

FAILING = """
import structlog
from server.telemetry.log import log_to_stderr
log_to_stderr()
def answer(cookie):
    return 1 / 0
try:
    answer("cookie-of-somebody")
except ZeroDivisionError:
    structlog.get_logger("test").exception("rank failed", request_id="r1")
"""


def test_a_traceback_in_the_log_holds_no_values_of_a_request() -> None:
    finished = subprocess.run([sys.executable, "-c", FAILING], check=True, capture_output=True, text=True)
    entry = json.loads(finished.stderr)
    assert (entry["event"], entry["level"], entry["request_id"]) == ("rank failed", "error", "r1")
    assert entry["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert "somebody" not in json.dumps([frame.get("locals") for frame in entry["exception"][0]["frames"]])


def test_a_version_a_second_leaves_a_line_a_minute_that_counts_the_others() -> None:
    clock, written = ManualClock(), list[structlog.typing.EventDict]()
    sparse = Sparse(clock)
    for second in range(600):
        for model in ("ads", "shop"):
            try:
                written.append(
                    dict(sparse(None, "info", {"event": "serving", "model": model, "version": second}))
                )
            except structlog.DropEvent:
                assert second >= OFTEN_LINES
        clock.advance(1.0)
    lines = [line for line in written if line["model"] == "ads"]
    assert len(written) == 2 * len(lines) and len(lines) == OFTEN_LINES + 9
    assert sum(line.get("unlogged", 0) for line in lines) + len(lines) == lines[-1]["version"] + 1
    assert all(sparse(None, "error", {"event": "version refused"}) for _ in range(100))
    clock.advance(3600.0)
    with pytest.raises(structlog.DropEvent):
        for _ in range(OFTEN_LINES + 1):
            sparse(None, "info", {"event": "serving", "model": "ads"})
