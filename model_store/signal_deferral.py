"""Handlers of signals that raise an exception: not while LLVM waits for an answer from Python."""

from __future__ import annotations

import os
import threading
from types import FrameType

_AGAIN_S = 0.01
_UNINTERRUPTED = ("llvmlite.", "numba.core.compiler_lock")


def deferred(number: int, frame: FrameType | None) -> bool:
    """Whether the handler of signal `number`, which interrupted `frame`, must not raise now; the signal comes again.

    While a kernel is compiled or loaded, LLVM calls back into Python. ctypes prints an exception that is raised there
    and drops it: the signal would have no effect, and LLVM, without the answer it called for, ends the process by
    SIGSEGV. Raised while numba takes or gives back its lock, it leaves the lock taken, and the process never ends:
    other threads wait for it.
    """
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_UNINTERRUPTED):
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()
            return True
        frame = frame.f_back
    return False
