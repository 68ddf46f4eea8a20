"""Picking the best: a heap of candidates, the worst on top. Equal scores stand in the order of the candidates."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline


@bare_inline
def _worse(scores: Any, a: Any, b: Any) -> Any:
    return scores[a] < scores[b] or (scores[a] == scores[b] and a > b)


@bare_inline
def _sift(scores: Any, heap: Any, size: Any, at: Any) -> None:
    """Restore the heap, the worst on top, where only `at` may be out of place."""
    moving = heap[at]
    child = 2 * at + 1
    while child < size:
        if child + 1 < size and _worse(scores, heap[child + 1], heap[child]):
            child += 1
        if not _worse(scores, heap[child], moving):
            break
        heap[at], at = heap[child], child
        child = 2 * at + 1
    heap[at] = moving


@bare_inline
def best(scores: Any, count: Any, order: Any, size: Any) -> None:
    """Write the `size` best of `count` candidates to `order`, best first. O(count · log size)."""
    for candidate in range(size):
        order[candidate] = candidate
    for at in range(size // 2 - 1, -1, -1):
        _sift(scores, order, size, at)
    for candidate in range(size, count):
        if size > 0 and _worse(scores, order[0], candidate):
            order[0] = candidate
            _sift(scores, order, size, 0)
    for last in range(size - 1, 0, -1):
        order[0], order[last] = order[last], order[0]
        _sift(scores, order, last, 0)
