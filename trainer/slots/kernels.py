"""What can be done with a slot of each layout, compiled into the kernels that call it.

A coordinate is read as (value, n): the learner's value (w, z or G) as it is stored, and its sum of squared gradients,
or what stands for it. The q2.13 forms round a value to a multiple of 2^-13, up or down by chance, so that the expected
error is 0 (the paper, section 4.1.2; chance is a seeded hash of the key and the example, so it is the same each time).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import overload

from model_store.jit import BARE_OPTIONS, bare_inline, bare_kernel, implements, stub
from model_store.kernels import bits_of_float, float_of_bits, prefetch
from trainer.slots.layouts import (
    COMPACT,
    OWN,
    Compact,
    CompactCounts,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)

FULL_LAYOUTS = (Full, FullCounts)
STEP = 1.0 / 8192.0
EMPTY = np.uint64(0)
MAX_COUNT = 0xFFFFFFFF

_EXACT_COUNTS = 1 << 23  # a 24-bit count is exact up to here; each further unit stands for 2^8 examples
_COARSE = 256
_ONE_IN_256 = np.uint64(1 << 56)
_MAX_24 = (1 << 24) - 1
_LOW_16 = np.uint64(0xFFFF)
_24_BITS = np.uint64(_MAX_24)
_U16 = np.uint64(16)
_U40 = np.uint64(40)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_U27, _U30, _U31, _U32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_UNIT = 2.0**-32


# -- where a key lies


@stub
def home(table: Any, key: Any) -> Any:
    """The slot where the search for a key begins."""


@implements(home, *FULL_LAYOUTS, *OWN)
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


@implements(prefetch_slot, *FULL_LAYOUTS, *COMPACT)
def _prefetch_shared(table: Any, key: Any) -> Any:
    prefetch(table.slots.ctypes.data + home(table, key) * table.slots.itemsize)


@implements(prefetch_slot, Own, OwnCounts)
def _prefetch_own(table: Any, key: Any) -> Any:
    slot = home(table, key)
    prefetch(table.slots.ctypes.data + slot * table.slots.itemsize)
    prefetch(table.z.ctypes.data + slot * table.z.shape[1] * 8)


@implements(prefetch_slot, OwnCompact, OwnCompactCounts)
def _prefetch_own_compact(table: Any, key: Any) -> Any:
    prefetch(table.slots.ctypes.data + home(table, key) * table.slots.itemsize)


# -- chance


@bare_inline
def chance(seed: Any, key: Any, example: Any, what: Any) -> Any:
    """64 bits of chance for this key at this example, uniform and reproducible (splitmix64's finaliser)."""
    h = key ^ (np.uint64(example) * _GOLDEN) ^ seed ^ (np.uint64(what) << _U40)
    h = (h ^ (h >> _U30)) * _MIX_1
    h = (h ^ (h >> _U27)) * _MIX_2
    return h ^ (h >> _U31)


@bare_inline
def luck_in(bits: Any) -> Any:
    """A number in [0, 1) from the upper 32 bits of chance."""
    return np.float64(np.int64(bits >> _U32)) * _UNIT


@bare_inline
def rounded(value: Any, luck: Any) -> Any:
    """2^13 value as an integer, rounded down after adding luck in [0, 1), and clipped to 16 bits."""
    return np.int64(min(max(math.floor(value * 8192.0 + luck), -32768.0), 32767.0))


@bare_inline
def with_value(state: Any, q: Any) -> Any:
    """A state word with another value."""
    return (state & ~_LOW_16) | (np.uint64(q) & _LOW_16)


@bare_inline
def value_in(state: Any) -> Any:
    """The value of a state word."""
    return np.float64(np.int16(state & _LOW_16)) * STEP


@bare_inline
def word_of(value: Any, n: Any, seed: Any, key: Any, example: Any, what: Any) -> Any:
    """A word of a q2.13 value and the upper 48 bits of n, both rounded without bias."""
    bits = chance(seed, key, example, what)
    upper = np.uint64(bits_of_float(n)) + (bits & _LOW_16)
    return with_value(upper, rounded(value, luck_in(bits)))


# -- what a slot holds


@stub
def value_of(table: Any, slot: Any, v: Any) -> Any:
    """A coordinate's value as it is stored."""


@stub
def n_of(table: Any, slot: Any, v: Any) -> Any:
    """A coordinate's sum of squared gradients, or what its counts say of it."""


@stub
def put(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    """Store a coordinate of variant v (0 where they share it) after an example; n is dropped where counts are kept."""


@stub
def count_example(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    """Note that the key came with or without a click, where counts are kept."""


@bare_inline
def squares_of_counts(clicked: Any, unclicked: Any) -> Any:
    """P N / (P + N): about the sum of squared gradients of a key with P clicks and N examples without (section 4.2)."""
    if clicked == 0.0 or unclicked == 0.0:
        return 0.0
    return clicked * unclicked / (clicked + unclicked)


@implements(value_of, *FULL_LAYOUTS)
def _full_value(table: Any, slot: Any, v: Any) -> Any:
    return table.slots[slot].z


@implements(value_of, *COMPACT)
def _compact_value(table: Any, slot: Any, v: Any) -> Any:
    return value_in(table.slots[slot].state)


@implements(value_of, Own, OwnCounts)
def _own_value(table: Any, slot: Any, v: Any) -> Any:
    return table.z[slot, v]


@implements(value_of, OwnCompact)
def _own_compact_value(table: Any, slot: Any, v: Any) -> Any:
    return value_in(table.words[slot, v])


@implements(value_of, OwnCompactCounts)
def _own_compact_counts_value(table: Any, slot: Any, v: Any) -> Any:
    return np.float64(table.q[slot, v]) * STEP


@implements(n_of, Full)
def _full_n(table: Any, slot: Any, v: Any) -> Any:
    return table.slots[slot].n


@implements(n_of, Own)
def _own_n(table: Any, slot: Any, v: Any) -> Any:
    return table.n[slot, v]


@implements(n_of, Compact)
def _compact_n(table: Any, slot: Any, v: Any) -> Any:
    return float_of_bits(np.int64(table.slots[slot].state & ~_LOW_16))


@implements(n_of, OwnCompact)
def _own_compact_n(table: Any, slot: Any, v: Any) -> Any:
    return float_of_bits(np.int64(table.words[slot, v] & ~_LOW_16))


@implements(n_of, FullCounts, OwnCounts, OwnCompactCounts)
def _n_of_counts(table: Any, slot: Any, v: Any) -> Any:
    held = table.slots[slot]
    return squares_of_counts(np.float64(held.clicked), np.float64(held.unclicked))


@implements(n_of, CompactCounts)
def _n_of_compact_counts(table: Any, slot: Any, v: Any) -> Any:
    state = table.slots[slot].state
    clicked, unclicked = (state >> _U16) & _24_BITS, state >> _U40
    return squares_of_counts(examples_in(clicked), examples_in(unclicked))


@bare_inline
def examples_in(count: Any) -> Any:
    """How many examples a 24-bit count stands for."""
    exact = min(np.float64(count), np.float64(_EXACT_COUNTS))
    return exact + (np.float64(count) - exact) * _COARSE


@implements(count_example, Full, Compact, Own, OwnCompact)
def _count_nothing(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    pass


@implements(count_example, FullCounts, OwnCounts, OwnCompactCounts)
def _count_exactly(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    slots = table.slots
    if clicked:
        slots[slot].clicked += np.uint32(slots[slot].clicked != np.uint32(MAX_COUNT))
    else:
        slots[slot].unclicked += np.uint32(slots[slot].unclicked != np.uint32(MAX_COUNT))


@implements(count_example, CompactCounts)
def _count_in_24_bits(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    """Beyond 2^23 a count goes up by chance, once in 256 examples (Morris, CACM 1978): it reaches 2^31."""
    shift = _U16 if clicked else _U40
    state = table.slots[slot].state
    count = (state >> shift) & _24_BITS
    if count < np.uint64(_EXACT_COUNTS) or (
        count < _24_BITS and chance(table.seed, table.slots[slot].key, example, 128) < _ONE_IN_256
    ):
        table.slots[slot].state = state + (np.uint64(1) << shift)


@stub
def set_counts(table: Any, slot: Any, n: Any) -> Any:
    """Where counts are kept, set them to as many examples with a click as without that stand for n."""


@implements(set_counts, Full, Compact, Own, OwnCompact)
def _set_no_counts(table: Any, slot: Any, n: Any) -> Any:
    pass


@implements(set_counts, FullCounts, OwnCounts, OwnCompactCounts)
def _set_exact_counts(table: Any, slot: Any, n: Any) -> Any:
    count = np.uint32(min(np.floor(2.0 * n + 0.5), np.float64(MAX_COUNT)))
    table.slots[slot].clicked = count
    table.slots[slot].unclicked = count


@implements(set_counts, CompactCounts)
def _set_24_bit_counts(table: Any, slot: Any, n: Any) -> Any:
    count = np.uint64(min(np.floor(2.0 * n + 0.5), np.float64(_EXACT_COUNTS)))
    table.slots[slot].state = (count << _U16) | (count << _U40)


@implements(put, Full)
def _put_full(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.slots[slot].z = value
    table.slots[slot].n = n


@implements(put, FullCounts)
def _put_full_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.slots[slot].z = value


@implements(put, Own)
def _put_own(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.z[slot, v] = value
    table.n[slot, v] = n


@implements(put, OwnCounts)
def _put_own_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.z[slot, v] = value


@implements(put, Compact)
def _put_compact(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.slots[slot].state = word_of(value, n, table.seed, table.slots[slot].key, example, 0)


@implements(put, OwnCompact)
def _put_own_compact(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.words[slot, v] = word_of(value, n, table.seed, table.slots[slot].key, example, v)


@implements(put, CompactCounts)
def _put_compact_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    held = table.slots[slot]
    q = rounded(value, luck_in(chance(table.seed, held.key, example, 0)))
    table.slots[slot].state = with_value(held.state, q)


@implements(put, OwnCompactCounts)
def _put_own_compact_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.q[slot, v] = rounded(value, luck_in(chance(table.seed, table.slots[slot].key, example, v)))


# -- when a key was seen


@stub
def seen_at(table: Any, slot: Any) -> Any:
    """The number of the example that touched the key last; 0 in layouts that do not keep it."""


@stub
def see(table: Any, slot: Any, example: Any) -> Any:
    """Note that an example touches the key."""


def _keeps_seen(table: Any) -> bool:
    return "seen" in table.types[0].dtype.fields


@overload(seen_at, jit_options=BARE_OPTIONS, strict=False)
def _seen_at(table: Any, slot: Any) -> Any:
    if _keeps_seen(table):
        return lambda table, slot: np.int64(table.slots[slot].seen)
    return lambda table, slot: np.int64(0)


@overload(see, jit_options=BARE_OPTIONS, strict=False)
def _see(table: Any, slot: Any, example: Any) -> Any:
    if not _keeps_seen(table):
        return lambda table, slot, example: None

    def note(table: Any, slot: Any, example: Any) -> Any:
        table.slots[slot].seen = np.uint64(example)

    return note


# -- moving


@bare_kernel
def move(old: Any, new: Any, before: Any) -> Any:
    """Move every slot of `old` that was seen at example `before` or later to `new`, which is empty; return how many."""
    moved = 0
    for index in range(old.slots.size):
        if old.slots[index].key == EMPTY or seen_at(old, index) < before:
            continue
        slot = find_slot(new, old.slots[index].key)
        new.slots[slot] = old.slots[index]
        move_own(old, new, index, slot)
        moved += 1
    return moved


@stub
def move_own(old: Any, new: Any, index: Any, slot: Any) -> Any:
    """Move what the variants of a slot have of their own."""


@implements(move_own, *FULL_LAYOUTS, *COMPACT)
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
