"""Kernels over the value table: slots for a row's keys, the arena of key bytes, buckets, and keys by number."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import hash_bytes, prefetch
from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.examples.examples_kernels import importance_of, x_of
from trainer.learn.admission_kernels import admits
from trainer.learn.slots_kernels import EMPTY, find_slot, home, prefetch_slot, search_from, seen_at

ENTRY_HEAD = 4  # bytes before each key in the arena: its length and its feature's number, uint16 each
_ROWS_AHEAD = 2
NONE = np.int64(-1)
_FREE = np.uint64(0)
_NOT_ZERO = np.uint64(1 << 31)
_ONE = np.uint64(1)
_64 = np.uint64(64)
_KEYS_AHEAD = 16


# Feature hashing: a key's bucket, rows folded to buckets, and the set of the keys' 64-bit hashes.


class Exact(NamedTuple):
    """Every key has a slot of its own."""


class BucketSpace(NamedTuple):
    """size, bits: uint64; first: uint64[features], the first bucket of each feature's group.

    A group has `size` buckets, and there are at most 2^bits in all; bits is at most 31.
    """

    size: Any
    first: Any
    bits: Any


@stub
def slot_key(space: Any, key: Any, feature: Any) -> Any:
    """What a slot of the value table holds for a key: its hash, or a number made of its bucket; never 0."""


implements(slot_key, Exact)(lambda space, key, feature: key)


@implements(slot_key, BucketSpace)
def _bucket_twice(space: Any, key: Any, feature: Any) -> Any:
    """The bucket is both the lowest and the highest bits.

    So in a table of 2^bits slots, of whatever layout, the search for it begins at the slot with the bucket's own
    number: such a table may be full.
    """
    last = np.uint64(space.size - _ONE)
    # A remainder takes as long as all else here, so the usual sizes do without.
    bucket = space.first[feature] + (key & last if not space.size & last else key % space.size)
    return bucket << (_64 - space.bits) | _NOT_ZERO | bucket


@bare_kernel
def fold_rows(space: Any, rows: Any, begin: Any, end: Any, written: Any, out: Any) -> Any:
    """Write rows begin to end with a bucket instead of each key, once each, its x the sum of its keys' x.

    out: `HashedRows` with room for as many features; rows from `end` on have none. written: int64[2^k], -1 everywhere,
    at least twice the features of a row: an open-addressing set of where this row's buckets are in `out`.
    """
    last = np.uint64(written.size - 1)
    at = 0
    for row in range(begin, end):
        first = at
        out.starts[row] = first
        for position in range(rows.starts[row], rows.starts[row + 1]):
            key = slot_key(space, rows.hashes[position], rows.features[position])
            x = x_of(rows, position)
            slot = np.int64(key & last)
            while written[slot] >= first and out.hashes[written[slot]] != key:
                slot = np.int64(np.uint64(slot + 1) & last)
            if written[slot] >= first:  # entries of earlier rows are below
                out.x[written[slot]] += x
                continue
            written[slot] = at
            out.hashes[at], out.features[at], out.x[at] = key, rows.features[position], x
            at += 1
    for row in range(end, out.starts.size):
        out.starts[row] = at


@bare_inline
def slot_in(held: Any, key: Any) -> Any:
    """Where a set holds `key`, or the free slot for it; held: uint64[2^k], open addressing, 0 where free."""
    last = np.uint64(held.size - 1)
    slot = np.int64(key & last)
    while held[slot] != _FREE and held[slot] != key:
        slot = np.int64(np.uint64(slot + 1) & last)
    return slot


@bare_kernel
def enter_hashes(held: Any, free: Any, hashes: Any, position: Any, end: Any, added: Any, count: Any) -> Any:
    """Add hashes to a set until it has `free` more; return (next position, count).

    added: int64 out, from `count` on, the positions of the hashes that were not in it.
    """
    full = count + free
    while position < end and count < full:
        ahead = min(position + _KEYS_AHEAD, end - 1)
        prefetch(held.ctypes.data + np.int64(hashes[ahead] & np.uint64(held.size - 1)) * 8)
        slot = slot_in(held, hashes[position])
        if held[slot] == _FREE:
            held[slot] = hashes[position]
            added[count] = position
            count += 1
        position += 1
    return position, count


@bare_kernel
def move_hashes(held: Any, larger: Any) -> None:
    """Copy a set to a larger, empty one."""
    for index in range(held.size):
        if held[index] != _FREE:
            larger[slot_in(larger, held[index])] = held[index]


# The slots of keys.


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


# The arena: the bytes of all keys, in the order of admission.


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


# Keys by number, in the order of admission: which were touched, and what they are.


@bare_kernel
def index_keys(
    table: Any, space: Any, arena: Any, at: Any, first: Any, count: Any, begins: Any, places: Any, others: Any
) -> Any:
    """Index keys from number `first` on, whose entries in the arena begin at `at`; return the end.

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
