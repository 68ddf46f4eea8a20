"""Walks over the table's slots and the arena's entries: which keys were touched, and what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import hash_bytes
from model_store.jit import bare_kernel
from trainer.learn.slots.search import EMPTY, find_slot
from trainer.learn.slots.state import seen_at
from trainer.learn.table_kernels import ENTRY_HEAD, entry_length


@bare_kernel
def index_keys(table: Any, arena: Any, at: Any, first: Any, used: Any, begins: Any, places: Any) -> Any:
    """Note where keys stand, from number `first` on, whose entry in the arena begins at `at`; return the end.

    Keys are numbered in the order of admission, `used` in all. begins: int64[used] out, where a key's entry begins;
    places: int32[slots] out, the number of the key that a slot holds.
    """
    for number in range(first, used):
        begins[number] = at
        length = entry_length(arena, at)
        places[find_slot(table, hash_bytes(arena.ctypes.data + at + ENTRY_HEAD, length))] = number
        at += ENTRY_HEAD + length
    return at


@bare_kernel
def touched_since(table: Any, since: Any, places: Any, out: Any) -> Any:
    """The keys that example `since` or a later one has touched; return how many.

    out: int64[used, 2], each key's number and its slot, in the order of the slots. One pass over the slots.
    """
    count = 0
    for slot in range(table.slots.size):
        if table.slots[slot].key != EMPTY and seen_at(table, slot) >= since:
            out[count, 0] = places[slot]
            out[count, 1] = slot
            count += 1
    return count


@bare_kernel
def slots_of_all(table: Any, places: Any, out: Any) -> None:
    """Every key's slot, by its number: int64[used]."""
    for slot in range(table.slots.size):
        if table.slots[slot].key != EMPTY:
            out[places[slot]] = slot


@bare_kernel
def entries_at(arena: Any, begins: Any, numbers: Any, offsets: Any, features: Any) -> None:
    """Of keys by number, the offsets of their bytes set end to end, int64[n + 1], and their features, uint16[n]."""
    offsets[0] = 0
    for index in range(numbers.size):
        at = begins[numbers[index]]
        offsets[index + 1] = offsets[index] + entry_length(arena, at)
        features[index] = np.uint16(arena[at + 2]) | np.uint16(arena[at + 3]) << np.uint16(8)


@bare_kernel
def bytes_at(arena: Any, begins: Any, numbers: Any, offsets: Any, data: Any) -> None:
    """Copy the bytes of keys by number, end to end."""
    for index in range(numbers.size):
        at = begins[numbers[index]] + ENTRY_HEAD - offsets[index]
        for to in range(offsets[index], offsets[index + 1]):
            data[to] = arena[at + to]
