"""A batch's predictions: scores, probabilities and log-losses, computed once and read by whatever sums them.

Input: the scores that the examples had before they were learned from, and their labels. Output: `Predictions`, which
the metrics, their slices, the recent window and the calibrator take. Every machine computes the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import bits_of_float, float_of_bits, sigmoid
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import HashedRows

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
    labels, weights = predictions.labels, predictions.weights
    for row in range(first, end):
        weight = weights[row] if weights.size else 1.0
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
