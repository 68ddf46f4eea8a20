"""Kernels of predictions: the scores of rows by a published model, what of a score is given, and a batch's losses.

Every machine computes the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import bits_of_float, float_of_bits, sigmoid
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import HashedRows, importance_of, x_of

SMALLEST_PROBABILITY = 1e-15

# Calibration counts.
BUCKETS = 512
BUCKETS_PER_UNIT = 16.0
RANGE = 16.0  # scores beyond are counted at the ends
EXAMPLES, CLICKS, EXPECTED = 0, 1, 2

_LN2_HIGH = 6.93147180369123816490e-01  # its last 32 bits are 0, so a small integer times it is exact
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)
_OCTAVES_BELOW = 1024
_TWO_52_BITS = np.int64(0x4330000000000000)
_TWO_52 = 4503599627370496.0

_EMPTY = np.uint64(0)

NOT_ASKED = np.empty((0, 0))


class Predictions(NamedTuple):
    """What every variant predicted for a batch of examples, and what happened.

    scores, probabilities: float64[rows, >= variants]; losses: float64[rows, variants], log-losses with probabilities
    clipped at SMALLEST_PROBABILITY; labels: float64[rows]; weights: float64[rows], or empty where all are 1; requests:
    uint64[rows], or empty where each row is a request of its own. before: float64[rows, >= variants], the scores before
    any row of the request was learned, which alone may be compared within it; empty where they were not asked for.
    """

    scores: Any
    probabilities: Any
    losses: Any
    labels: Any
    weights: Any
    requests: Any
    before: Any = NOT_ASKED

    @classmethod
    def of(
        cls,
        scores: Any,
        probabilities: Any,
        rows: HashedRows,
        requests: Any,
        variants: int,
        before: Any = NOT_ASKED,
    ) -> Predictions:
        """Compute the losses. The columns of scores and probabilities beyond `variants` are not used."""
        losses = np.empty((rows.labels.size, variants))
        log_losses(probabilities, rows.labels, losses, losses.reshape(-1))
        return cls(scores, probabilities, losses, rows.labels, rows.weights, requests, before)

    @classmethod
    def of_scores(cls, scores: Any, rows: HashedRows, requests: Any, variants: int) -> Predictions:
        """Compute probabilities and losses of C-contiguous scores."""
        computed = np.empty(scores.shape)
        probabilities(scores.reshape(-1), computed.reshape(-1))
        return cls.of(scores, computed, rows, requests, variants)

    def after(self, rows: int) -> Predictions:
        """The predictions without the first `rows` rows."""
        return Predictions(*(each[rows:] for each in self))


@bare_kernel
def log_losses(probabilities: Any, labels: Any, losses: Any, flat: Any) -> None:
    """The log-loss of each prediction. losses: float64[rows, variants] out; flat: the same memory in one dimension."""
    for row in range(losses.shape[0]):
        for variant in range(losses.shape[1]):
            p = probabilities[row, variant]
            losses[row, variant] = p if labels[row] > 0.5 else 1.0 - p
    # A flat loop vectorizes for any number of variants.
    for index in range(flat.size):
        flat[index] = -log(max(flat[index], SMALLEST_PROBABILITY))


@bare_kernel
def probabilities(scores: Any, out: Any) -> None:
    """The sigmoid of each score: float64[n]."""
    for index in range(scores.size):
        out[index] = sigmoid(scores[index])


@bare_kernel
def logarithms(numbers: Any, out: Any) -> None:
    """The logarithm of each number, which must be normal and positive: float64[n]."""
    for index in range(numbers.size):
        out[index] = log(numbers[index])


@bare_inline
def log(x: Any) -> Any:
    """The natural logarithm of a normal positive number below 2^1000, within 2 units in the last place.

    x = 2^k m with m in [√½, √2); ln m = 2 artanh((m - 1) / (m + 1)). Like the sigmoid it uses only IEEE additions,
    multiplications and one division, so every machine gets the same bits and LLVM can vectorize it.
    """
    bits = bits_of_float(x)
    octave = ((bits - _SQRT_HALF) + (np.int64(_OCTAVES_BELOW) << 52)) >> 52
    # The integer becomes a float by its bits: processors without AVX-512 cannot convert several at once.
    k = float_of_bits(octave | _TWO_52_BITS) - (_TWO_52 + _OCTAVES_BELOW)
    m = float_of_bits(bits - ((octave - _OCTAVES_BELOW) << 52))
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = 1.0 / 21.0
    series = series * square + 1.0 / 19.0
    series = series * square + 1.0 / 17.0
    series = series * square + 1.0 / 15.0
    series = series * square + 1.0 / 13.0
    series = series * square + 1.0 / 11.0
    series = series * square + 1.0 / 9.0
    series = series * square + 1.0 / 7.0
    series = series * square + 1.0 / 5.0
    series = series * square + 1.0 / 3.0
    return k * _LN2_HIGH + (2.0 * s + (2.0 * s * square * series + k * _LN2_LOW))


@bare_kernel
def count_by_score(predictions: Any, scopes: Any, first: Any, end: Any, counts: Any) -> None:
    """Add rows first to end - 1 to the calibration counts, row by row, so that batch boundaries change no bit.

    scopes: int64[rows], each row's scope beside the whole log, 0 for none (or empty: all 0); counts:
    float64[variants, scopes, BUCKETS, 3], scope 0 the whole log, buckets by ascending score; the last axis holds the
    weight of the examples, that of the clicks, and the sum of weight * p.
    """
    labels = predictions.labels
    for row in range(first, end):
        weight = importance_of(predictions, row)
        scope = scopes[row] if scopes.size else 0
        for variant in range(counts.shape[0]):
            inside = min(max(predictions.scores[row, variant], -RANGE), RANGE)
            bucket = min(np.int64((inside + RANGE) * BUCKETS_PER_UNIT), BUCKETS - 1)
            expected = weight * predictions.probabilities[row, variant]
            counts[variant, 0, bucket, EXAMPLES] += weight
            counts[variant, 0, bucket, CLICKS] += weight * labels[row]
            counts[variant, 0, bucket, EXPECTED] += expected
            if scope > 0:
                counts[variant, scope, bucket, EXAMPLES] += weight
                counts[variant, scope, bucket, CLICKS] += weight * labels[row]
                counts[variant, scope, bucket, EXPECTED] += expected


# Scores by a published model, whose keys are found in a hash index.


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
def fill_index(hashes: Any, index: Any) -> None:
    """Insert every key's hash with its row."""
    for row in range(hashes.size):
        slot = _find(index, hashes[row])
        index.hashes[slot] = hashes[row]
        index.rows[slot] = row


