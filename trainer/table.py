"""The value table: one open-addressing table of 32-byte slots for all variants, and the arena of its keys' bytes.

Invariants: the number of slots is a power of two; at most 7 of 10 are used; `key` 0 is free; the arena holds each
admitted key once, in the order of admission. Not thread-safe: one thread learns. Knows nothing of learners or logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.kernels import hash_keys
from trainer import kernels

SLOT = np.dtype(
    [("key", np.uint64), ("z", np.float64), ("n", np.float64), ("variants", np.uint32), ("count", np.uint32)],
    align=True,
)
SMALLEST_TABLE = 1 << 16
FULL_TENTHS = 7
_SMALLEST_ARENA = 1 << 20


@dataclass(frozen=True)
class TableKeys:
    """The keys of a table, in order of admission: bytes end to end, offsets int64[n + 1], slots int64[n]."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]


class ValueTable:
    """A growing table. `slots` is a structured array of `SLOT`, aligned so that a slot never spans two cache lines."""

    def __init__(self, capacity: int = SMALLEST_TABLE) -> None:
        if capacity < 2 or capacity & (capacity - 1):
            raise ValueError(f"capacity must be a power of two, got {capacity}")
        self.slots = _aligned_slots(capacity)
        self.used = 0
        self.arena = np.empty(_SMALLEST_ARENA, np.uint8)
        self.arena_bytes = 0

    @property
    def room(self) -> int:
        """How many keys fit before the table must grow."""
        return int(self.slots.size) * FULL_TENTHS // 10 - self.used

    @property
    def nbytes(self) -> int:
        """Memory held by slots and arena, in bytes."""
        return int(self.slots.nbytes + self.arena.nbytes)

    def grow(self) -> None:
        """Double the number of slots; every key keeps its state. O(slots)."""
        larger = _aligned_slots(self.slots.size * 2)
        kernels.rehash(self.slots, larger)
        self.slots = larger

    def widen_arena(self) -> None:
        """Double the arena; its content stays."""
        larger = np.empty(self.arena.size * 2, np.uint8)
        larger[: self.arena_bytes] = self.arena[: self.arena_bytes]
        self.arena = larger

    def keys(self) -> TableKeys:
        """Every admitted key with the slot that holds it. O(keys)."""
        lengths = np.empty(self.used, np.int64)
        kernels.arena_lengths(self.arena, lengths)
        offsets = np.zeros(self.used + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        kernels.arena_keys(self.arena, np.ones(self.used, np.uint8), data)
        hashes, slots = np.empty(self.used, np.uint64), np.empty(self.used, np.int64)
        hash_keys(data, offsets, hashes)
        kernels.find_keys(self.slots, hashes, slots)
        return TableKeys(data, offsets, slots)

    def _check(self) -> None:
        """Assert the invariants above."""
        occupied = self.slots["key"] != 0
        assert int(occupied.sum()) == self.used
        assert self.slots.ctypes.data % SLOT.itemsize == 0
        keys = self.keys()
        assert (keys.slots >= 0).all()
        assert np.unique(keys.slots).size == self.used
        assert self.used <= self.slots.size * FULL_TENTHS // 10


def _aligned_slots(capacity: int) -> Any:
    memory = np.zeros((capacity + 1) * SLOT.itemsize, np.uint8)
    shift = -memory.ctypes.data % SLOT.itemsize
    return memory[shift : shift + capacity * SLOT.itemsize].view(SLOT)
