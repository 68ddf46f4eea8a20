"""Copying the bytes of values that were found to where a column has them, and looking into lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_kernel
from trainer.events.scanning.literals.kernels import ABSENT, LIST, QUOTE, scalar, skip


@bare_kernel
def text_offsets(kinds: Any, sizes: Any, offsets: Any) -> None:
    """Where each value's bytes will begin: offsets, int32[n + 1], out; of ABSENT ones there are none."""
    total = np.int32(0)
    for i in range(kinds.size):
        offsets[i] = total
        if kinds[i] != ABSENT:
            total += np.int32(sizes[i])
    offsets[kinds.size] = total


@bare_kernel
def copy_text(data: Any, begins: Any, offsets: Any, out: Any) -> None:
    """Copy each value's bytes to where `text_offsets` has put them."""
    for i in range(begins.size):
        begin = begins[i]
        for place in range(offsets[i], offsets[i + 1]):
            out[place] = data[begin]
            begin += 1


@bare_kernel
def count_members(data: Any, kinds: Any, begins: Any, sizes: Any, offsets: Any) -> None:
    """How many members lists have, added up: offsets, int32[n + 1], out. A list that was scanned is not broken."""
    total = np.int32(0)
    for i in range(kinds.size):
        offsets[i] = total
        if kinds[i] == LIST:
            at, end = np.int64(begins[i]) + 1, np.int64(begins[i]) + sizes[i] - 1
            at = skip(data, at, end)
            while at < end:
                at, _ = scalar(data, at, end)
                total += np.int32(1)
                at = skip(data, skip(data, at, end) + 1, end)
    offsets[kinds.size] = total


@bare_kernel
def find_members(data: Any, kinds: Any, begins: Any, sizes: Any, members: Any) -> None:
    """The kinds, begins and sizes of all lists' members: Spans without a base, filled in order."""
    place = 0
    for i in range(kinds.size):
        if kinds[i] == LIST:
            at, end = np.int64(begins[i]) + 1, np.int64(begins[i]) + sizes[i] - 1
            at = skip(data, at, end)
            while at < end:
                begin = at
                at, kind = scalar(data, at, end)
                quoted = 1 if data[begin] == QUOTE else 0
                members.kinds[place] = kind
                members.begins[place], members.sizes[place] = begin + quoted, at - begin - 2 * quoted
                place += 1
                at = skip(data, skip(data, at, end) + 1, end)
