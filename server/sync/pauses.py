"""Pauses before another try: doubling, jittered, bounded. In one place, so that nothing tries in a tight loop."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from model_store.backoff import Pauses

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
