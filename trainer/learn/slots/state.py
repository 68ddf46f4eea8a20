"""Reads and writes the state of a coordinate in a slot of each layout.

A coordinate is read as (value, n): the learner's a as it is stored (w, z or G), and its sum of squared gradients or
whatever else the rate needs. Layouts with counts compute n from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import float_of_bits
from model_store.jit import bare_inline, bare_overload, implements, stub
from trainer.learn.slots.layouts import (
    COMPACT,
    Compact,
    CompactCounts,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)
from trainer.learn.slots.q213 import (
    LOW_16,
    STEP,
    pack_word,
    q213_in,
    random_bits,
    round_to_q213,
    uniform_in,
    with_q213,
)

MAX_COUNT = 0xFFFFFFFF

_EXACT_COUNTS = 1 << 23  # a 24-bit count is exact up to here; each further unit represents 2^8 examples
_COARSE = 256
_ONE_IN_256 = np.uint64(1 << 56)
_24_BITS = np.uint64((1 << 24) - 1)
_U16 = np.uint64(16)
_U40 = np.uint64(40)


@stub
def value_of(table: Any, slot: Any, v: Any) -> Any:
    """A coordinate's value as it is stored."""


@stub
def n_of(table: Any, slot: Any, v: Any) -> Any:
    """A coordinate's n, stored or computed from its counts."""


@stub
def put(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    """Store a coordinate of variant v (0 where values are shared) after an example; layouts with counts ignore n."""


@stub
def count_example(table: Any, slot: Any, clicked: Any, example: Any) -> Any:
    """Count an example with or without a click, in layouts with counts."""


@bare_inline
def squares_of_counts(clicked: Any, unclicked: Any) -> Any:
    """P N / (P + N): approximates the sum of squared gradients after P clicks and N examples without (section 4.2)."""
    if clicked == 0.0 or unclicked == 0.0:
        return 0.0
    return clicked * unclicked / (clicked + unclicked)


@implements(value_of, Full, FullCounts)
def _full_value(table: Any, slot: Any, v: Any) -> Any:
    return table.slots[slot].z


@implements(value_of, *COMPACT)
def _compact_value(table: Any, slot: Any, v: Any) -> Any:
    return q213_in(table.slots[slot].state)


@implements(value_of, Own, OwnCounts)
def _own_value(table: Any, slot: Any, v: Any) -> Any:
    return table.z[slot, v]


@implements(value_of, OwnCompact)
def _own_compact_value(table: Any, slot: Any, v: Any) -> Any:
    return q213_in(table.words[slot, v])


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
    return float_of_bits(np.int64(table.slots[slot].state & ~LOW_16))


@implements(n_of, OwnCompact)
def _own_compact_n(table: Any, slot: Any, v: Any) -> Any:
    return float_of_bits(np.int64(table.words[slot, v] & ~LOW_16))


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
    """The number of examples that a 24-bit count represents."""
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
    """Beyond 2^23 a count is incremented at random, once in 256 examples (Morris, CACM 1978); it reaches 2^31."""
    shift = _U16 if clicked else _U40
    state = table.slots[slot].state
    count = (state >> shift) & _24_BITS
    if count < np.uint64(_EXACT_COUNTS) or (
        count < _24_BITS and random_bits(table.seed, table.slots[slot].key, example, 128) < _ONE_IN_256
    ):
        table.slots[slot].state = state + (np.uint64(1) << shift)


@stub
def set_counts(table: Any, slot: Any, n: Any) -> Any:
    """In layouts with counts, set them to equal numbers of examples with a click and without that yield n."""


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
    table.slots[slot].state = pack_word(value, n, table.seed, table.slots[slot].key, example, 0)


@implements(put, OwnCompact)
def _put_own_compact(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.words[slot, v] = pack_word(value, n, table.seed, table.slots[slot].key, example, v)


@implements(put, CompactCounts)
def _put_compact_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    held = table.slots[slot]
    q = round_to_q213(value, uniform_in(random_bits(table.seed, held.key, example, 0)))
    table.slots[slot].state = with_q213(held.state, q)


@implements(put, OwnCompactCounts)
def _put_own_compact_counts(table: Any, slot: Any, v: Any, value: Any, n: Any, example: Any) -> Any:
    table.q[slot, v] = round_to_q213(
        value, uniform_in(random_bits(table.seed, table.slots[slot].key, example, v))
    )


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
