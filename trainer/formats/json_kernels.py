"""A kernel that finds values in lines of flat JSON objects without escapes, where they stand.

What is not such an object is ODD: a careful parser then reads the whole block. So is what would be rejected, what has
another meaning than its bytes have, and what is so rare that it is not worth a case here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.features.cells_kernels import (
    BLOCK,
    BOOLEAN,
    CR,
    FLOAT,
    LF,
    NOT_CANONICAL,
    STRING,
    WHOLE,
    lowest,
    places_of_four,
)
from model_store.hash_kernels import control_in_64, load_u8, load_u64, not_ascii_in_64, special_in_64
from model_store.jit import bare_inline, bare_kernel

ODD = -1
NULL = -2
"""The start and stop of a value that is null."""
_ABSENT = -1
_SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON, _OPEN, _CLOSE = 32, 34, 92, 44, 58, 123, 125
_MINUS, _DOT, _ZERO, _NINE, _SMALL_E = 45, 46, 48, 57, 101
_TO_LOWER = 0x20
_NULL, _TRUE, _FALS = np.uint64(0x6C6C756E), np.uint64(0x65757274), np.uint64(0x736C6166)
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
_MOST_DIGITS = 18  # fit an int64
_SURE_DIGITS = 15  # so many digits are those of the double that they stand for
_SURE_ZEROS = 3  # with more after the point a number is written with an exponent


@bare_kernel
def find_marks(data: Any, size: Any, marks: Any) -> Any:
    """The places of quotes and line feeds, int32 out: (how many or ODD, special, not ASCII).

    data: uint8 with at least BLOCK zeros after `size`. ODD if there is a backslash, or a control character other than
    the end of a line.
    """
    base = data.ctypes.data
    count, special, high = 0, np.int64(0), np.int64(0)
    for at in range(0, size, BLOCK):
        special |= special_in_64(base + at)
        high |= not_ascii_in_64(base + at)
        found = places_of_four(base + at, np.uint8(_QUOTE), np.uint8(LF), np.uint8(CR), np.uint8(_BACKSLASH))
        control = np.uint64(control_in_64(base + at)) & ~found
        if size - at < BLOCK:
            control &= (np.uint64(1) << np.uint64(size - at)) - np.uint64(1)
        if control != np.uint64(0):
            return np.int64(ODD), False, False
        while found != np.uint64(0):
            place = at + np.int64(lowest(found))
            found &= found - np.uint64(1)
            byte = data[place]
            if byte == _BACKSLASH or (byte == CR and data[place + 1] != LF):
                return np.int64(ODD), False, False
            if byte != CR:
                marks[count] = place
                count += 1
    return np.int64(count), special != 0, high != 0


@bare_kernel
def find_values(
    data: Any, marks: Any, keys: Any, key_starts: Any, before: Any, spans: Any, kinds: Any
) -> Any:
    """Find the values of some keys: (rows or ODD, bytes of the longest).

    data: uint8 lines; marks: int32, all of `find_marks`; keys: uint8, the wanted keys end to end, with 8 bytes after
    them; key_starts: int64[wanted + 1]; before: int64[n, 3], room for the start, length and number of each key of the
    row before. Out: spans int32[rows, wanted, 2], where each value starts and stops: negative if absent, NULL if null;
    kinds: uint8[wanted], which kinds of values there are, a bit each.
    """
    base = data.ctypes.data
    mark, row, at, longest, known = 0, 0, np.int64(0), np.int64(0), 0
    while mark < marks.size:
        for column in range(spans.shape[1]):
            spans[row, column, 0] = spans[row, column, 1] = _ABSENT
        at = _skip(base, at)
        if load_u8(base + at) != _OPEN:
            return np.int64(ODD), longest
        at = _skip(base, at + 1)
        place = 0
        while load_u8(base + at) != _CLOSE or place == 0:
            if place == 0 and load_u8(base + at) == _CLOSE:
                break
            if place > 0:
                if load_u8(base + at) != _COMMA:
                    return np.int64(ODD), longest
                at = _skip(base, at + 1)
            if (
                mark + 2 >= marks.size
                or at != marks[mark]
                or data[at] != _QUOTE
                or data[marks[mark + 1]] != _QUOTE
            ):
                return np.int64(ODD), longest
            start, stop = at + 1, np.int64(marks[mark + 1])
            mark += 2
            if (
                place < known
                and before[place, 1] == stop - start
                and _same(base + before[place, 0], base + start, stop - start)
            ):
                column = before[place, 2]
            else:
                column = _column(base + start, stop - start, keys, key_starts)
            if place < before.shape[0]:
                before[place, 0], before[place, 1], before[place, 2] = start, stop - start, column
                known = max(known, place + 1)
            place += 1
            at = _skip(base, stop + 1)
            if load_u8(base + at) != _COLON:
                return np.int64(ODD), longest
            at = _skip(base, at + 1)
            if load_u8(base + at) == _QUOTE:
                if mark + 2 >= marks.size or at != marks[mark] or data[marks[mark + 1]] != _QUOTE:
                    return np.int64(ODD), longest
                start, stop, kind = at + 1, np.int64(marks[mark + 1]), np.uint8(STRING)
                mark += 2
                at = stop + 1
            else:
                start = at
                at, kind = _scalar(base, at)
                stop = at
                if kind == 0:
                    start = stop = np.int64(NULL)
                elif at < 0:
                    return np.int64(ODD), longest
            if column >= 0:
                if spans[row, column, 0] != _ABSENT:
                    return np.int64(ODD), longest
                spans[row, column, 0], spans[row, column, 1] = start, stop
                kinds[column] |= kind
                longest = max(longest, stop - start)
            at = _skip(base, at)
        at = _skip(base, at + 1)
        if load_u8(base + at) == CR:
            at += 1
        if at != marks[mark]:
            return np.int64(ODD), longest
        at += 1
        mark += 1
        row += 1
    return np.int64(row), longest


@bare_inline
def _skip(base: Any, at: Any) -> Any:
    """The first place that is no space."""
    while load_u8(base + at) == _SPACE:
        at += 1
    return at


@bare_inline
def _same(one: Any, other: Any, size: Any) -> Any:
    """Whether as many bytes are the same; after both 7 more are readable."""
    while size >= 8:
        if load_u64(one) != load_u64(other):
            return False
        one += 8
        other += 8
        size -= 8
    if size == 0:
        return True
    return ((load_u64(one) ^ load_u64(other)) << np.uint64(64 - 8 * size)) == np.uint64(0)


@bare_inline
def _column(address: Any, size: Any, keys: Any, key_starts: Any) -> Any:
    for column in range(key_starts.size - 1):
        first = key_starts[column]
        if key_starts[column + 1] - first == size and _same(keys.ctypes.data + first, address, size):
            return np.int64(column)
    return np.int64(-1)


@bare_inline
def _scalar(base: Any, at: Any) -> Any:
    """(the place after a number or a literal, its kind): the place is negative if it is odd, the kind 0 for null."""
    word = load_u64(base + at) & _FOUR_BYTES
    if word == _NULL:
        return at + 4, np.uint8(0)
    if word == _TRUE:
        return at + 4, np.uint8(BOOLEAN)
    if word == _FALS and load_u8(base + at + 4) == _SMALL_E:
        return at + 5, np.uint8(BOOLEAN)
    negative = load_u8(base + at) == _MINUS
    at += negative
    first = at
    while _ZERO <= load_u8(base + at) <= _NINE:
        at += 1
    whole = at - first
    starts_with_zero = load_u8(base + first) == _ZERO
    if whole == 0 or whole > _MOST_DIGITS or (starts_with_zero and whole > 1):
        return np.int64(ODD), np.uint8(WHOLE)
    if load_u8(base + at) != _DOT and (load_u8(base + at) | _TO_LOWER) != _SMALL_E:
        return at, np.uint8(WHOLE | NOT_CANONICAL if negative and starts_with_zero else WHOLE)
    fraction, zeros, last = np.int64(0), np.int64(0), _NINE
    if load_u8(base + at) == _DOT:
        at += 1
        first = at
        while _ZERO <= load_u8(base + at) <= _NINE:
            last = load_u8(base + at)
            zeros += last == _ZERO and zeros == at - first
            at += 1
        fraction = at - first
        if fraction == 0:
            return np.int64(ODD), np.uint8(FLOAT)
    kind = np.uint8(FLOAT)
    if whole + fraction > _SURE_DIGITS or last == _ZERO or (starts_with_zero and zeros > _SURE_ZEROS):
        kind |= np.uint8(NOT_CANONICAL)
    if (load_u8(base + at) | _TO_LOWER) == _SMALL_E:
        kind |= np.uint8(NOT_CANONICAL)
        first = at + 2
        at = first
        while _ZERO <= load_u8(base + at) <= _NINE:
            at += 1
        # With another exponent it may be infinite.
        if load_u8(base + first - 1) != _MINUS or at == first:
            return np.int64(ODD), kind
    return at, kind
