"""An order of due times: a heap in an array of DUE whose nodes have four children, so that few cache lines are touched.

The least (time, place) stands first. What is pushed in order of time stays where it is put, in O(1); a pop is O(log n).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel

_CHILDREN = 4


@bare_inline
def _is_before(time: Any, place: Any, other: Any) -> Any:
    return time < other.time or (time == other.time and place < other.place)


@bare_kernel
def push(heap: Any, size: Any, time: Any, place: Any) -> None:
    """Put (time, place) into a heap of `size`. What comes in order of time stays where it is put."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // _CHILDREN
        if not _is_before(time, place, heap[parent]):
            break
        heap[hole].time = heap[parent].time
        heap[hole].place = heap[parent].place
        hole = parent
    heap[hole].time = time
    heap[hole].place = place


@bare_kernel
def pop(heap: Any, size: Any) -> None:
    """Take the first out of a heap of `size`."""
    last = size - 1
    time, place = heap[last].time, heap[last].place
    hole = 0
    while True:
        least = _CHILDREN * hole + 1
        if least >= last:
            break
        for child in range(least + 1, min(_CHILDREN * hole + _CHILDREN + 1, last)):
            if _is_before(heap[child].time, heap[child].place, heap[least]):
                least = child
        if _is_before(time, place, heap[least]):
            break
        heap[hole].time = heap[least].time
        heap[hole].place = heap[least].place
        hole = least
    heap[hole].time = time
    heap[hole].place = place


# --- The states of an entry, the flags of its rows, and the table that finds it by its request's hash ---
#
# A forgotten entry keeps its slot until `moving` makes the table anew; whoever finds it there takes the slot
# over.


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


# --- What is forgotten is dropped, and the rest moved together in its order, so that places still say what
# came first ---


@bare_kernel
def compact(memory: Any, moved: Any, moved_early: Any) -> None:
    """Drop what is forgotten and keep the order of the rest; the table is made anew.

    moved: int32[entries], moved_early: int32[early], out: the new place of each, -1 of what is gone.
    """
    _compact_entries(memory, moved)
    _compact_early(memory, moved, moved_early)
    head = memory.head[0]
    if head.oldest_closed >= 0:
        head.oldest_closed = moved[head.oldest_closed]
        head.newest_closed = moved[head.newest_closed]
    for index in range(head.due):
        memory.due[index].place = moved[memory.due[index].place]
    enter_anew(memory)


@bare_kernel
def _compact_entries(memory: Any, moved: Any) -> None:
    head, kept, items = memory.head[0], 0, 0
    for place in range(head.entries):
        entry = memory.entries[place]
        if entry.state == FREE:
            moved[place] = -1
            continue
        moved[place] = kept
        if entry.state != WAITING:
            for row in range(entry.rows):
                memory.items[items + row] = memory.items[entry.first + row]
                memory.flags[items + row] = memory.flags[entry.first + row]
            entry.first = items
            items += entry.rows
        memory.entries[kept] = entry
        kept += 1
    for place in range(kept):
        if memory.entries[place].next >= 0:
            memory.entries[place].next = moved[memory.entries[place].next]
        if memory.entries[place].state == WAITING:
            memory.entries[place].first = -1
    head.entries, head.items = kept, items


@bare_kernel
def _compact_early(memory: Any, moved: Any, moved_early: Any) -> None:
    """Chains are linked anew: the feedback of one request stands in the order it came."""
    head, kept = memory.head[0], 0
    for node in range(head.early):
        if not memory.early[node].live:
            moved_early[node] = -1
            continue
        moved_early[node] = kept
        memory.early[kept] = memory.early[node]
        early = memory.early[kept]
        early.entry, early.next = moved[early.entry], -1
        entry = memory.entries[early.entry]
        if entry.first < 0:
            entry.first = kept
        else:
            memory.early[entry.row].next = kept
        entry.row = kept
        kept += 1
    head.early = kept
    due = 0
    for index in range(head.early_due):
        node = moved_early[memory.early_due[index].place]
        if node >= 0:
            time = memory.early_due[index].time
            push(memory.early_due, due, time, node)
            due += 1
    head.early_due = due
