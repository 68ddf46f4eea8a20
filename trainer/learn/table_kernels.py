"""Kernels over the value table: slots for a row's keys, prefetching, and the arena of key bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of
from trainer.learn.admission_kernels import admits
from trainer.learn.buckets_kernels import slot_key
from trainer.learn.slots_kernels import EMPTY, find_slot, home, prefetch_slot, search_from

ENTRY_HEAD = 4  # bytes before each key in the arena: its length and its feature's number, uint16 each
_ROWS_AHEAD = 2


@bare_inline
def claim_slots(
    table: Any,
    admission: Any,
    rows: Any,
    row: Any,
    t: Any,
    slots: Any,
    positions: Any,
    added: Any,
    count: Any,
) -> Any:
    """Find the slots of a row's keys; claim slots for new keys that are admitted at example t.

    A row of importance 0 claims none: a new key's weight is read from an empty slot, which holds that of a new key.

    For each key it prefetches the slot of one of a later row: one by one they arrive beside the work, while many at
    once wait for each other.

    slots, positions: uint64 out, the slot and the position in the batch of each key that is in the table now; positions
    of new keys are appended to `added`. Returns (number of slots written, count of all new keys).
    """
    begin, end, keys = rows.starts[row], rows.starts[row + 1], rows.starts[rows.labels.size]
    ahead = rows.starts[min(row + _ROWS_AHEAD, rows.labels.size)] - begin
    if end + ahead > keys:
        ahead = 0
    size = 0
    for position in range(begin, end):
        prefetch_slot(table, rows.hashes[np.uint64(position + ahead)])
        key = rows.hashes[np.uint64(position)]
        slot = np.uint64(home(table, key))
        if table.slots[slot].key != key:  # few keys: most are where the search begins
            slot = np.uint64(search_from(table, np.int64(slot), key))
            if table.slots[slot].key == EMPTY and importance_of(rows, row) != 0.0:
                if not admits(admission, key, rows.features[np.uint64(position)], t):
                    continue
                table.slots[slot].key = key
                added[count] = position
                count += 1
        slots[size] = slot
        positions[size] = np.uint64(position)
        size += 1
    return size, count


@bare_kernel
def has_repeats(rows: Any, begin: Any, end: Any, last: Any) -> Any:
    """Whether one of the rows from `begin` to before `end` has a key twice.

    last: int64 scratch, a power of two of them, all -1: the last position by the low bits of its key.
    """
    mask = np.uint64(last.size - 1)
    for row in range(begin, end):
        first = rows.starts[row]
        for position in range(first, rows.starts[row + 1]):
            key = rows.hashes[position]
            low = np.int64(key & mask)
            if last[low] >= first:
                for before in range(first, position):
                    if rows.hashes[before] == key:
                        return True
            last[low] = position
    return False


@bare_kernel
def find_keys(table: Any, space: Any, hashes: Any, features: Any, found: Any) -> None:
    """The slot of every key by its hash and feature, -1 where it is not in the table: found int64[n] out."""
    for index in range(hashes.size):
        slot = find_slot(table, slot_key(space, hashes[index], features[index]))
        found[index] = slot if table.slots[slot].key != EMPTY else -1


@bare_kernel
def claim_keys(table: Any, space: Any, hashes: Any, features: Any, found: Any) -> Any:
    """Claim a slot for every key that has none: found int64[n] out. Returns how many were claimed."""
    claimed: Any = 0
    for index in range(hashes.size):
        key = slot_key(space, hashes[index], features[index])
        slot = find_slot(table, key)
        claimed += np.int64(table.slots[slot].key == EMPTY)
        table.slots[slot].key = key
        found[index] = slot
    return claimed


@bare_inline
def entry_length(arena: Any, at: Any) -> Any:
    """The length of the key whose entry begins at `at`."""
    return np.int64(arena[at]) | np.int64(arena[at + 1]) << 8


@bare_inline
def entry_feature(arena: Any, at: Any) -> Any:
    """The feature of the key whose entry begins at `at`."""
    return np.uint16(arena[at + 2]) | np.uint16(arena[at + 3]) << np.uint16(8)


@bare_kernel
def arena_entries(arena: Any, lengths: Any, features: Any) -> None:
    """Read the length and the feature of every key in the arena: int64[keys], uint16[keys]."""
    at = np.int64(0)
    for index in range(lengths.size):
        lengths[index] = entry_length(arena, at)
        features[index] = entry_feature(arena, at)
        at += ENTRY_HEAD + lengths[index]


@bare_kernel
def arena_keys(arena: Any, kept: Any, data: Any) -> None:
    """Copy the bytes of the keys with kept[i] != 0 out of the arena, end to end."""
    at = np.int64(0)
    to = np.int64(0)
    for index in range(kept.size):
        length = entry_length(arena, at)
        at += ENTRY_HEAD
        if kept[index]:
            for byte in range(length):
                data[to + byte] = arena[at + byte]
            to += length
        at += length


@bare_kernel
def compact_arena(arena: Any, kept: Any) -> Any:
    """Drop the entries with kept[i] == 0, in place; return the new end."""
    at = np.int64(0)
    to = np.int64(0)
    for index in range(kept.size):
        size = ENTRY_HEAD + entry_length(arena, at)
        if kept[index]:
            for byte in range(size):
                arena[to + byte] = arena[at + byte]
            to += size
        at += size
    return to


@bare_kernel
def append_keys(arena: Any, at: Any, data: Any, offsets: Any, features: Any) -> Any:
    """Append keys to the arena; return the end. data uint8, offsets int64[n + 1], features uint16[n]."""
    for index in range(features.size):
        length = offsets[index + 1] - offsets[index]
        arena[at] = np.uint8(length & 0xFF)
        arena[at + 1] = np.uint8(length >> 8)
        arena[at + 2] = np.uint8(features[index] & np.uint16(0xFF))
        arena[at + 3] = np.uint8(features[index] >> np.uint16(8))
        at += ENTRY_HEAD
        for byte in range(offsets[index], offsets[index + 1]):
            arena[at] = data[byte]
            at += 1
    return at
