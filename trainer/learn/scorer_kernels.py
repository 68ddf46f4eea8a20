"""Kernels that score rows with a published model through a hash index, and evaluate the order of requests' rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import sigmoid
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of, x_of

_EMPTY = np.uint64(0)
RECIPROCAL_RANK, NDCG = 0, 1


class KeyIndex(NamedTuple):
    """A hash table from a key's hash to its row: hashes uint64[2^k], 0 where free; rows int64[2^k]. Never full."""

    hashes: Any
    rows: Any


class KeyColumns(NamedTuple):
    """A model's columns over its keys: variants uint32[n]; weights, rates float32[n, 1] or [n, variants].

    unseen: float64[variants], the learning rate of a key that is not in the model.
    """

    variants: Any
    weights: Any
    rates: Any
    unseen: Any


@bare_inline
def _find(index: Any, key: Any) -> Any:
    """The slot of `key`, or the free slot where the linear search for it ends."""
    mask = index.hashes.size - 1
    slot = np.int64(key & np.uint64(mask))
    while index.hashes[slot] != key and index.hashes[slot] != _EMPTY:
        slot = (slot + 1) & mask
    return slot


@bare_kernel
def fill(hashes: Any, index: Any) -> None:
    """Insert every key's hash with its row."""
    for row in range(hashes.size):
        slot = _find(index, hashes[row])
        index.hashes[slot] = hashes[row]
        index.rows[slot] = row


@bare_kernel
def score(
    rows: Any, masks: Any, index: Any, columns: Any, squares: Any, scores: Any, uncertainty: Any
) -> None:
    """Score rows for every variant: sums of weight * x, and of rate * |x|, over each variant's keys, in their order.

    With `squares` the second sum is of rate * x^2.

    rows: `HashedRows`; masks: uint32[features], which variants use a feature; index: `KeyIndex`; columns: `KeyColumns`;
    scores, uncertainty: float64[rows, variants] out.
    """
    own = columns.weights.shape[1] > 1
    for row in range(scores.shape[0]):
        for variant in range(scores.shape[1]):
            scores[row, variant] = 0.0
            uncertainty[row, variant] = 0.0
        for position in range(rows.starts[row], rows.starts[row + 1]):
            x = x_of(rows, position)
            size = x * x if squares else abs(x)
            slot = _find(index, rows.hashes[position])
            used_by = masks[rows.features[position]]
            if index.hashes[slot] == _EMPTY:
                for variant in range(scores.shape[1]):
                    if used_by >> variant & 1:
                        uncertainty[row, variant] += columns.unseen[variant] * size
                continue
            key = index.rows[slot]
            used_by &= columns.variants[key]
            for variant in range(scores.shape[1]):
                if used_by >> variant & 1:
                    column = variant if own else 0
                    scores[row, variant] += np.float64(columns.weights[key, column]) * x
                    uncertainty[row, variant] += np.float64(columns.rates[key, column]) * size


@bare_kernel
def count_keys(rows: Any, masks: Any, index: Any, used: Any, keys: Any) -> None:
    """Count the keys of rows that some variant uses.

    rows, masks, index: as in `score`; used: float64[keys of the model], to which each row adds its weight times |x|;
    keys: int64[rows, 2] out, the row's keys, and those of them that the model lacks.
    """
    for row in range(keys.shape[0]):
        keys[row, 0] = keys[row, 1] = 0
        for position in range(rows.starts[row], rows.starts[row + 1]):
            if masks[rows.features[position]] == 0:
                continue
            keys[row, 0] += 1
            slot = _find(index, rows.hashes[position])
            if index.hashes[slot] == _EMPTY:
                keys[row, 1] += 1
            else:
                used[index.rows[slot]] += importance_of(rows, row) * abs(x_of(rows, position))


@bare_kernel
def probability(score: Any) -> Any:
    """The sigmoid of one score."""
    return sigmoid(score)


@bare_kernel
def judge(starts: Any, scores: Any, labels: Any, discounts: Any, out: Any) -> None:
    """Reciprocal rank and NDCG of each request, as expected over all orders of candidates with equal scores.

    starts: int64[requests + 1] into rows; scores: float64[rows, orders], higher is better; labels: float64[rows];
    discounts: float64[k + 1], the sum of the discounts of the first 0 … k ranks; out: float64[requests, orders, 2],
    NaN for a request without a click. (McSherry and Najork, ECIR 2008.)
    """
    for request in range(starts.size - 1):
        first, last = starts[request], starts[request + 1]
        clicks: Any = 0
        for row in range(first, last):
            clicks += np.int64(labels[row] > 0.5)
        for order in range(scores.shape[1]):
            if clicks == 0:
                out[request, order, RECIPROCAL_RANK] = np.nan
                out[request, order, NDCG] = np.nan
                continue
            gain, best = 0.0, -np.inf
            for row in range(first, last):
                if labels[row] > 0.5:
                    best = max(best, scores[row, order])
                    gain += _expected_discount(scores, first, last, order, row, discounts)
            out[request, order, RECIPROCAL_RANK] = _reciprocal_rank(scores, labels, first, last, order, best)
            out[request, order, NDCG] = gain / discounts[min(clicks, discounts.size - 1)]


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
def _reciprocal_rank(scores: Any, labels: Any, first: Any, last: Any, order: Any, best: Any) -> Any:
    """The expected 1 / rank of the first click, which is among the rows that score `best`."""
    above: Any = 0
    equal: Any = 0
    clicked: Any = 0
    for row in range(first, last):
        above += np.int64(scores[row, order] > best)
        if scores[row, order] == best:
            equal += 1
            clicked += np.int64(labels[row] > 0.5)
    # For each rank of the tied rows: the probability that no click came before it, times that of a click at it.
    total, no_click_yet, left = 0.0, 1.0, equal
    rank = above + 1
    while left >= clicked and no_click_yet > 0.0:
        total += no_click_yet * clicked / left / rank
        no_click_yet *= 1.0 - clicked / left
        left -= 1
        rank += 1
    return total


@bare_kernel
def add_rows(numbers: Any, sums: Any) -> None:
    """Add each row of float64[rows, n] to float64[n], in order, skipping NaN; batch boundaries change no bit."""
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            if not np.isnan(numbers[row, column]):
                sums[column] += numbers[row, column]
