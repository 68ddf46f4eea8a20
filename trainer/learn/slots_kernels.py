"""A slot of the value table in each of its layouts: its fields, the state in it, rounding to q2.13, the search for it.

docs/formats/table.md draws the layouts, one for each of the spec's `values`, `precision` and `rate`, and says how full
a table may be. Each is a NamedTuple of arrays, so that numba compiles a learner once for each layout in use. seen: the
number of the example (from 1) that touched the key last; seed: of the random bits in unbiased rounding.

A coordinate is read as (value, n): the learner's a as it is stored (w, z or G), and its sum of squared gradients or
whatever else the rate needs. Layouts with counts compute n from them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import bits_of_float, float_of_bits, mixed, prefetch
from model_store.jit import bare_inline, bare_kernel, bare_overload, implements, stub

EMPTY = np.uint64(0)
MAX_COUNT = 0xFFFFFFFF

_KEY = ("key", np.uint64)
_SEEN = ("seen", np.uint64)
_COUNTS = [("clicked", np.uint32), ("unclicked", np.uint32)]
_STEP = 1.0 / 8192.0
_LOW_16 = np.uint64(0xFFFF)
_EXACT_COUNTS = 1 << 23  # a 24-bit count is exact up to here; each further unit represents 2^8 examples
_COARSE = 256
_ONE_IN_256 = np.uint64(1 << 56)
_24_BITS = np.uint64((1 << 24) - 1)
_U16, _U32, _U40 = np.uint64(16), np.uint64(32), np.uint64(40)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-32


class Full(NamedTuple):
    """One float64 value and the sum of squared gradients: 32 bytes."""

    slots: Any


class FullCounts(NamedTuple):
    """One float64 value and the counts of examples with a click and without: 32 bytes."""

    slots: Any


class Compact(NamedTuple):
    """A q2.13 value and 48 bits of a float64 sum of squared gradients in one word: 16 bytes, 24 with `seen`."""

    slots: Any
    seed: Any


class CompactCounts(NamedTuple):
    """A q2.13 value and two 24-bit counts in one word: 16 bytes, 24 with `seen`."""

    slots: Any
    seed: Any


class Own(NamedTuple):
    """Each variant has a float64 value and a sum of squared gradients: z and n are float64[slots, variants]."""

    slots: Any
    z: Any
    n: Any


class OwnCounts(NamedTuple):
    """Each variant has a float64 value, z float64[slots, variants]; they share the counts."""

    slots: Any
    z: Any


class OwnCompact(NamedTuple):
    """Each variant has a word of a q2.13 value and 48 bits of a sum: words uint64[slots, variants]."""

    slots: Any
    words: Any
    seed: Any


class OwnCompactCounts(NamedTuple):
    """Each variant has a q2.13 value, q int16[slots, variants]; they share the counts."""

    slots: Any
    q: Any
    seed: Any


COMPACT = (Compact, CompactCounts)
COARSE = (*COMPACT, OwnCompact, OwnCompactCounts)
_OWN = (Own, OwnCounts, OwnCompact, OwnCompactCounts)
_COUNTED = (FullCounts, OwnCounts, OwnCompactCounts)
_NOT_COUNTED = (Full, Compact, Own, OwnCompact)

_FIELDS: dict[type, list[tuple[str, Any]]] = {
    Full: [_KEY, ("z", np.float64), ("n", np.float64), _SEEN],
    FullCounts: [_KEY, ("z", np.float64), *_COUNTS, _SEEN],
    Compact: [_KEY, ("state", np.uint64)],
    CompactCounts: [_KEY, ("state", np.uint64)],
    Own: [_KEY, _SEEN],
    OwnCounts: [_KEY, *_COUNTS, _SEEN],
    OwnCompact: [_KEY, _SEEN],
    OwnCompactCounts: [_KEY, *_COUNTS, _SEEN],
}
OWN_ARRAYS: dict[type, tuple[tuple[str, Any], ...]] = {
    Own: (("z", np.float64), ("n", np.float64)),
    OwnCounts: (("z", np.float64),),
    OwnCompact: (("words", np.uint64),),
    OwnCompactCounts: (("q", np.int16),),
}
"""The arrays of a layout beside its slots, [slots, variants] each, and their types."""


def slot_type(layout: type, seen: bool) -> np.dtype[Any]:
    """The dtype of a layout's slots; compact ones have `seen` only if requested."""
    fields = _FIELDS[layout]
    return np.dtype([*fields, _SEEN] if seen and layout in COMPACT else fields, align=True)


def layout_of(values: str, precision: str, rate: str) -> type:
    """The layout for the spec's `values`, `precision` and `rate`."""
    counts = rate == "counts"
    if values == "per_variant":
        if precision == "q2.13":
            return OwnCompactCounts if counts else OwnCompact
        return OwnCounts if counts else Own
    if precision == "q2.13":
        return CompactCounts if counts else Compact
    return FullCounts if counts else Full


