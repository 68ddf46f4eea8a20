"""Memory that building a model took and nothing holds any more, given back to the system.

Allocators keep what was freed for the next time, which for a whole model may be hours away: after 3 million keys some
170 MB, twice the supervisor itself.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import cache
from typing import Any


def give_back() -> None:
    """Let the allocators of Arrow and of C return what they do not use. Some 10 ms; call it after large work."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    _trim()(0)


@cache
def _trim() -> Callable[[int], Any]:
    """glibc's malloc_trim; where the C library has none, nothing."""
    trim: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim or (lambda pad: None)
