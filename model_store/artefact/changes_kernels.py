"""Kernels over sorted keys: pair the rows of two models by key, and merge the rows of one into another.

Keys are a column: `data` uint8, `offsets` int64[rows + 1] into it, strictly ascending as unsigned bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import load_u8, load_u64
from model_store.jit import bare_inline, bare_kernel

NONE = -1


@bare_inline
def compared(address: Any, length: Any, other_address: Any, other_length: Any) -> Any:
    """Negative, 0 or positive as a key is less than, equal to or greater than another."""
    shorter = min(length, other_length)
    at = np.int64(0)
    while at + 8 <= shorter and load_u64(address + at) == load_u64(other_address + at):
        at += 8
    while at < shorter:
        difference = np.int64(load_u8(address + at)) - np.int64(load_u8(other_address + at))
        if difference != 0:
            return difference
        at += 1
    return length - other_length


@bare_inline
def compared_rows(data: Any, offsets: Any, row: Any, other_data: Any, other_offsets: Any, other: Any) -> Any:
    """`compared`, of a row of one column and a row of another."""
    return compared(
        data.ctypes.data + offsets[row],
        offsets[row + 1] - offsets[row],
        other_data.ctypes.data + other_offsets[other],
        other_offsets[other + 1] - other_offsets[other],
    )


@bare_kernel
def pair_rows(data: Any, offsets: Any, other_data: Any, other_offsets: Any, out: Any) -> Any:
    """Pair the rows of two models by key, in key order; return the number of pairs.

    out: int64[rows of both, 2], a row of the first and a row of the second, NONE where it lacks the key.
    """
    rows, others = offsets.size - 1, other_offsets.size - 1
    row = other = count = np.int64(0)
    while row < rows or other < others:
        if row == rows:
            order = np.int64(1)
        elif other == others:
            order = np.int64(-1)
        else:
            order = compared_rows(data, offsets, row, other_data, other_offsets, other)
        out[count, 0] = row if order <= 0 else NONE
        out[count, 1] = other if order >= 0 else NONE
        row += order <= 0
        other += order >= 0
        count += 1
    return count


@bare_kernel
def find_rows(data: Any, offsets: Any, wanted_data: Any, wanted_offsets: Any, out: Any) -> None:
    """The rows of the first column that have the wanted keys: int64[wanted]; -1 - p for a key to insert at row p.

    O(wanted log rows): each result is the lower bound of the next search.
    """
    low = np.int64(0)
    for wanted in range(out.size):
        high = offsets.size - 1
        while low < high:
            middle = (low + high) >> 1
            if compared_rows(data, offsets, middle, wanted_data, wanted_offsets, wanted) < 0:
                low = middle + 1
            else:
                high = middle
        found = (
            low < offsets.size - 1
            and compared_rows(data, offsets, low, wanted_data, wanted_offsets, wanted) == 0
        )
        out[wanted] = low if found else -1 - low


@bare_kernel
def plan_merge(rows: Any, places: Any, kept: Any, out: Any) -> Any:
    """The rows of a merged column, in key order; return their number.

    rows: of the first column; places: as `find_rows` gives them for the second; kept: uint8, 0 where a row of the
    second removes its key. out: int64[rows of both]; row r of the first as r, row s of the second as -1 - s.
    """
    row = count = np.int64(0)
    for second in range(places.size):
        found = places[second] >= 0
        place = places[second] if found else -1 - places[second]
        while row < place:
            out[count] = row
            row += 1
            count += 1
        if kept[second]:
            out[count] = -1 - second
            count += 1
        row += found
    while row < rows:
        out[count] = row
        row += 1
        count += 1
    return count


@bare_kernel
def merged_offsets(offsets: Any, other_offsets: Any, plan: Any, out: Any) -> None:
    """The offsets of the keys that a plan names: int64[plan + 1]."""
    out[0] = 0
    for index in range(plan.size):
        row = plan[index]
        if row >= 0:
            length = offsets[row + 1] - offsets[row]
        else:
            length = other_offsets[-row] - other_offsets[-1 - row]
        out[index + 1] = out[index] + length


@bare_kernel
def merged_keys(data: Any, offsets: Any, other_data: Any, other_offsets: Any, plan: Any, out: Any) -> None:
    """The bytes of the keys that a plan names, concatenated."""
    to = np.int64(0)
    for index in range(plan.size):
        row = plan[index]
        if row >= 0:
            for at in range(offsets[row], offsets[row + 1]):
                out[to] = data[at]
                to += 1
        else:
            for at in range(other_offsets[-1 - row], other_offsets[-row]):
                out[to] = other_data[at]
                to += 1
