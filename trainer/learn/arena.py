"""Arena: the bytes of a table's keys, end to end in the order of admission, in memory that grows.

An entry is the key's length and its feature's number, uint16 each, and its bytes: see `table_kernels.py`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from trainer.learn.fresh_memory import mapped, resized

_SMALLEST = 1 << 20
_LARGE = 1 << 26
Bytes = npt.NDArray[np.uint8]
Write = Callable[[Bytes, int], int]


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
