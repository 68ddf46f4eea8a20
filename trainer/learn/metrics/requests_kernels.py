"""The kernel that judges the orders of requests' candidates: every measure as expected over the orders of ties."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel

RECIPROCAL_RANK, NDCG, HIT_1, HIT_3, HIT_10, AUC = range(6)
MEASURES = 6


@bare_kernel
def judge(starts: Any, scores: Any, labels: Any, discounts: Any, out: Any) -> None:
    """Each request's measures, as expected over all orders of candidates with equal scores.

    starts: int64[requests + 1] into rows; scores: float64[rows, orders], higher is better; labels: float64[rows];
    discounts: float64[k + 1], the sum of the discounts of the first 0 … k ranks; out: float64[requests, orders,
    MEASURES], NaN for a request without a click. (McSherry and Najork, ECIR 2008.) AUC is NaN without an unclicked row.
    O(clicks · rows) for each request.
    """
    for request in range(starts.size - 1):
        first, last = starts[request], starts[request + 1]
        clicks: Any = 0
        for row in range(first, last):
            clicks += np.int64(labels[row] > 0.5)
        for order in range(scores.shape[1]):
            found = out[request, order]
            if clicks == 0:
                found[:] = np.nan
                continue
            gain, won, best = 0.0, 0.0, -np.inf
            for row in range(first, last):
                if labels[row] > 0.5:
                    best = max(best, scores[row, order])
                    gain += _expected_discount(scores, first, last, order, row, discounts)
                    won += _won(scores, labels, first, last, order, row)
            found[NDCG] = gain / discounts[min(clicks, discounts.size - 1)]
            unclicked = last - first - clicks
            found[AUC] = won / (clicks * unclicked) if unclicked else np.nan
            _first_click(scores, labels, first, last, order, best, found)


@bare_inline
def _expected_discount(scores: Any, first: Any, last: Any, order: Any, row: Any, discounts: Any) -> Any:
    """The mean discount of the ranks that a row shares with the rows of equal score."""
    above: Any = 0
    equal: Any = 0
    for other in range(first, last):
        above += np.int64(scores[other, order] > scores[row, order])
        equal += np.int64(scores[other, order] == scores[row, order])
    k = discounts.size - 1
    return (discounts[min(above + equal, k)] - discounts[min(above, k)]) / equal


@bare_inline
def _won(scores: Any, labels: Any, first: Any, last: Any, order: Any, row: Any) -> Any:
    """The unclicked rows below a row, those of equal score counted half."""
    won = 0.0
    for other in range(first, last):
        if not labels[other] > 0.5:
            won += 1.0 * (scores[other, order] < scores[row, order])
            won += 0.5 * (scores[other, order] == scores[row, order])
    return won


@bare_inline
def _first_click(scores: Any, labels: Any, first: Any, last: Any, order: Any, best: Any, found: Any) -> None:
    """The expected 1 / rank of the first click, which scores `best`, and its chance to be in the first 1, 3, 10."""
    above: Any = 0
    equal: Any = 0
    clicked: Any = 0
    for row in range(first, last):
        above += np.int64(scores[row, order] > best)
        if scores[row, order] == best:
            equal += 1
            clicked += np.int64(labels[row] > 0.5)
    found[HIT_1] = found[HIT_3] = found[HIT_10] = 0.0
    # For each rank of the tied rows: the probability that no click came before it, times that of a click at it.
    total, no_click_yet, left = 0.0, 1.0, equal
    rank = above + 1
    while left >= clicked and no_click_yet > 0.0:
        here = no_click_yet * clicked / left
        total += here / rank
        found[HIT_1] += here * (rank <= 1)
        found[HIT_3] += here * (rank <= 3)
        found[HIT_10] += here * (rank <= 10)
        no_click_yet *= 1.0 - clicked / left
        left -= 1
        rank += 1
    found[RECIPROCAL_RANK] = total
