"""Kernels that number the distinct texts of a column. A column's places are as in `cells.TextPlaces`."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import digest, load_i32, load_u8
from model_store.jit import bare_inline, bare_kernel


@bare_kernel
def code_texts(data: Any, place: Any, stride: Any, gap: Any, table: Any, codes: Any, firsts: Any) -> Any:
    """Number the distinct texts in the order in which they appear; return how many there are.

    data, place: addresses; table: int32 scratch, a power of two of them, at least twice the rows; codes: int32[rows]
    out; firsts: int32[rows] out, the first row of each text.
    """
    for index in range(table.size):
        table[index] = -1
    mask, distinct = np.uint64(table.size - 1), 0
    for row in range(codes.size):
        start, size = text_at(place + stride * row, gap)
        hashed = digest(data + start, size) if size > 0 else np.uint64(0)
        slot: Any = np.int64(hashed & mask)
        while table[slot] >= 0:
            first, first_size = text_at(place + stride * np.int64(firsts[table[slot]]), gap)
            if first_size == size and is_same(data + first, data + start, size):
                break
            slot = np.int64((np.uint64(slot) + np.uint64(1)) & mask)
        if table[slot] < 0:
            table[slot], firsts[distinct] = distinct, row
            distinct += 1
        codes[row] = table[slot]
    return distinct


@bare_kernel
def copy_texts(data: Any, place: Any, stride: Any, gap: Any, rows: Any, offsets: Any, out: Any) -> Any:
    """Copy the texts of these rows one after the other; return their bytes together.

    offsets: int32[rows + 1] out; out: uint8 out, or empty, to count the bytes alone.
    """
    size = np.int64(0)
    for index in range(rows.size):
        start, length = text_at(place + stride * np.int64(rows[index]), gap)
        offsets[index] = size
        if out.size:
            for at in range(length):
                out[size + at] = load_u8(data + start + at)
        size += length
    offsets[rows.size] = size
    return size


@bare_inline
def text_at(place: Any, gap: Any) -> Any:
    """Where a text begins, and its bytes."""
    start = np.int64(load_i32(place)) + gap
    return start, np.int64(load_i32(place + 4)) - start


@bare_inline
def is_same(a: Any, b: Any, size: Any) -> Any:
    """Whether the bytes at two addresses are the same."""
    for at in range(size):
        if load_u8(a + at) != load_u8(b + at):
            return False
    return True
