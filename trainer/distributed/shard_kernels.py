"""Kernels that make a shard: numbers for keys, and the columns of its rows.

A number table is a uint64 array of pairs (hash, number + 1), a power of two of them, searched linearly; 0 is a free
place. Its keys are numbered from 0 in the order of first occurrence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel
from trainer.learn.slots_kernels import EMPTY, find_slot

_AHEAD = 16
_FREE = np.uint64(0)
_ONE = np.uint64(1)


class EntryArrays(NamedTuple):
    """Rows without labels: starts int64[rows + 1] into ids, int32, and x, empty where every x is 1."""

    starts: Any
    ids: Any
    x: Any


@bare_inline
def place_of(table: Any, key: Any) -> Any:
    """Where the pair of `key` is in the table, or the free place where it belongs."""
    mask = np.uint64(table.size // 2 - 1)
    place: Any = 2 * np.int64(key & mask)
    while table[place + 1] != _FREE and table[place] != key:
        place += 2
        if place == table.size:
            place = 0
    return place


@bare_kernel
def number_keys(table: Any, hashes: Any, ids: Any, known: Any) -> Any:
    """Number keys: ids int32[n] out. Returns how many are known afterwards.

    known: how many are in the table, which must have room for all.
    """
    mask = np.uint64(table.size // 2 - 1)
    for index in range(hashes.size):
        if index + _AHEAD < hashes.size:
            prefetch(table.ctypes.data + 16 * np.int64(hashes[index + _AHEAD] & mask))
        place = place_of(table, hashes[index])
        if table[place + 1] == _FREE:
            known += 1
            table[place], table[place + 1] = hashes[index], np.uint64(known)
        ids[index] = np.int32(table[place + 1] - _ONE)
    return known


@bare_kernel
def hashes_of(table: Any, hashes: Any) -> None:
    """The hash of every number: uint64[known] out."""
    for at in range(0, table.size, 2):
        if table[at + 1] != _FREE:
            hashes[table[at + 1] - _ONE] = table[at]


@bare_kernel
def move_numbers(old: Any, new: Any) -> None:
    """Copy all pairs to an empty table."""
    for at in range(0, old.size, 2):
        if old[at + 1] != _FREE:
            place = place_of(new, old[at])
            new[place], new[place + 1] = old[at], old[at + 1]


@bare_kernel
def count_ids(ids: Any, counts: Any) -> None:
    """Add the occurrences of each key to counts: int64[keys]."""
    for index in range(ids.size):
        counts[ids[index]] += 1


@bare_kernel
def transpose(
    rows: Any, begin: Any, end: Any, first: Any, last: Any, cursor: Any, of_rows: Any, x: Any
) -> None:
    """Write the entries of rows `begin` to `end` whose keys are `first` to `last`, key by key, rows in order.

    rows: `EntryArrays`; cursor: int64[last - first], where each key's next entry goes, changed in place; of_rows int32,
    x float64: out.
    """
    for row in range(begin, end):
        for position in range(rows.starts[row], rows.starts[row + 1]):
            key = rows.ids[position]
            if first <= key < last:
                at = cursor[key - first]
                cursor[key - first] = at + 1
                of_rows[at] = row
                if rows.x.size:
                    x[at] = rows.x[position]


@bare_kernel
def claim_new(table: Any, hashes: Any, added: Any) -> Any:
    """Claim a slot for every key that has none; its position goes to `added`. Returns how many."""
    count = 0
    for index in range(hashes.size):
        slot = find_slot(table, hashes[index])
        if table.slots[slot].key == EMPTY:
            table.slots[slot].key = hashes[index]
            added[count] = index
            count += 1
    return count
