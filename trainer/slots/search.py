"""Where a key lies in a table of each layout. docs/table.md says how full a table may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, implements, stub
from model_store.kernels import prefetch
from trainer.slots.layouts import (
    COMPACT,
    OWN,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)

EMPTY = np.uint64(0)

_U32 = np.uint64(32)


@stub
def home(table: Any, key: Any) -> Any:
    """The slot where the search for a key begins."""


@implements(home, Full, FullCounts, *OWN)
def _low_bits(table: Any, key: Any) -> Any:
    return np.int64(key & np.uint64(table.slots.size - 1))


@implements(home, *COMPACT)
def _high_bits_times_slots(table: Any, key: Any) -> Any:
    """Any number of slots below 2^32 is possible, so that a compact table can grow by a tenth and stay full."""
    return np.int64(((key >> _U32) * np.uint64(table.slots.size)) >> _U32)


@bare_inline
def find_slot(table: Any, key: Any) -> Any:
    """The slot that holds `key`, or the free slot where it belongs. Linear probing; the table is never full."""
    slots = table.slots
    slot = home(table, key)
    while slots[slot].key != key and slots[slot].key != EMPTY:
        slot += 1
        if slot == slots.size:
            slot = 0
    return slot


@stub
def prefetch_slot(table: Any, key: Any) -> Any:
    """Ask for the cache lines of a key's slot."""


@implements(prefetch_slot, Full, FullCounts)
def _prefetch_shared(table: Any, key: Any) -> Any:
    prefetch(table.slots.ctypes.data + home(table, key) * table.slots.itemsize)


@implements(prefetch_slot, *COMPACT)
def _prefetch_compact(table: Any, key: Any) -> Any:
    """Two lines: searches in a table so full often reach the next one."""
    first = table.slots.ctypes.data + home(table, key) * table.slots.itemsize
    prefetch(first)
    prefetch(first + 64)


@implements(prefetch_slot, Own, OwnCounts)
def _prefetch_own(table: Any, key: Any) -> Any:
    slot = home(table, key)
    prefetch(table.slots.ctypes.data + slot * table.slots.itemsize)
    prefetch(table.z.ctypes.data + slot * table.z.shape[1] * 8)


@implements(prefetch_slot, OwnCompact, OwnCompactCounts)
def _prefetch_own_compact(table: Any, key: Any) -> Any:
    prefetch(table.slots.ctypes.data + home(table, key) * table.slots.itemsize)
