"""Byte strings that lie end to end: numbered by a hash table, sorted, merged, copied.

Item ids get rows, item parts their numbers, by open addressing. A table is int32[2^k], larger than the number of
strings in it. It holds their numbers, -1 where free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import digest, load_u8, load_u64, prefetch
from model_store.jit import bare_inline, bare_kernel

# In `half`: the key belongs to no mixed cross. In an item's codes: the model has no such item part.
NO_HALF = -1
UNKNOWN = -1  # in `rows`: no such id
LINE_FEED = 0x0A


@bare_kernel
def index_ids(id_data: Any, id_offsets: Any, table: Any) -> None:
    """Enter the row of each id: id_data uint8, id_offsets int64[n + 1] into it, the table all free."""
    mask = np.uint64(table.size - 1)
    for row in range(id_offsets.size - 1):
        place = _hash(id_data, id_offsets[row], id_offsets[row + 1]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = row


@bare_kernel
def find_ids(id_data: Any, id_offsets: Any, table: Any, text: Any, spans: Any, rows: Any) -> Any:
    """rows[i] = the row of the id text[spans[i, 0] : spans[i, 1]] (uint8, int32[n, 2]), or UNKNOWN.

    Returns how many are unknown. Each step reads memory that the step before has prefetched. Reading one id at a time
    takes seven times as long when the caches are cold.
    """
    mask, unknown = np.uint64(table.size - 1), 0
    for i in range(rows.size):
        rows[i] = _hash(text, np.int64(spans[i, 0]), np.int64(spans[i, 1])) & mask
        prefetch(table.ctypes.data + np.int64(rows[i]) * table.itemsize)
    _prefetch_bytes(id_data, id_offsets, table, rows)
    for i in range(rows.size):
        begin, end, place = np.int64(spans[i, 0]), np.int64(spans[i, 1]), np.uint64(rows[i])
        row = np.int64(table[place])
        while row >= 0 and not _same(id_data, id_offsets[row], id_offsets[row + 1], text, begin, end):
            place = (place + np.uint64(1)) & mask
            row = np.int64(table[place])
        rows[i] = row
        unknown += row == UNKNOWN
    return unknown


@bare_kernel
def split_lines(text: Any, spans: Any) -> Any:
    """Write where each line of `text` (uint8) begins and ends to spans int32[n, 2]; return how many lines there are.

    The text's end is the last line's. Of more lines than n the first n are written.
    """
    count, begin = 0, 0
    for at in range(text.size + 1):
        if at == text.size or text[at] == LINE_FEED:
            if count < spans.shape[0]:
                spans[count, 0], spans[count, 1] = begin, at
            count += 1
            begin = at + 1
    return count


@bare_inline
def _prefetch_bytes(id_data: Any, id_offsets: Any, table: Any, rows: Any) -> None:
    for i in range(rows.size):
        prefetch(id_offsets.ctypes.data + max(0, np.int64(table[rows[i]])) * id_offsets.itemsize)
    for i in range(rows.size):
        prefetch(id_data.ctypes.data + id_offsets[max(0, np.int64(table[rows[i]]))])


@bare_kernel
def number_item_parts(
    key_data: Any, key_offsets: Any, start: Any, stop: Any, prefix: Any, stars: Any,
    table: Any, spans: Any, count: Any, half: Any,
) -> Any:  # fmt: skip
    """Number the distinct item parts of one cross's keys, slots [start, stop); returns the new `count`.

    An item part is what follows the `stars`-th `*` after the prefix. Invariant: table int32[2^k] is an open-addressing
    table, less than full, of the `count` numbers so far, -1 where free; spans int64[count, 2] says where in key_data
    each begins and ends; half int32[slots] gets each slot's number, NO_HALF if its key has too few `*`.
    """
    mask = np.uint64(table.size - 1)
    for slot in range(start, stop):
        at, end = np.int64(key_offsets[slot]) + prefix, np.int64(key_offsets[slot + 1])
        left = stars
        while left > 0 and at < end:
            left -= key_data[at] == 0x2A
            at += 1
        if left > 0:
            half[slot] = NO_HALF
            continue
        place = _hash(key_data, at, end) & mask
        while table[place] >= 0 and not _same(
            key_data, at, end, key_data, spans[table[place], 0], spans[table[place], 1]
        ):
            place = (place + np.uint64(1)) & mask
        if table[place] < 0:
            table[place] = count
            spans[count, 0], spans[count, 1] = at, end
            count += 1
        half[slot] = table[place]
    return count


@bare_inline
def _hash(data: Any, at: Any, end: Any) -> Any:
    return digest(data.ctypes.data + at, end - at)


@bare_inline
def _same(a_data: Any, a: Any, a_end: Any, b_data: Any, b: Any, b_end: Any) -> Any:
    length = a_end - a
    if length != b_end - b:
        return False
    left, right, i = a_data.ctypes.data + a, b_data.ctypes.data + b, 0
    while i + 8 <= length:
        if load_u64(left + i) != load_u64(right + i):
            return False
        i += 8
    while i < length:
        if load_u8(left + i) != load_u8(right + i):
            return False
        i += 1
    return True


WORD_BYTES = 7
_8 = np.uint64(8)


@bare_kernel
def words_at(data: Any, spans: Any, rows: Any, depth: Any, out: Any) -> None:
    """out[i] uint64 = the seven bytes from `depth` on, in an order-preserving form, then how many bytes are left.

    A span data[spans[rows[i], 0] : spans[rows[i], 1]] that ends earlier is padded with 0. The lowest byte is the number
    of bytes left, at most 8, so that a text sorts before a longer one that begins with it.
    """
    for i in range(rows.size):
        at, end = spans[rows[i], 0] + depth, spans[rows[i], 1]
        word = np.uint64(0)
        for byte in range(WORD_BYTES):
            word = word << _8 | (np.uint64(data[at + byte]) if at + byte < end else np.uint64(0))
        out[i] = word << _8 | np.uint64(max(0, min(end - at, WORD_BYTES + 1)))


@bare_kernel
def write_spans(data: Any, spans: Any, rows: Any, tag: Any, out: Any, offsets: Any) -> None:
    """Write `tag` (uint8) and the span's bytes for each of `rows`, end to end; offsets int64[rows + 1] says where.

    offsets[0] is set by the caller; `out` has room.
    """
    to = offsets[0]
    for i in range(rows.size):
        to = copied(tag, 0, tag.size, out, to)
        to = copied(data, spans[rows[i], 0], spans[rows[i], 1], out, to)
        offsets[i + 1] = to


@bare_kernel
def mark_request_parts(
    key_data: Any, key_offsets: Any, start: Any, stop: Any, prefix: Any, stars: Any, run: Any
) -> None:
    """run[slot] = the first slot in [start, stop) whose key has the same bytes up to the `stars`-th `*`."""
    first, length = start, -1
    for slot in range(start, stop):
        begin, end = np.int64(key_offsets[slot]), np.int64(key_offsets[slot + 1])
        left, at = stars, begin + prefix
        while left > 0 and at < end:
            left -= key_data[at] == 0x2A
            at += 1
        head = at - begin
        if head != length or not _same(
            key_data, begin, at, key_data, np.int64(key_offsets[first]), np.int64(key_offsets[first]) + head
        ):
            first, length = slot, head
        run[slot] = first


@bare_kernel
def merge_keys(
    one: Any, one_offsets: Any, keep_one: Any, other: Any, other_offsets: Any, keep_other: Any,
    data: Any, offsets: Any, rows: Any,
) -> None:  # fmt: skip
    """Merge two sorted columns of keys, the rows with `keep` of each; rows[i] = its row of one, or -1 - row of other.

    Data is uint8, offsets are integers. data has room for all bytes; offsets int64[n + 1] begins with 0 and rows is
    int64[n], n the number of rows kept. Invariant: all keys before row `i` and row `j` are written or left out.
    """
    i, j, to = 0, 0, 0
    for row in range(rows.size):
        while i < keep_one.size and not keep_one[i]:
            i += 1
        while j < keep_other.size and not keep_other[j]:
            j += 1
        take_one = i < keep_one.size and (
            j >= keep_other.size
            or _is_less(
                one, one_offsets[i], one_offsets[i + 1], other, other_offsets[j], other_offsets[j + 1]
            )
        )
        if take_one:
            to = copied(one, one_offsets[i], one_offsets[i + 1], data, to)
            rows[row] = i
            i += 1
        else:
            to = copied(other, other_offsets[j], other_offsets[j + 1], data, to)
            rows[row] = -1 - j
            j += 1
        offsets[row + 1] = to


@bare_inline
def _is_less(a_data: Any, a: Any, a_end: Any, b_data: Any, b: Any, b_end: Any) -> Any:
    length = min(np.int64(a_end) - np.int64(a), np.int64(b_end) - np.int64(b))
    for at in range(length):
        left, right = a_data[np.int64(a) + at], b_data[np.int64(b) + at]
        if left != right:
            return bool(left < right)
    return bool(np.int64(a_end) - np.int64(a) < np.int64(b_end) - np.int64(b))


@bare_inline
def copied(data: Any, begin: Any, end: Any, out: Any, to: Any) -> Any:
    """Copy data[begin:end] to out[to:], all uint8; return where the copy ends."""
    for at in range(np.int64(begin), np.int64(end)):
        out[to] = data[at]
        to += 1
    return to


@bare_kernel
def touch(data: Any) -> Any:
    """Read a byte of every page of uint8[bytes], so that no request has to wait for the first one; return their sum."""
    total = np.uint64(0)
    for at in range(0, data.size, 4096):
        total += np.uint64(data[at])
    return total
