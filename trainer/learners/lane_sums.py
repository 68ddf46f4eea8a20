"""Sums over the variants that use a key, eight at a time. `lanes.py` has the vectors."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline
from trainer.learners.lanes import LANES, add_scaled, dot, dot_of_roots


@bare_inline
def add_to_users(sums: Any, share: Any, uses: Any, c: Any) -> None:
    """Add `share` to the sum of every variant that uses class c."""
    for lane in range(0, sums.size, LANES):
        add_scaled(address(sums, lane), share, address(uses, c * sums.size + lane))


@bare_inline
def sum_over_users(numbers: Any, uses: Any, c: Any) -> Any:
    """The sum of numbers[v] over the variants that use class c."""
    total = 0.0
    for lane in range(0, numbers.size, LANES):
        total += dot(address(numbers, lane), address(uses, c * numbers.size + lane))
    return total


@bare_inline
def sum_of_roots(n: Any, factor: Any, squared: Any, uses: Any, c: Any) -> Any:
    """The sum of sqrt(n + factor * squared[v]) over the variants that use class c: their new sqrt(n)."""
    total = 0.0
    for lane in range(0, squared.size, LANES):
        total += dot_of_roots(n, factor, address(squared, lane), address(uses, c * squared.size + lane))
    return total


@bare_inline
def address(numbers: Any, index: Any) -> Any:
    """Where the index-th float64 of a contiguous array lies."""
    return numbers.ctypes.data + 8 * index
