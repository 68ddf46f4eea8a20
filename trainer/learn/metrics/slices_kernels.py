"""The kernel that finds each row's values of the slices and adds the row to their groups.

A slice is watched like a cross of its fields (one field is a cross of one), whether or not the model has that cross:
`tokens.crosses` holds the slices' fields here. Group `slice * (limit + 1)` is for the values that came after `limit`
others, the groups behind it for the values in the order of their arrival.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import END, SEED, TIMES, combine, digest, load_i32, load_u8
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import cross_size, pick
from trainer.learn.metrics.metrics_kernels import BLOCK, add, judge

_EMPTY = np.uint64(0)
_OTHER = np.int64(0)


class Conditions(NamedTuple):
    """What a slice's prefix asks of a key.

    digests: uint64[slices, 4], the digest a part must have, 0 for any; part: int64[slices], the part whose text must
    begin with bytes `starts[slice]` to `starts[slice + 1]` of heads (uint8).
    """

    digests: Any
    part: Any
    heads: Any
    starts: Any


class Values(NamedTuple):
    """Open addressing from a value's identity to its place, 1 to limit in order of arrival; half full at most.

    identities: uint64[slices, size], 0 where free; places: int64[slices, size]; used: int64[slices].
    """

    identities: Any
    places: Any
    used: Any


class Texts(NamedTuple):
    """Addresses of each field's token bytes and of their int32 offsets: int64[fields] each."""

    data: Any
    offsets: Any


@bare_kernel
def watch_slices(
    batch: Any,
    rows: Any,
    first: Any,
    last: Any,
    tokens: Any,
    texts: Any,
    conditions: Any,
    values: Any,
    arrivals: Any,
    tally: Any,
    room: Any,
    picked: Any,
) -> Any:
    """Add rows `first` to `last` of a batch to the groups of their values; return how many values are new.

    rows: int32, the rows' places among the tokens; arrivals: int64[new values at most, 5] out, slice and tokens of
    each new value; picked: int64[4], room for a key's tokens.
    """
    new = 0
    slices = values.used.size
    limit = tally.counts.shape[0] // slices - 1
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        judge(batch, begin, end, room)
        for row in range(begin, end):
            for index in range(slices):
                for combination in range(cross_size(tokens, index, rows[row])):
                    size = pick(tokens, index, rows[row], combination, picked)
                    if not fits(conditions, index, tokens, texts, picked, size):
                        continue
                    place, came = place_of(values, index, identity(tokens, picked, size), limit)
                    if came:
                        arrivals[new, 0] = index
                        for part in range(size):
                            arrivals[new, 1 + part] = picked[part]
                        new += 1
                    add(batch, row, row - begin, tally, index * (limit + 1) + place, room)
    return new


@bare_inline
def fits(conditions: Any, index: Any, tokens: Any, texts: Any, picked: Any, size: Any) -> Any:
    """Whether a key stands under the slice's prefix."""
    for part in range(size):
        wanted = conditions.digests[index, part]
        if wanted != _EMPTY and tokens.digests[picked[part]] != wanted:
            return False
    first, last = conditions.starts[index], conditions.starts[index + 1]
    if first == last:
        return True
    part = conditions.part[index]
    field = tokens.crosses[index, part]
    offset = texts.offsets[field] + 4 * (picked[part] - tokens.base[field])
    start = np.int64(load_i32(offset))
    if np.int64(load_i32(offset + 4)) - start < last - first:
        return False
    for position in range(last - first):
        if load_u8(texts.data[field] + start + position) != conditions.heads[first + position]:
            return False
    return True


@bare_inline
def identity(tokens: Any, picked: Any, size: Any) -> Any:
    """A hash of the values that a key joins; never 0."""
    state = SEED
    for part in range(size):
        state = combine(state, tokens.digests[picked[part]], END if part == size - 1 else TIMES)
    return state


@bare_inline
def place_of(values: Any, index: Any, wanted: Any, limit: Any) -> Any:
    """The place of a value in its slice, and whether it has just come; the place of all others where none is free."""
    mask = values.identities.shape[1] - 1
    slot = np.int64(wanted & np.uint64(mask))
    while values.identities[index, slot] not in (wanted, _EMPTY):
        slot = (slot + 1) & mask
    if values.identities[index, slot] == wanted:
        return values.places[index, slot], False
    if values.used[index] == limit:
        return _OTHER, False
    values.used[index] += 1
    values.identities[index, slot] = wanted
    values.places[index, slot] = values.used[index]
    return values.places[index, slot], True


@bare_kernel
def digest_of(text: Any) -> Any:
    """The digest of the bytes of a uint8 array."""
    return digest(text.ctypes.data, text.size)
