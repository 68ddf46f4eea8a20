"""An order of due times: a heap in an array of DUE whose nodes have four children, so that few cache lines are touched.

The least (time, place) stands first. What is pushed in order of time stays where it is put, in O(1); a pop is O(log n).
"""

from __future__ import annotations

from typing import Any

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
