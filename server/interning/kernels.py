"""Interning kernels: byte strings to small numbers, by open addressing. What the strings mean is their callers' affair.

A table is int32[2^k], larger than the number of strings in it; it holds their numbers, -1 where free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from model_store.kernels import prefetch

# In `half`: this key belongs to no mixed cross; in an item's codes: no half that the model knows.
NO_HALF = -1
UNKNOWN = -1  # in `rows`: no such id
MALFORMED = -1

_OFFSET_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@bare_kernel
def index_ids(id_data: Any, id_offsets: Any, table: Any) -> None:
    """Enter the row of each id: id_data uint8, id_offsets int64[n + 1] into it, the table all free."""
    mask = np.uint64(table.size - 1)
    for row in range(id_offsets.size - 1):
        place = _hash(id_data, id_offsets[row], id_offsets[row + 1]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = row


@bare_kernel
def find_ids(id_data: Any, id_offsets: Any, table: Any, text: Any, rows: Any) -> Any:
    """rows[i] = the row of the i-th id in `text` (uint8; a NUL follows each id), or UNKNOWN.

    Returns how many are unknown; MALFORMED if `text` does not hold rows.size ids, so that one has a NUL inside.
    Each step touches memory that the step before asked for. Waiting for one id at a time takes seven times as long
    when the caches are cold.
    """
    if _hash_ids(table, text, rows) != text.size:
        return MALFORMED
    _ask_for_bytes(id_data, id_offsets, table, rows)
    mask, at, unknown = np.uint64(table.size - 1), 0, 0
    for i in range(rows.size):
        end = _end_of_id(text, at)
        place = np.uint64(rows[i])
        row = np.int64(table[place])
        while row >= 0 and not _same(id_data, id_offsets[row], id_offsets[row + 1], text, at, end):
            place = (place + np.uint64(1)) & mask
            row = np.int64(table[place])
        rows[i] = row
        unknown += row == UNKNOWN
        at = end + 1
    return unknown


@bare_inline
def _hash_ids(table: Any, text: Any, rows: Any) -> Any:
    """rows[i] = the place of the i-th id in the table; return where the last id ended."""
    mask, at = np.uint64(table.size - 1), 0
    for i in range(rows.size):
        end = _end_of_id(text, at)
        rows[i] = _hash(text, at, end) & mask
        prefetch(table.ctypes.data + np.int64(rows[i]) * table.itemsize)
        at = end + 1
    return at


@bare_inline
def _ask_for_bytes(id_data: Any, id_offsets: Any, table: Any, rows: Any) -> None:
    for i in range(rows.size):
        prefetch(id_offsets.ctypes.data + max(0, np.int64(table[rows[i]])) * id_offsets.itemsize)
    for i in range(rows.size):
        prefetch(id_data.ctypes.data + id_offsets[max(0, np.int64(table[rows[i]]))])


@bare_inline
def _end_of_id(text: Any, at: Any) -> Any:
    while at < text.size and text[at] != 0:
        at += 1
    return at


@bare_kernel
def intern_halves(
    key_data: Any, key_offsets: Any, start: Any, stop: Any, prefix: Any, stars: Any,
    table: Any, halves: Any, count: Any, half: Any,
) -> Any:  # fmt: skip
    """Number the distinct item halves of one cross's keys, slots [start, stop); return the new `count`.

    A half is what follows the `stars`-th `*` after the prefix. Invariant: table int32[2^k] is an open-addressing
    table, less than full, of the `count` numbers given so far, -1 where free; halves int64[count, 2] says where in
    key_data each begins and ends; half int32[slots] gets each slot's number, NO_HALF if its key has too few `*`.
    """
    mask = np.uint64(table.size - 1)
    for slot in range(start, stop):
        at, end = np.int64(key_offsets[slot]) + prefix, np.int64(key_offsets[slot + 1])
        left = stars
        while left > 0 and at < end:
            left -= key_data[at] == 0x2A
            at += 1
        if left > 0:
            half[slot] = NO_HALF
            continue
        place = _hash(key_data, at, end) & mask
        while table[place] >= 0 and not _same(
            key_data, at, end, key_data, halves[table[place], 0], halves[table[place], 1]
        ):
            place = (place + np.uint64(1)) & mask
        if table[place] < 0:
            table[place] = count
            halves[count, 0], halves[count, 1] = at, end
            count += 1
        half[slot] = table[place]
    return count


@bare_inline
def _hash(data: Any, at: Any, end: Any) -> Any:
    """FNV-1a, 64 bits (Fowler, Noll, Vo), folded so that the low bits depend on every byte."""
    state = _OFFSET_BASIS
    for i in range(at, end):
        state = (state ^ np.uint64(data[i])) * _PRIME
    return _folded(state)


@bare_inline
def _folded(state: Any) -> Any:
    return state ^ (state >> np.uint64(32))


@bare_inline
def _same(a_data: Any, a: Any, a_end: Any, b_data: Any, b: Any, b_end: Any) -> Any:
    if a_end - a != b_end - b:
        return False
    for i in range(a_end - a):
        if a_data[a + i] != b_data[b + i]:
            return False
    return True
