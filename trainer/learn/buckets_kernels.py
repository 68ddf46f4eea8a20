"""Kernels of feature hashing: a key's bucket, rows folded to buckets, and the set of the keys' 64-bit hashes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.examples.examples_kernels import x_of

_FREE = np.uint64(0)
_NOT_ZERO = np.uint64(1 << 31)
_ONE = np.uint64(1)
_64 = np.uint64(64)
_KEYS_AHEAD = 16


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
    """What a slot of the value table holds for a key: its hash, or the number that stands for its bucket; never 0."""


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
