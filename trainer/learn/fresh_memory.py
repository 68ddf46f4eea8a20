"""Memory from the kernel that grows where it is; for the value table and the arena.

Fresh memory is touched in small pages, and may become huge pages afterwards: docs/formats/table.md says why.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

_LARGE = 4 << 20


def mapped(nbytes: int) -> mmap.mmap:
    """Zeroed memory, which `resized` extends. Raises MemoryError if there is not so much."""
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {nbytes:,} bytes for the value table or its keys: {error.strerror}") from error
    _advise(memory, "MADV_NOHUGEPAGE")
    return memory


def resized(memory: mmap.mmap, nbytes: int) -> bool:
    """Give memory another size where it is; False if something has a view of it, or the system cannot."""
    try:
        memory.resize(nbytes)
    except (BufferError, SystemError, OSError):
        return False
    _advise(memory, "MADV_NOHUGEPAGE")
    return True


def touch(memory: mmap.mmap, begin: int) -> None:
    """Write to each page from byte `begin` on, all of it fresh: a page that is read first costs two faults."""
    np.frombuffer(memory, np.uint8, offset=begin)[:: mmap.PAGESIZE] = 0


def allow_huge_pages(memory: mmap.mmap) -> None:
    """Let the kernel make huge pages of small ones, beside the work."""
    _advise(memory, "MADV_HUGEPAGE")


def _advise(memory: mmap.mmap, advice: str) -> None:
    """Give the kernel advice on large memory, if it knows this one."""
    if len(memory) >= _LARGE and hasattr(mmap, advice):
        with suppress(OSError):
            memory.madvise(getattr(mmap, advice))
