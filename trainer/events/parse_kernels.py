"""Kernels over events: an item that an impression shows twice, and the partition that a line belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from trainer.formats.json_kernels import skip

_SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON, _CLOSE_BRACE, _ZERO, _NINE = 32, 34, 92, 44, 58, 125, 48, 57


@bare_kernel
def find_twice(first: Any, items: Any, table: Any, twice: Any) -> None:
    """For each impression, the row of the first item that it shows a second time, or -1. A hash of 0 is not an item.

    first: int64[n + 1], the first row of each in items, uint64; table: int64, all -1, a power of two above twice the
    longest impression; twice: int64[n], out. Invariant: an entry of the table counts only if it is a row of this
    impression, that is, at least first[i]; so the table is never cleared.
    """
    mask = np.uint64(table.size - 1)
    for i in range(twice.size):
        twice[i] = -1
        for row in range(first[i], first[i + 1]):
            if items[row] == np.uint64(0):
                continue
            at = items[row] & mask
            while table[at] >= first[i] and items[table[at]] != items[row]:
                at = (at + np.uint64(1)) & mask
            if table[at] >= first[i]:
                twice[i] = row
                break
            table[at] = row


_REQUEST_ID = np.frombuffer(b'"request_id"', np.uint8)
_FAR = np.full(256, _REQUEST_ID.size, np.int64)
for _at, _byte in enumerate(_REQUEST_ID[:-1]):
    _FAR[_byte] = _REQUEST_ID.size - 1 - _at
UNSURE = -1
_FNV, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX_1, _MIX_2, _33 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)


@bare_kernel
def shares(data: Any, starts: Any, count: Any, found: Any) -> None:
    """Which of `count` partitions each line's request belongs to: int64[lines], out; UNSURE if a parser must tell.

    Looks for the bytes "request_id" alone, without parsing: they must be in the line once, and be a member's name whose
    value is a string without escapes or a whole number.
    """
    last = _REQUEST_ID.size - 1
    for line in range(found.size):
        found[line] = UNSURE
        at, stop, name = starts[line] + last, starts[line + 1], np.int64(-1)
        while at < stop:  # Horspool's search
            if data[at] == _QUOTE and _names_request(data, at - last):
                if name >= 0:
                    name = np.int64(-1)
                    break
                name = at
            at += _FAR[data[at]]
        if name >= 0:
            begin, end = _plain_id(data, name + 1, stop)
            if begin < end:
                found[line] = share_of(data, begin, end, count)


@bare_inline
def share_of(data: Any, begin: Any, end: Any, count: Any) -> Any:
    """The partition, from 0, of an id's bytes: FNV-1a, mixed as in MurmurHash3, modulo the number of partitions."""
    digest = _FNV
    for at in range(begin, end):
        digest = (digest ^ np.uint64(data[at])) * _FNV_PRIME
    digest = (digest ^ (digest >> _33)) * _MIX_1
    digest = (digest ^ (digest >> _33)) * _MIX_2
    digest ^= digest >> _33
    return np.int64(digest % np.uint64(count))


@bare_kernel
def share_of_bytes(data: Any, count: Any) -> Any:
    """`share_of` all of the bytes."""
    return share_of(data, 0, data.size, count)


@bare_inline
def _names_request(data: Any, begin: Any) -> Any:
    for index in range(_REQUEST_ID.size):
        if data[begin + index] != _REQUEST_ID[index]:
            return False
    return True


@bare_inline
def _plain_id(data: Any, at: Any, stop: Any) -> Any:
    """The first byte of the id after a member's name and the one behind its last; none if it is not plain."""
    at = skip(data, at, stop)
    if at >= stop or data[at] != _COLON:
        return at, at
    at = skip(data, at + 1, stop)
    begin = at
    if at < stop and data[at] == _QUOTE:
        at += 1
        while at < stop and data[at] != _QUOTE:
            if data[at] == _BACKSLASH or data[at] < _SPACE:
                return begin, begin
            at += 1
        return (begin + 1, at) if at < stop else (begin, begin)
    while at < stop and _ZERO <= data[at] <= _NINE:
        at += 1
    if at >= stop or not (data[at] == _COMMA or data[at] == _CLOSE_BRACE):
        return begin, begin
    return begin, at
