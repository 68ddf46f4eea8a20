"""Memory from the kernel that grows where it is, for the value table and for the arena, which holds its keys' bytes.

The arena has a table's keys end to end, in the order of admission. An entry is the key's length and its feature's
number, uint16 each, and its bytes: see `table_kernels.py`. Fresh memory is touched in small pages, and may become huge
pages afterwards: docs/formats/table.md says why.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import numpy.typing as npt

_SMALLEST = 1 << 20
_LARGE = 1 << 26
_LARGE_PAGES = 4 << 20
Bytes = npt.NDArray[np.uint8]
Write = Callable[[Bytes, int], int]


def mapped(nbytes: int) -> mmap.mmap:
    """Zeroed memory, which `resized` extends. Raises MemoryError if there is not enough."""
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
    if len(memory) >= _LARGE_PAGES and hasattr(mmap, advice):
        with suppress(OSError):
            memory.madvise(getattr(mmap, advice))


class Arena:
    """Growing memory to which one thread appends; what it appends later, another thread writes meanwhile.

    Everything but `append` waits until all is written, and raises what went wrong there.
    """

    def __init__(self) -> None:
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._mapped, self._memory = _fresh(_SMALLEST)
        self._end = 0

    @property
    def memory(self) -> Bytes:
        """The entries, and free space."""
        self.settle()
        return self._memory

    @property
    def end(self) -> int:
        """Where the entries end, in bytes."""
        self.settle()
        return self._end

    def append(self, write: Write, *, later: bool = False) -> None:
        """Append entries by `write(memory, end)`: it returns the new end, or a negative number if there is no room.

        It is called again when there is more room. later: by another thread, after what was appended before.
        """
        self.settle()
        if not later:
            self._append(write)
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="arena")
        self._writing = self._writer.submit(self._append, write)

    def settle(self) -> None:
        """Wait until everything is written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def reserve(self, nbytes: int) -> None:
        """Make room for so many bytes after the end."""
        self.settle()
        while self._end + nbytes > self._memory.size:
            self._widen()

    def truncate(self, end: int) -> None:
        """End there; free space that is most of the memory is given back."""
        self.settle()
        self._end = end
        if end < self._memory.size // 2:
            self.resize(max(_SMALLEST, end + end // 4))

    def restore(self, entries: Bytes) -> None:
        """Hold these entries and no others."""
        self.settle()
        self._mapped, self._memory = _fresh(max(_SMALLEST, entries.size))
        self._memory[: entries.size] = entries
        self._end = entries.size

    def resize(self, nbytes: int) -> None:
        """Hold so much memory; the entries stay."""
        self.settle()
        self._resize(nbytes)

    def _append(self, write: Write) -> None:
        while (end := write(self._memory, self._end)) < 0:
            self._widen()
        self._end = end

    def _widen(self) -> None:
        """Double the memory, or enlarge a large one by half."""
        size = self._memory.size
        self._resize(size + (size if size < _LARGE else size // 2))

    def _resize(self, nbytes: int) -> None:
        del self._memory  # memory with views cannot be resized
        is_resized = resized(self._mapped, nbytes)
        self._memory = np.frombuffer(self._mapped, np.uint8)
        if not is_resized:
            old, (self._mapped, self._memory) = self._memory, _fresh(nbytes)
            self._memory[: self._end] = old[: self._end]


def _fresh(nbytes: int) -> tuple[mmap.mmap, Bytes]:
    """Memory, and an array over it."""
    memory = mapped(nbytes)
    return memory, np.frombuffer(memory, np.uint8)
