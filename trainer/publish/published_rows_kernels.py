"""Walks over the table's slots and the arena's entries: which keys were touched, and what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import hash_bytes
from model_store.jit import bare_inline, bare_kernel
from trainer.learn.buckets_kernels import slot_key
from trainer.learn.slots_kernels import EMPTY, find_slot, seen_at
from trainer.learn.table_kernels import ENTRY_HEAD, entry_feature, entry_length

NONE = np.int64(-1)


@bare_kernel
def index_keys(
    table: Any, space: Any, arena: Any, at: Any, first: Any, count: Any, begins: Any, places: Any, others: Any
) -> Any:
    """Note where keys stand, from number `first` on, whose entry in the arena begins at `at`; return the end.

    Keys are numbered in the order of admission, `count` in all. begins: int64[count] out, where a key's entry begins;
    places: int32[slots] out, the number of the last key that a slot holds; others: int32[count] out, the number of the
    key before it in its slot, NONE for the first; empty where no two keys share a slot.
    """
    for number in range(first, count):
        begins[number] = at
        length = entry_length(arena, at)
        key = hash_bytes(arena.ctypes.data + at + ENTRY_HEAD, length)
        slot = find_slot(table, slot_key(space, key, entry_feature(arena, at)))
        if others.size:
            others[number] = places[slot]
        places[slot] = number
        at += ENTRY_HEAD + length
    return at


@bare_inline
def key_before(others: Any, number: Any) -> Any:
    """The number of another key of the same slot, or NONE."""
    return others[number] if others.size else NONE


@bare_kernel
def touched_since(table: Any, since: Any, places: Any, others: Any, out: Any) -> Any:
    """The keys that example `since` or a later one has touched; return how many.

    out: int64[keys, 2], each key's number and its slot, in the order of the slots. One pass over the slots.
    """
    count = 0
    for slot in range(table.slots.size):
        if table.slots[slot].key != EMPTY and seen_at(table, slot) >= since:
            number = np.int64(places[slot])
            while number != NONE:
                out[count, 0] = number
                out[count, 1] = slot
                count += 1
                number = np.int64(key_before(others, number))
    return count


@bare_kernel
def slots_of_all(table: Any, places: Any, others: Any, out: Any) -> None:
    """Every key's slot, by its number: int64[keys]."""
    for slot in range(table.slots.size):
        if table.slots[slot].key != EMPTY:
            number = np.int64(places[slot])
            while number != NONE:
                out[number] = slot
                number = np.int64(key_before(others, number))


@bare_kernel
def entries_at(arena: Any, begins: Any, numbers: Any, offsets: Any, features: Any) -> None:
    """Of keys by number, the offsets of their bytes set end to end, int64[n + 1], and their features, uint16[n]."""
    offsets[0] = 0
    for index in range(numbers.size):
        at = begins[numbers[index]]
        offsets[index + 1] = offsets[index] + entry_length(arena, at)
        features[index] = entry_feature(arena, at)


@bare_kernel
def bytes_at(arena: Any, begins: Any, numbers: Any, offsets: Any, data: Any) -> None:
    """Copy the bytes of keys by number, end to end."""
    for index in range(numbers.size):
        at = begins[numbers[index]] + ENTRY_HEAD - offsets[index]
        for to in range(offsets[index], offsets[index + 1]):
            data[to] = arena[at + to]
