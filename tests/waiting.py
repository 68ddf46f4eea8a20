"""Waits for what another thread or process brings about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WAIT_S = 30.0
SOONEST_S, LATEST_S = 0.01, 0.1
"""Between two looks: a tenth of the wait so far, within these. Most looks ask a process that has work to do."""


def eventually(holds: Callable[[], object], what: str = "this", within_s: float = WAIT_S) -> float:
    """Wait until `holds` returns true, and return after how many seconds; the test fails after `within_s`."""
    began, pause = time.monotonic(), threading.Event()
    while not holds():
        waited = time.monotonic() - began
        if waited > within_s:
            raise AssertionError(f"{what} did not happen within {within_s:g} s")
        pause.wait(min(max(SOONEST_S, waited / 10), LATEST_S))
    return time.monotonic() - began
