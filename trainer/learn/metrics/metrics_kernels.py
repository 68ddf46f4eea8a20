"""The kernel that watches predictions: losses, sums, paired differences and histograms of scores, group by group.

A group is all rows, or the rows of one value of a slice. Nothing here knows of windows, fields or files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import bits_of_float, float_of_bits, sigmoid
from model_store.jit import bare_inline, bare_kernel

BLOCK = 32
SCORE_RANGE = 16.0
SMALLEST_PROBABILITY = 1e-15

# What `Tally.counts` holds of a group.
ROWS, CLICKED, WEIGHT, CLICKS, CLUSTERS, SQUARED_WEIGHT, OPEN_WEIGHT, IS_OPEN = range(8)
COUNTS = 8
# What `Tally.sums` holds of a group and a variant.
LOSS, PREDICTED, SQUARES, PRODUCTS, OPEN = range(5)
SUMS = 5

_LN2_HIGH = 6.93147180369123816490e-01  # its last 32 bits are 0, so a small integer times it is exact
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)
_OCTAVES_BELOW = 1024
_TWO_52_BITS = np.int64(0x4330000000000000)
_TWO_52 = 4503599627370496.0


class Tally(NamedTuple):
    """Running sums of groups of rows.

    counts: float64[groups, COUNTS]: rows, clicked rows; sums of ω and of ω y; clusters, the sum of their squared
    weights; the weight of the open cluster, and whether one is open.
    sums: float64[groups, SUMS, variants]: Σ ω loss; Σ ω p; over closed clusters c of weight W_c and with D_c the sum of
    ω (loss - the first variant's loss): Σ D_c² and Σ D_c W_c; and D of the open cluster.
    positives, negatives: float64[groups, variants, buckets]: ω of the clicked and of the other rows by score.
    requests: uint64[groups], the request of the open cluster.
    """

    counts: Any
    sums: Any
    positives: Any
    negatives: Any
    requests: Any


class Watched(NamedTuple):
    """A batch to watch: scores float64[rows, >= variants]; labels float64[rows]; weights and requests as below.

    weights: float64[rows], or empty where all are 1; requests: uint64[rows], or empty where each row is its own.
    """

    scores: Any
    labels: Any
    weights: Any
    requests: Any


class Room(NamedTuple):
    """Room for a block of rows: label float64[BLOCK]; score, p and loss float64[variants, BLOCK]; 0 at first."""

    label: Any
    score: Any
    probability: Any
    loss: Any


@bare_kernel
def watch(batch: Any, first: Any, last: Any, tally: Any, room: Any) -> None:
    """Add rows `first` to `last` (exclusive) of a batch to group 0; where batches begin and end changes no bit."""
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        judge(batch, begin, end, room)
        for row in range(begin, end):
            add(batch, row, row - begin, tally, 0, room)


@bare_inline
def judge(batch: Any, begin: Any, end: Any, room: Any) -> None:
    """What every variant predicted of a block of rows, and its log-loss."""
    for row in range(begin, end):
        room.label[row - begin] = batch.labels[row]
    for variant in range(room.loss.shape[0]):
        score, probability, loss = room.score[variant], room.probability[variant], room.loss[variant]
        for row in range(begin, end):
            score[row - begin] = batch.scores[row, variant]
        # Whole blocks, the last one with what is left of another: a loop of constant length over rows fills vectors.
        for place in range(BLOCK):
            p = sigmoid(score[place])
            probability[place] = p
            loss[place] = -log(max(p if room.label[place] > 0.5 else 1.0 - p, SMALLEST_PROBABILITY))


@bare_inline
def add(batch: Any, row: Any, place: Any, tally: Any, group: Any, room: Any) -> None:
    """Add a row, the `place`-th of the judged block, to a group."""
    weight = batch.weights[row] if batch.weights.size else 1.0
    counts, sums = tally.counts[group], tally.sums[group]
    counts[ROWS] += 1.0
    counts[CLICKED] += batch.labels[row]
    counts[WEIGHT] += weight
    counts[CLICKS] += weight * batch.labels[row]
    variants = sums.shape[1]
    for variant in range(variants):
        sums[LOSS, variant] += weight * room.loss[variant, place]
        sums[PREDICTED, variant] += weight * room.probability[variant, place]
    histogram = tally.positives[group] if batch.labels[row] > 0.5 else tally.negatives[group]
    buckets = histogram.shape[1]
    scale = buckets / (2.0 * SCORE_RANGE)
    for variant in range(variants):
        score = min(max(room.score[variant, place], -SCORE_RANGE), SCORE_RANGE)
        histogram[variant, min(np.int64((score + SCORE_RANGE) * scale), buckets - 1)] += weight
    if variants > 1:
        compare(batch, row, place, weight, tally, group, room)


@bare_inline
def compare(batch: Any, row: Any, place: Any, weight: Any, tally: Any, group: Any, room: Any) -> None:
    """Add a row's differences to the open cluster; a row of another request closes it first."""
    counts, sums = tally.counts[group], tally.sums[group]
    grouped = batch.requests.size > 0
    if not (grouped and counts[IS_OPEN] != 0.0 and tally.requests[group] == batch.requests[row]):
        close(counts, sums)
        counts[CLUSTERS] += 1.0
        counts[IS_OPEN] = 1.0
        if grouped:
            tally.requests[group] = batch.requests[row]
    counts[OPEN_WEIGHT] += weight
    base = room.loss[0, place]
    for variant in range(sums.shape[1]):
        sums[OPEN, variant] += weight * (room.loss[variant, place] - base)


@bare_inline
def close(counts: Any, sums: Any) -> None:
    """Close a group's open cluster; one of weight 0 adds nothing."""
    weight = counts[OPEN_WEIGHT]
    counts[SQUARED_WEIGHT] += weight * weight
    for variant in range(sums.shape[1]):
        difference = sums[OPEN, variant]
        sums[SQUARES, variant] += difference * difference
        sums[PRODUCTS, variant] += difference * weight
        sums[OPEN, variant] = 0.0
    counts[OPEN_WEIGHT] = 0.0
    counts[IS_OPEN] = 0.0


@bare_kernel
def close_cluster(tally: Any, group: Any) -> None:
    """Close a group's open cluster between two rows, so that the request's next rows begin another."""
    close(tally.counts[group], tally.sums[group])


@bare_inline
def log(x: Any) -> Any:
    """The natural logarithm of a normal positive number below 2^1000, within 2 units in the last place.

    x = 2^k m with m in [√½, √2); ln m = 2 artanh((m - 1) / (m + 1)). Like the sigmoid only IEEE additions,
    multiplications and one division, so that every machine gets the same bits and LLVM can run it over variants.
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
def probabilities(scores: Any, out: Any) -> None:
    """The sigmoid of each of float64[n] scores, into out."""
    for index in range(scores.size):
        out[index] = sigmoid(scores[index])


@bare_kernel
def logarithms(numbers: Any, out: Any) -> None:
    """The logarithm of each of float64[n] numbers, which must be normal and positive, into out."""
    for index in range(numbers.size):
        out[index] = log(numbers[index])
