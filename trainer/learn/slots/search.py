"""Finds a key's slot in a table of each layout, and moves slots to a table of another size.

docs/table.md says how full a table may be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.learn.slots.layouts import (
    COMPACT,
    OWN,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)
from trainer.learn.slots.state import seen_at, slot_bytes

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
    """Allows any number of slots below 2^32, so that a compact table can grow by a tenth and stay full."""
    return np.int64(((key >> _U32) * np.uint64(table.slots.size)) >> _U32)


@bare_inline
def find_slot(table: Any, key: Any) -> Any:
    """The slot that holds `key`, or the free slot where it belongs. Linear probing; the table is never full."""
    return search_from(table, home(table, key), key)


@bare_inline
def search_from(table: Any, slot: Any, key: Any) -> Any:
    """`find_slot` from a slot on."""
    slots = table.slots
    while slots[np.uint64(slot)].key != key and slots[np.uint64(slot)].key != EMPTY:
        slot += 1
        if slot == slots.size:
            slot = 0
    return slot


@stub
def prefetch_slot(table: Any, key: Any) -> Any:
    """Prefetch the cache lines of a key's slot."""


@implements(prefetch_slot, Full, FullCounts)
def _prefetch_shared(table: Any, key: Any) -> Any:
    """The home and the slot after it, which in half of all cases is in the next line."""
    first = table.slots.ctypes.data + home(table, key) * slot_bytes(table)
    prefetch(first)
    prefetch(first + slot_bytes(table))


@implements(prefetch_slot, *COMPACT)
def _prefetch_compact(table: Any, key: Any) -> Any:
    """Two lines: searches in a table this full often reach the next line."""
    first = table.slots.ctypes.data + home(table, key) * slot_bytes(table)
    prefetch(first)
    prefetch(first + 64)


@implements(prefetch_slot, Own, OwnCounts)
def _prefetch_own(table: Any, key: Any) -> Any:
    slot = home(table, key)
    prefetch(table.slots.ctypes.data + slot * slot_bytes(table))
    prefetch(table.z.ctypes.data + slot * table.z.shape[1] * 8)


@implements(prefetch_slot, OwnCompact, OwnCompactCounts)
def _prefetch_own_compact(table: Any, key: Any) -> Any:
    prefetch(table.slots.ctypes.data + home(table, key) * slot_bytes(table))


@bare_kernel
def move(old: Any, new: Any, before: Any) -> Any:
    """Copy every slot of `old` last seen at example `before` or later to the empty table `new`; return how many."""
    moved = 0
    for index in range(old.slots.size):
        if old.slots[index].key == EMPTY or seen_at(old, index) < before:
            continue
        slot = find_slot(new, old.slots[index].key)
        new.slots[slot] = old.slots[index]
        move_own(old, new, index, slot)
        moved += 1
    return moved


@bare_kernel
def spread(table: Any, half: Any, words: Any, first: Any, second: Any) -> None:
    """Bring every key to its place in a table that was doubled in place, whose upper half is empty.

    half: slots before; words: uint64[slots, words of a slot], the slots; first, second: uint8[slots, bytes], the
    per-variant arrays, with 0 bytes if there are none.

    Begins after a free slot and takes the slots in turn. So when one is taken, those between its key's home and itself
    are settled, and the search for its place ends there at the latest.
    """
    start = np.int64(0)
    while words[start, 0] != EMPTY:
        start += 1
    for step in range(1, half):
        index = start + step
        if index >= half:
            index -= half
        key = words[index, 0]
        if key == EMPTY:
            continue
        words[index, 0] = EMPTY
        slot = find_slot(table, key)
        words[slot, 0] = key
        if slot != index:
            for word in range(1, words.shape[1]):
                words[slot, word], words[index, word] = words[index, word], np.uint64(0)
            for byte in range(first.shape[1]):
                first[slot, byte], first[index, byte] = first[index, byte], np.uint8(0)
            for byte in range(second.shape[1]):
                second[slot, byte], second[index, byte] = second[index, byte], np.uint8(0)


@stub
def move_own(old: Any, new: Any, index: Any, slot: Any) -> Any:
    """Copy the per-variant arrays of a slot."""


@implements(move_own, Full, FullCounts, *COMPACT)
def _move_nothing(old: Any, new: Any, index: Any, slot: Any) -> Any:
    pass


@implements(move_own, Own)
def _move_z_n(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.z.shape[1]):
        new.z[slot, v] = old.z[index, v]
        new.n[slot, v] = old.n[index, v]


@implements(move_own, OwnCounts)
def _move_z(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.z.shape[1]):
        new.z[slot, v] = old.z[index, v]


@implements(move_own, OwnCompact)
def _move_words(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.words.shape[1]):
        new.words[slot, v] = old.words[index, v]


@implements(move_own, OwnCompactCounts)
def _move_q(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.q.shape[1]):
        new.q[slot, v] = old.q[index, v]