# q2.13: a value is rounded to a multiple of 2^-13, up or down at random, so that the expected error is 0 (McMahan et
# al., KDD 2013, section 4.1.2). The random bits are a hash of the key, the example and a seed: a run is reproducible.


@bare_inline
def random_bits(seed: Any, key: Any, example: Any, stream: Any) -> Any:
    """64 uniform bits for this key at this example; `stream` separates independent draws."""
    return mixed(key ^ (np.uint64(example) * _GOLDEN) ^ seed ^ (np.uint64(stream) << _U40))


@bare_inline
def round_to_q213(value: Any, bits: Any) -> Any:
    """2^13 value as an integer, clipped to 16 bits; rounded down after adding the upper 32 of `bits` as a fraction."""
    fraction = np.float64(np.int64(bits >> _U32)) * _UNIT
    return np.int64(min(max(math.floor(value * 8192.0 + fraction), -32768.0), 32767.0))


@bare_inline
def with_q213(state: Any, q: Any) -> Any:
    """A word with its q2.13 value replaced; q is the integer."""
    return (state & ~_LOW_16) | (np.uint64(q) & _LOW_16)


@bare_inline
def q213_in(state: Any) -> Any:
    """The q2.13 value of a word."""
    return np.float64(np.int16(state & _LOW_16)) * _STEP


@bare_inline
def pack_word(value: Any, n: Any, seed: Any, key: Any, example: Any, stream: Any) -> Any:
    """A word of a q2.13 value and the upper 48 bits of n, both rounded without bias."""
    bits = random_bits(seed, key, example, stream)
    return with_q213(np.uint64(bits_of_float(n)) + (bits & _LOW_16), round_to_q213(value, bits))


@bare_inline
def squares_of_counts(clicked: Any, unclicked: Any) -> Any:
    """P N / (P + N): approximates the sum of squared gradients after P clicks and N examples without (section 4.2)."""
    if clicked == 0.0 or unclicked == 0.0:
        return 0.0
    return clicked * unclicked / (clicked + unclicked)


@bare_inline
def examples_in(count: Any) -> Any:
    """The number of examples that a 24-bit count represents."""
    exact = min(np.float64(count), np.float64(_EXACT_COUNTS))
    return exact + (np.float64(count) - exact) * _COARSE


@stub
def value_of(table: Any, slot: Any, v: Any) -> Any:
    """A coordinate's value as it is stored; v: the variant, 0 where values are shared."""


@stub
def n_of(table: Any, slot: Any, v: Any) -> Any:
    """A coordinate's n, stored or computed from its counts."""


