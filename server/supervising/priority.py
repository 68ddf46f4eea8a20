"""Work that may wait runs at a lower priority than the threads that answer, so that their tail stays flat."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

NICER = 10


def yield_to_others() -> None:
    """Lower the priority of the calling thread, where the system knows priorities by thread (Linux).

    Only for a process whose other threads wait for nothing that this one holds: not for a worker.
    """
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICER)
