"""Kernels over the rows of impressions."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_kernel


@bare_kernel
def find_twice(first: Any, items: Any, table: Any, twice: Any) -> None:
    """Of each impression, the row of the first item that it shows for the second time, or -1. A hash of 0 is no item.

    first: int64[n + 1], where the rows of each begin in items, uint64; table: int64, all -1, a power of two longer than
    twice the longest impression; twice: int64[n], out. Invariant: an entry of the table counts only if it is one of
    this impression's rows, which are all that are not below first[i], so that the table is never cleared.
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
