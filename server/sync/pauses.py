"""Pauses before another try: doubling, jittered, bounded. In one place, so that nothing tries in a tight loop."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Pauses:
    """Waits from `first_s` on that double up to `longest_s`; of each, between half and all is taken."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Seconds to wait after `failures` in a row, from 1 on."""
        longest = min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s)
        return longest * random.uniform(0.5, 1.0)


RECONNECT = Pauses(first_s=0.1, longest_s=5.0)
"""Between attempts to reach the store."""

REFUSED_VERSION = Pauses(first_s=1.0, longest_s=30.0)
"""Between attempts at a version that could not be taken."""

RESPAWN = Pauses(first_s=0.1, longest_s=30.0)
"""Between a worker's end and its successor's start."""

FAILED_SAVE = Pauses(first_s=1.0, longest_s=30.0)
"""Between attempts to keep a model on a disk that does not take it."""


# --- Work that may wait runs at a lower priority than the threads that answer, so that their tail stays flat
# ---


NICER = 10


def yield_to_others() -> None:
    """Lower the priority of the calling thread, where the system knows priorities by thread (Linux).

    Only for a process whose other threads wait for nothing that this one holds: not for a worker.
    """
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICER)
