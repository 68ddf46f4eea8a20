"""Waits for what another thread or process brings about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WAIT_S = 30.0


def eventually(holds: Callable[[], object], what: str = "this", within_s: float = WAIT_S) -> float:
    """Wait until `holds` returns true, and return after how many seconds; the test fails after `within_s`."""
    began, pause = time.monotonic(), threading.Event()
    while not holds():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"{what} did not happen within {within_s:g} s")
        pause.wait(0.01)
    return time.monotonic() - began
