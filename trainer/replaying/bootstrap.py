"""Intervals by the bootstrap: requests are drawn with replacement, and every estimate is made anew from each draw.

All estimates of all policies are made from the same draws. Percentiles (Efron 1979); the seed makes them repeatable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
OUTER = (2.5, 97.5)


def resampled(
    sums: Array, draws: int, seed: int, on_progress: Callable[[int], None] = lambda done: None
) -> Array:
    """The columns' totals over each draw of requests: float64[draws, columns] from float64[requests, columns]."""
    random = np.random.Generator(np.random.Philox(seed))
    requests = len(sums)
    totals = np.empty((draws, sums.shape[1]))
    for draw in range(draws):
        times = np.bincount(random.integers(0, requests, requests), minlength=requests)
        totals[draw] = times @ sums
        on_progress(draw + 1)
    return totals


def interval(numerators: Array, denominators: Array) -> tuple[float, float] | None:
    """The middle 95 % of the ratios; draws with nothing to divide by are passed over. None if all are."""
    there = denominators > 0.0
    if not there.any():
        return None
    low, high = np.percentile(numerators[there] / denominators[there], OUTER)
    return float(low), float(high)
