"""Kernels of the value table, which every learner shares: rows, slots, the arena of key bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from model_store.kernels import prefetch

_EMPTY = np.uint64(0)
_ROWS_AHEAD = 2


class HashedRows(NamedTuple):
    """Rows as learners take them: starts int64[m + 1] into hashes (uint64), features (uint16) and x (float64).

    x is empty where every x is 1; labels float64[m]; weights float64[m], or empty where all are 1.
    """

    starts: Any
    hashes: Any
    features: Any
    x: Any
    labels: Any
    weights: Any


@bare_inline
def x_of(rows: Any, position: Any) -> Any:
    """The x of a feature."""
    return rows.x[position] if rows.x.size else 1.0


@bare_inline
def importance_of(rows: Any, row: Any) -> Any:
    """The importance weight of a row."""
    return rows.weights[row] if rows.weights.size else 1.0


@bare_inline
def find_slot(slots: Any, key: Any) -> Any:
    """The slot that holds `key`, or the free slot where it belongs. Linear probing; the table is never full."""
    mask = slots.size - 1
    slot = np.int64(key & np.uint64(mask))
    while slots[slot].key != key and slots[slot].key != _EMPTY:
        slot = (slot + 1) & mask
    return slot


@bare_inline
def claim_slots(
    slots: Any, rows: Any, masks: Any, first: Any, size: Any, found: Any, added: Any, count: Any
) -> Any:
    """Find or claim the slot of each feature of one row into `found`; note new keys in `added`; return their count."""
    for i in range(size):
        key = rows.hashes[first + i]
        slot = find_slot(slots, key)
        if slots[slot].key == _EMPTY:
            slots[slot].key = key
            slots[slot].variants = masks[rows.features[first + i]]
            added[count] = first + i
            count += 1
        slots[slot].count += np.uint32(slots[slot].count != np.uint32(0xFFFFFFFF))
        found[i] = slot
    return count


@bare_inline
def prefetch_ahead(slots: Any, rows: Any, row: Any) -> None:
    """Ask for the cache lines of a later row's slots, so that they arrive while this row is computed."""
    ahead = min(row + _ROWS_AHEAD, rows.labels.size - 1)
    mask = np.uint64(slots.size - 1)
    origin = slots.ctypes.data
    for position in range(rows.starts[ahead], rows.starts[ahead + 1]):
        prefetch(origin + np.int64(rows.hashes[position] & mask) * 32)


@bare_kernel
def rehash(old: Any, new: Any) -> None:
    """Move every occupied slot of `old` to its place in the larger `new`."""
    for index in range(old.size):
        if old[index].key != _EMPTY:
            new[find_slot(new, old[index].key)] = old[index]


@bare_kernel
def find_keys(slots: Any, hashes: Any, found: Any) -> None:
    """The slot of every hash, or -1 where the table does not hold it: int64[n]."""
    for index in range(hashes.size):
        slot = find_slot(slots, hashes[index])
        found[index] = slot if slots[slot].key != _EMPTY else -1


@bare_kernel
def arena_lengths(arena: Any, lengths: Any) -> None:
    """Read the length of every key in the arena into int64[keys]."""
    at = np.int64(0)
    for index in range(lengths.size):
        lengths[index] = np.int64(arena[at]) | np.int64(arena[at + 1]) << 8
        at += 2 + lengths[index]


@bare_kernel
def arena_keys(arena: Any, kept: Any, data: Any) -> None:
    """Copy the bytes of the keys with kept[i] != 0 out of the arena, end to end."""
    at = np.int64(0)
    to = np.int64(0)
    for index in range(kept.size):
        length = np.int64(arena[at]) | np.int64(arena[at + 1]) << 8
        at += 2
        if kept[index]:
            for byte in range(length):
                data[to + byte] = arena[at + byte]
            to += length
        at += length
