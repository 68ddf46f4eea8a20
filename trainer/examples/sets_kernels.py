"""Finds the members of sets in text, and a row's repeated members, and adds up their x."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import digest, digest_padded, load_i32, load_u8
from model_store.jit import bare_inline, bare_kernel

ODD = -1
_BRACKET, _BRACE = 91, 123
FEW = 8  # up to this many members are compared pairwise, which is faster than a table


@bare_kernel
def are_real(x: Any, largest: Any) -> Any:
    """True if every number is finite and at most `largest` in size."""
    good = True
    for i in range(x.size):
        good &= abs(x[i]) <= largest
    return good


@bare_kernel
def survey_members(offsets: Any, stride: Any, starts: Any, x: Any) -> Any:
    """The most members in a row; whether every x is 1; whether a member is absent (its x is 0 or its text empty).

    The arguments are those of `merge_repeats`.
    """
    longest, all_one, some_absent = 0, True, False
    for row in range(starts.size - 1):
        longest = max(longest, starts[row + 1] - starts[row])
    for member in range(x.size):
        all_one &= x[member] == 1.0
        some_absent |= x[member] == 0.0
    for member in range(starts[starts.size - 1]):
        start, stop = _span(offsets, stride, member)
        some_absent |= start == stop
    return longest, all_one, some_absent


@bare_kernel
def merge_repeats(
    data: Any, offsets: Any, stride: Any, starts: Any, x: Any,
    digests: Any, table: Any, kept: Any, kept_x: Any, kept_starts: Any,
) -> Any:  # fmt: skip
    """Write each row's distinct members in order of first appearance; return their total number.

    data, offsets: addresses of the texts' bytes and int32 offsets, stride bytes from one member's to the next. Member m
    belongs to row r if starts[r] <= m < starts[r + 1] (int32); x: float64[members], or empty if every x is 1, where
    repeats change nothing. With x, repeats add up from left to right, and members whose sum is 0 are dropped, as are
    members without text.
    Out: kept int32[members], the first index of each; kept_x float64 like x; kept_starts int32[rows + 1].
    Scratch for the longest row: digests uint64[its members]; table int32[2^k], at least twice as many, all 0.
    Invariant: kept[first:count] are this row's members so far; table holds their ordinals + 1, and is cleared after.
    """
    count = 0
    for row in range(starts.size - 1):
        first = count
        kept_starts[row] = first
        many = starts[row + 1] - starts[row] > FEW
        merged = False
        for member in range(starts[row], starts[row + 1]):
            start, stop = _span(offsets, stride, member)
            if start == stop or (x.size and x[member] == 0.0):
                continue
            # What stands in a log has bytes after it.
            own = (
                digest(data + start, stop - start)
                if stride == 4
                else digest_padded(data + start, stop - start)
            )
            same = _look_up(data, offsets, stride, kept, first, count, digests, table, many, own, start, stop)
            if same < 0:
                kept[count] = member
                digests[count - first] = own
                if x.size:
                    kept_x[count] = x[member]
                if many:
                    table[-1 - same] = count - first + 1
                count += 1
            elif x.size:
                kept_x[same] += x[member]
                merged = True
        if many:
            _clear(table, digests, count - first)
        if merged:
            count = _drop_zeros(kept, kept_x, first, count)
    kept_starts[starts.size - 1] = count
    return count


@bare_inline
def _look_up(
    data: Any, offsets: Any, stride: Any, kept: Any, first: Any, count: Any, digests: Any, table: Any,
    many: Any, own: Any, start: Any, stop: Any,
) -> Any:  # fmt: skip
    """The index in `kept` of an equal member, else -1 - the free slot in `table` (-1 without a table)."""
    if not many:
        for place in range(first, count):
            if digests[place - first] == own and _same(data, offsets, stride, kept[place], start, stop):
                return place
        return np.int64(-1)
    mask = np.uint64(table.size - 1)
    slot = own & mask
    while table[slot] != 0:
        place = first + np.int64(table[slot]) - 1
        if digests[place - first] == own and _same(data, offsets, stride, kept[place], start, stop):
            return place
        slot = (slot + np.uint64(1)) & mask
    return -1 - np.int64(slot)


@bare_inline
def _same(data: Any, offsets: Any, stride: Any, member: Any, start: Any, stop: Any) -> Any:
    """True if the text of `member` equals the bytes from `start` to `stop`."""
    other, end = _span(offsets, stride, member)
    if end - other != stop - start:
        return False
    for i in range(stop - start):
        if load_u8(data + other + i) != load_u8(data + start + i):
            return False
    return True


@bare_inline
def _span(offsets: Any, stride: Any, member: Any) -> Any:
    at = offsets + stride * member
    return np.int64(load_i32(at)), np.int64(load_i32(at + 4))


@bare_inline
def _clear(table: Any, digests: Any, members: Any) -> None:
    """Clear the table: each member's probe sequence from its first slot to a free one."""
    mask = np.uint64(table.size - 1)
    for member in range(members):
        slot = digests[member] & mask
        while table[slot] != 0:
            table[slot] = 0
            slot = (slot + np.uint64(1)) & mask


@bare_inline
def _drop_zeros(kept: Any, kept_x: Any, first: Any, count: Any) -> Any:
    to = first
    for place in range(first, count):
        if kept_x[place] != 0.0:
            kept[to], kept_x[to] = kept[place], kept_x[place]
            to += 1
    return to


@bare_kernel
def most_members(data: Any, place: Any, stride: Any, gap: Any, rows: Any, separator: Any) -> Any:
    """How many members a column of sets has, empty ones too; data, place, stride, gap: as for `copy_column`."""
    count = np.int64(0)
    for _ in range(rows):
        start, stop = np.int64(load_i32(place)) + gap, np.int64(load_i32(place + 4))
        count += stop > start
        for at in range(start, stop):
            count += load_u8(data + at) == separator
        place += stride
    return count


@bare_kernel
def split_cells(data: Any, place: Any, stride: Any, gap: Any, separator: Any, starts: Any, spans: Any) -> Any:
    """The members of a column of sets: starts int32[rows + 1] into spans int32[members, 2], both out.

    Returns how many they are; ODD if a text may be JSON. data, place, stride, gap: as for `copy_column`. spans has room
    for `most_members`; empty members are among them.
    """
    count = 0
    for row in range(starts.size - 1):
        starts[row] = count
        start, stop = np.int64(load_i32(place)) + gap, np.int64(load_i32(place + 4))
        place += stride
        if start == stop:
            continue
        if load_u8(data + start) == _BRACKET or load_u8(data + start) == _BRACE:
            return np.int64(ODD)
        spans[count, 0] = start
        for at in range(start, stop):
            if load_u8(data + at) == separator:
                spans[count, 1] = at
                count += 1
                spans[count, 0] = at + 1
        spans[count, 1] = stop
        count += 1
    starts[starts.size - 1] = count
    return np.int64(count)