@bare_kernel
def score_rows(
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

    rows, masks, index: as in `score_rows`; used: float64[keys of the model], to which each row adds its weight times
    |x|; keys: int64[rows, 2] out, the row's keys, and those of them that the model lacks.
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


# Base margins.


@bare_kernel
def split_rows(
    rows: Any,
    begin: Any,
    end: Any,
    weights: Any,
    masks: Any,
    variants: Any,
    out: Any,
    places: Any,
    margins: Any,
) -> None:
    """Write rows begin to end without the features whose weight is given; sum weight * x of those by variant.

    weights: float64[features], 0 where the weight is learned; masks: uint32[features], who uses a feature; out:
    `HashedRows` with room for as many features, rows from `end` on have none; places: int64 out, where each feature of
    `out` is in `rows`; margins: float64[rows, >= variants] out.
    """
    at = 0
    for row in range(begin, end):
        out.starts[row] = at
        for v in range(margins.shape[1]):
            margins[row, v] = 0.0
        for position in range(rows.starts[row], rows.starts[row + 1]):
            feature = rows.features[position]
            if weights[feature] != 0.0:
                for v in range(variants):
                    if masks[feature] >> v & 1:
                        margins[row, v] += weights[feature] * x_of(rows, position)
                continue
            out.hashes[at], out.features[at] = rows.hashes[position], feature
            if out.x.size:
                out.x[at] = x_of(rows, position)
            places[at] = position
            at += 1
    for row in range(end, out.starts.size):
        out.starts[row] = at
