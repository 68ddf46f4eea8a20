"""Kernels of the layers: merging sorted keys, and touching each page of a map."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel


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
            to = _copy(one, one_offsets[i], one_offsets[i + 1], data, to)
            rows[row] = i
            i += 1
        else:
            to = _copy(other, other_offsets[j], other_offsets[j + 1], data, to)
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
def _copy(data: Any, begin: Any, end: Any, out: Any, to: Any) -> Any:
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
