"""The states of an entry, the flags of its rows, and the table that finds it by its request's hash.

A forgotten entry keeps its slot until `moving` makes the table anew; whoever finds it there takes the slot over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline
from model_store.kernels import prefetch

FREE, WAITING, PENDING, CLOSED = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)
"""States of an entry: forgotten; known by early feedback only; its window is open; its window is closed."""

CLICKED, CONVERTED = np.uint8(1), np.uint8(2)
LATE = np.uint8(2)
"""Flags of a row. What came late stands LATE bits above what came in time."""

_HIGH = np.uint64(0xFFFFFFFF00000000)
_LOW = np.uint64(0xFFFFFFFF)
_NOTHING = np.uint64(0)


@bare_inline
def _home(memory: Any, request: Any) -> Any:
    return np.int64(request & np.uint64(memory.table.size - 1))


@bare_inline
def prefetch_slot(memory: Any, request: Any) -> None:
    """Ask for the cache line where the search for a request begins."""
    prefetch(memory.table.ctypes.data + _home(memory, request) * memory.table.itemsize)


@bare_inline
def find(memory: Any, request: Any) -> Any:
    """The slot of a request, or the free one where it belongs. The table is never full."""
    slot, tag = _home(memory, request), request & _HIGH
    while memory.table[slot] != _NOTHING:
        word = memory.table[slot]
        if word & _HIGH == tag and memory.entries[np.int64(word & _LOW) - 1].request == request:
            break
        slot += 1
        if slot == memory.table.size:
            slot = 0
    return slot


@bare_inline
def entry_in(memory: Any, slot: Any) -> Any:
    """The place of the entry that a slot has, -1 of a free slot or a forgotten one."""
    place = np.int64(memory.table[slot] & _LOW) - 1
    if place >= 0 and memory.entries[place].state == FREE:
        return -1
    return place


@bare_inline
def _word(request: Any, place: Any) -> Any:
    return (request & _HIGH) | np.uint64(place + 1)


@bare_inline
def enter(memory: Any, slot: Any, request: Any) -> Any:
    """Append an entry, known from now on under its slot; its place."""
    place = memory.head[0].entries
    memory.head[0].entries = place + 1
    memory.table[slot] = _word(request, place)
    entry = memory.entries[place]
    entry.request, entry.time, entry.forget = request, 0, 0
    entry.first, entry.segment, entry.row, entry.rows = -1, 0, -1, 0
    entry.positives, entry.clicks, entry.conversions, entry.next = 0, 0, 0, -1
    return place


@bare_inline
def enter_anew(memory: Any) -> None:
    """Make the table from the entries, none of which is forgotten."""
    memory.table[:] = _NOTHING
    for place in range(memory.head[0].entries):
        request = memory.entries[place].request
        memory.table[find(memory, request)] = _word(request, place)