@stub
def put(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    """Store a coordinate of variant v after an example; layouts with counts ignore n."""


@stub
def count_example(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    """Count an example with or without a click, in layouts with counts."""


@stub
def set_counts(table: Any, slot: Any, n: Any) -> Any:
    """In layouts with counts, set them to equal numbers of examples with a click and without that yield n."""


implements(value_of, Full, FullCounts)(lambda table, slot, v: table.slots[slot].z)
implements(value_of, *COMPACT)(lambda table, slot, v: q213_in(table.slots[slot].state))
implements(value_of, Own, OwnCounts)(lambda table, slot, v: table.z[slot, v])
implements(value_of, OwnCompact)(lambda table, slot, v: q213_in(table.words[slot, v]))
implements(value_of, OwnCompactCounts)(lambda table, slot, v: np.float64(table.q[slot, v]) * _STEP)

implements(n_of, Full)(lambda table, slot, v: table.slots[slot].n)
implements(n_of, Own)(lambda table, slot, v: table.n[slot, v])
implements(n_of, Compact)(lambda table, slot, v: _n_in(table.slots[slot].state))
implements(n_of, OwnCompact)(lambda table, slot, v: _n_in(table.words[slot, v]))


@bare_inline
def _n_in(word: Any) -> Any:
    return float_of_bits(np.int64(word & ~_LOW_16))


@implements(n_of, *_COUNTED)
def _n_of_counts(table: Any, slot: Any, v: Any) -> Any:
    held = table.slots[slot]
    return squares_of_counts(np.float64(held.clicked), np.float64(held.unclicked))


@implements(n_of, CompactCounts)
def _n_of_compact_counts(table: Any, slot: Any, v: Any) -> Any:
    state = table.slots[slot].state
    clicked, unclicked = (state >> _U16) & _24_BITS, state >> _U40
    return squares_of_counts(examples_in(clicked), examples_in(unclicked))


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
    table.slots[slot].state = pack_word(value, n, table.seed, table.slots[slot].key, example, 0)


@implements(put, OwnCompact)
def _put_own_compact(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.words[slot, v] = pack_word(value, n, table.seed, table.slots[slot].key, example, v)


@implements(put, CompactCounts)
def _put_compact_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    held = table.slots[slot]
    q = round_to_q213(value, random_bits(table.seed, held.key, example, 0))
    table.slots[slot].state = with_q213(held.state, q)


@implements(put, OwnCompactCounts)
def _put_own_compact_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.q[slot, v] = round_to_q213(value, random_bits(table.seed, table.slots[slot].key, example, v))


implements(count_example, *_NOT_COUNTED)(lambda table, slot, clicked, example: None)
implements(set_counts, *_NOT_COUNTED)(lambda table, slot, n: None)


@implements(count_example, *_COUNTED)
def _count_exactly(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    slots = table.slots
    if clicked:
        slots[slot].clicked += np.uint32(slots[slot].clicked != np.uint32(MAX_COUNT))
    else:
        slots[slot].unclicked += np.uint32(slots[slot].unclicked != np.uint32(MAX_COUNT))


@implements(count_example, CompactCounts)
def _count_in_24_bits(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    """Beyond 2^23 a count is incremented at random, once in 256 examples (Morris, CACM 1978); it reaches 2^31."""
    shift = _U16 if clicked else _U40
    state = table.slots[slot].state
    count = (state >> shift) & _24_BITS
    if count < np.uint64(_EXACT_COUNTS) or (
        count < _24_BITS and random_bits(table.seed, table.slots[slot].key, example, 128) < _ONE_IN_256
    ):
        table.slots[slot].state = state + (np.uint64(1) << shift)


@implements(set_counts, *_COUNTED)
def _set_exact_counts(table: Any, slot: Any, n: Any) -> Any:
    count = np.uint32(min(np.floor(2.0 * n + 0.5), np.float64(MAX_COUNT)))
    table.slots[slot].clicked = count
    table.slots[slot].unclicked = count


@implements(set_counts, CompactCounts)
def _set_24_bit_counts(table: Any, slot: Any, n: Any) -> Any:
    count = np.uint64(min(np.floor(2.0 * n + 0.5), np.float64(_EXACT_COUNTS)))
    table.slots[slot].state = (count << _U16) | (count << _U40)


@stub
def seen_at(table: Any, slot: Any) -> Any:
    """The number of the example that touched the key last; 0 in layouts without `seen`."""


@stub
def set_seen(table: Any, slot: Any, example: Any) -> Any:
    """Store the number of the example that touches the key, in layouts with `seen`."""


@stub
def slot_bytes(table: Any) -> Any:
    """The bytes of a slot, as a constant; numba reads `itemsize` from memory, and multiplies to find an address."""


@bare_overload(slot_bytes)
def _slot_bytes(table: Any) -> Any:
    size = table.types[0].dtype.size
    return lambda table: size


def _has_seen(table: Any) -> bool:
    return "seen" in table.types[0].dtype.fields


@bare_overload(seen_at)
def _seen_at(table: Any, slot: Any) -> Any:
    if _has_seen(table):
        return lambda table, slot: np.int64(table.slots[slot].seen)
    return lambda table, slot: np.int64(0)


@bare_overload(set_seen)
def _set_seen(table: Any, slot: Any, example: Any) -> Any:
    if not _has_seen(table):
        return lambda table, slot, example: None

    def store(table: Any, slot: Any, example: Any) -> Any:
        table.slots[slot].seen = np.uint64(example)

    return store


# The search for a key's slot, and moves of slots to a table of another size.


@stub
def home(table: Any, key: Any) -> Any:
    """The slot where the search for a key begins."""


implements(home, Full, FullCounts, *_OWN)(lambda table, key: np.int64(key & np.uint64(table.slots.size - 1)))


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
def move(old: Any, new: Any, before: Any, old_own: Any, new_own: Any) -> Any:
    """Copy every slot of `old` last seen at example `before` or later to the empty table `new`; return how many.

    old_own, new_own: the bytes of the arrays beside the slots, `OWN_ARRAYS`: two of uint8[slots, bytes], with 0 bytes
    where there is none.
    """
    moved = 0
    for index in range(old.slots.size):
        if old.slots[index].key == EMPTY or seen_at(old, index) < before:
            continue
        slot = find_slot(new, old.slots[index].key)
        new.slots[slot] = old.slots[index]
        for byte in range(old_own[0].shape[1]):
            new_own[0][slot, byte] = old_own[0][index, byte]
        for byte in range(old_own[1].shape[1]):
            new_own[1][slot, byte] = old_own[1][index, byte]
        moved += 1
    return moved


@bare_kernel
def spread(table: Any, half: Any, words: Any, own: Any) -> None:
    """Move every key to its slot in a table that was doubled in place, whose upper half is empty.

    half: slots before; words: uint64[slots, words of a slot], the slots; own: as in `move`.

    Begins after a free slot and takes the slots in turn. So when one is taken, those between its key's home and itself
    are settled, and the search for its slot ends there at the latest.
    """
    first, second = own
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
