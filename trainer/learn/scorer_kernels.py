"""Kernels that score rows with a published model through a hash index."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import sigmoid
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of, x_of

_EMPTY = np.uint64(0)


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
def add_rows(numbers: Any, sums: Any) -> None:
    """Add each row of float64[rows, n] to float64[n], in order, skipping NaN; batch boundaries change no bit."""
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            if not np.isnan(numbers[row, column]):
                sums[column] += numbers[row, column]
