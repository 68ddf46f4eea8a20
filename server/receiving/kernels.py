"""One pass over the bytes of a `ctr.v1.RankRequest`: its item ids are located, all other fields copied together.

Any two encodings of the same fields, in any order of fields, are the same message, so the copy without the ids parses
to the request without them (protobuf's encoding guide, "Field Order"). What is unusual is left to the protobuf library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel

# Returned instead of a count: bytes that only the protobuf library should judge.
IRREGULAR = -1

_ITEM_IDS = 6 << 3 | 2  # field 6, length-delimited
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MORE = 0x80
_LONGEST_LENGTH = 4  # bytes of a varint below 2^28


@bare_kernel
def split(message: Any, spans: Any, rest: Any, sizes: Any) -> Any:
    """Fill spans int32[≥ ids, 2] with where each item id begins and ends, and rest uint8[≥ message] with the others.

    Returns the number of ids; sizes[0] is how much of `rest` is used. IRREGULAR for a malformed message, a group, a
    field number above 15, and an id that is not ASCII.
    """
    at, count, used = 0, 0, 0
    while at < message.size:
        tag, begin = message[at], at
        at += 1
        if tag >= _MORE:
            return IRREGULAR
        end = _end_of_value(message, at, tag & 7)
        if end < 0 or end > message.size:
            return IRREGULAR
        if tag == _ITEM_IDS:
            while message[at] >= _MORE:
                at += 1
            at += 1
            if not _is_ascii(message, at, end):
                return IRREGULAR
            spans[count, 0], spans[count, 1] = at, end
            count += 1
        else:
            for i in range(begin, end):
                rest[used] = message[i]
                used += 1
        at = end
    sizes[0] = used
    return count


@bare_inline
def _end_of_value(message: Any, at: Any, wire_type: Any) -> Any:
    """Where the value at `at` ends; -1 if that cannot be said. It may be past the message."""
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _FIXED32:
        return at + 4
    if wire_type not in (_VARINT, _DELIMITED):
        return -1
    value, shift = np.int64(0), np.int64(0)
    while at < message.size and shift < 70:
        byte = np.int64(message[at])
        at += 1
        if wire_type == _DELIMITED:
            value |= (byte & 0x7F) << shift
        shift += 7
        if byte < _MORE:
            if wire_type == _VARINT:
                return at
            return at + value if shift <= 7 * _LONGEST_LENGTH else -1
    return -1


@bare_inline
def _is_ascii(message: Any, at: Any, end: Any) -> Any:
    seen = np.uint8(0)
    for i in range(at, end):
        seen |= message[i]
    return seen < _MORE
