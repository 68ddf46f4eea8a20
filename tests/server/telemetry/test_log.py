"""The server's log as a program reads it."""

from __future__ import annotations

import json
import subprocess
import sys

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
