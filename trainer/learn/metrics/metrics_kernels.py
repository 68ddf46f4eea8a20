"""Kernels that sum predictions: losses, paired differences and histograms of scores, group by group.

A group is all rows (`add_all`), or the rows with one value of a slice (`add_slices`). A slice is evaluated like a cross
of its fields, whether or not the model has that cross; one field is a cross of one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import END, SEED, TIMES, combine, digest, load_u8
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import cross_size, pick, text_bytes, text_of

SCORE_RANGE = 16.0

# What `Tally.counts` holds of a group.
ROWS, CLICKED, WEIGHT, CLICKS, CLUSTERS, SQUARED_WEIGHT, OPEN_WEIGHT, IS_OPEN = range(8)
COUNTS = 8
# What `Tally.sums` holds of a group and a variant.
LOSS, PREDICTED, SQUARES, PRODUCTS, OPEN = range(5)
SUMS = 5

_EMPTY = np.uint64(0)
_OTHER = np.int64(0)
# The identity of the rows without a value; that of a value is a digest of 64 bits.
_ABSENT = np.uint64(1)
NO_TOKEN = -1


class Tally(NamedTuple):
    """Running sums of groups of rows.

    counts: float64[groups, COUNTS]: rows, clicked rows; sums of ω and of ω y; clusters, the sum of their squared
    weights; the weight of the open cluster, and whether one is open.
    sums: float64[groups, SUMS, variants]: Σ ω loss; Σ ω p; over closed clusters c, with W_c their weight and D_c the
    sum of ω (loss - the first variant's loss): Σ D_c² and Σ D_c W_c; and D of the open cluster.
    positives, negatives: float64[groups, variants, buckets]: ω of the clicked and of the other rows by score.
    requests: uint64[groups], the request of the open cluster.
    """

    counts: Any
    sums: Any
    positives: Any
    negatives: Any
    requests: Any


class Conditions(NamedTuple):
    """The conditions that the slices' prefixes set for a key.

    digests: uint64[slices, 4], the digest that each part must have, 0 for any; part: int64[slices], the part whose text
    must begin with bytes `starts[slice]` to `starts[slice + 1]` of heads (uint8).
    """

    digests: Any
    part: Any
    heads: Any
    starts: Any


class Values(NamedTuple):
    """Hash tables, one a slice, from a value's identity to its number, 1 to limit in order of arrival.

    Open addressing, at most half full. identities: uint64[slices, size], 0 where free; numbers: int64[slices, size];
    used: int64[slices].
    """

    identities: Any
    numbers: Any
    used: Any


@bare_kernel
def add_all(predictions: Any, first: Any, last: Any, tally: Any) -> None:
    """Add rows `first` to `last` (exclusive) of `Predictions` to group 0; batch boundaries change no bit."""
    for row in range(first, last):
        add(predictions, row, tally, 0)


@bare_kernel
def add_slices(
    predictions: Any,
    rows: Any,
    first: Any,
    last: Any,
    tokens: Any,
    texts: Any,
    conditions: Any,
    values: Any,
    arrivals: Any,
    tally: Any,
    picked: Any,
) -> Any:
    """Add rows `first` to `last` (exclusive) to the groups of their slice values; return how many values are new.

    Of a slice, group 0 holds the rows of all values after the first `limit`, groups 1 to limit those of the values in
    order of arrival. rows: int32, the rows' indexes in the tokens; tokens: `TokenLayout` with the slices' fields as
    crosses; arrivals: int64[new values at most, 5] out, slice and tokens of each new value, NO_TOKEN for the rows
    without one; picked: int64[4], scratch.
    """
    new = 0
    slices = values.used.size
    limit = tally.counts.shape[0] // slices - 1
    for row in range(first, last):
        for index in range(slices):
            keys = cross_size(tokens, index, rows[row])
            if keys == 0 and is_whole_field(tokens, conditions, index):
                number, is_new = number_of(values, index, _ABSENT, limit)
                if is_new:
                    arrivals[new, 0], arrivals[new, 1] = index, NO_TOKEN
                    new += 1
                add(predictions, row, tally, index * (limit + 1) + number)
            for combination in range(keys):
                size = pick(tokens, index, rows[row], combination, picked)
                if not fits(conditions, index, tokens, texts, picked, size):
                    continue
                number, is_new = number_of(values, index, identity(tokens, picked, size), limit)
                if is_new:
                    arrivals[new, 0] = index
                    for part in range(size):
                        arrivals[new, 1 + part] = picked[part]
                    new += 1
                add(predictions, row, tally, index * (limit + 1) + number)
    return new


@bare_kernel
def close_cluster(tally: Any, group: Any) -> None:
    """Close a group's open cluster between two rows, so that the request's next rows begin another."""
    close(tally.counts[group], tally.sums[group])


@bare_kernel
def digest_of(text: Any) -> Any:
    """The digest of the bytes of a uint8 array."""
    return digest(text.ctypes.data, text.size)


@bare_inline
def add(predictions: Any, row: Any, tally: Any, group: Any) -> None:
    """Add a row to a group."""
    label = predictions.labels[row]
    weight = predictions.weights[row] if predictions.weights.size else 1.0
    counts, sums = tally.counts[group], tally.sums[group]
    counts[ROWS] += 1.0
    counts[CLICKED] += label
    counts[WEIGHT] += weight
    counts[CLICKS] += weight * label
    variants = sums.shape[1]
    for variant in range(variants):
        sums[LOSS, variant] += weight * predictions.losses[row, variant]
        sums[PREDICTED, variant] += weight * predictions.probabilities[row, variant]
    histogram = tally.positives[group] if label > 0.5 else tally.negatives[group]
    buckets = histogram.shape[1]
    scale = buckets / (2.0 * SCORE_RANGE)
    for variant in range(variants):
        score = min(max(predictions.scores[row, variant], -SCORE_RANGE), SCORE_RANGE)
        histogram[variant, min(np.int64((score + SCORE_RANGE) * scale), buckets - 1)] += weight
    if variants > 1:
        compare(predictions, row, weight, tally, group)


@bare_inline
def compare(predictions: Any, row: Any, weight: Any, tally: Any, group: Any) -> None:
    """Add a row's differences to the open cluster; a row of another request closes that first."""
    counts, sums = tally.counts[group], tally.sums[group]
    grouped = predictions.requests.size > 0
    if not (grouped and counts[IS_OPEN] != 0.0 and tally.requests[group] == predictions.requests[row]):
        close(counts, sums)
        counts[CLUSTERS] += 1.0
        counts[IS_OPEN] = 1.0
        if grouped:
            tally.requests[group] = predictions.requests[row]
    counts[OPEN_WEIGHT] += weight
    base = predictions.losses[row, 0]
    for variant in range(sums.shape[1]):
        sums[OPEN, variant] += weight * (predictions.losses[row, variant] - base)


@bare_inline
def close(counts: Any, sums: Any) -> None:
    """Close a group's open cluster; a cluster of weight 0 adds nothing."""
    weight = counts[OPEN_WEIGHT]
    counts[SQUARED_WEIGHT] += weight * weight
    for variant in range(sums.shape[1]):
        difference = sums[OPEN, variant]
        sums[SQUARES, variant] += difference * difference
        sums[PRODUCTS, variant] += difference * weight
        sums[OPEN, variant] = 0.0
    counts[OPEN_WEIGHT] = 0.0
    counts[IS_OPEN] = 0.0


@bare_inline
def is_whole_field(tokens: Any, conditions: Any, index: Any) -> Any:
    """Whether a slice has a group for every value of one field, so that rows without a value are one too."""
    return tokens.crosses[index, 1] < 0 and conditions.starts[index] == conditions.starts[index + 1]


@bare_inline
def fits(conditions: Any, index: Any, tokens: Any, texts: Any, picked: Any, size: Any) -> Any:
    """Whether a key begins with the slice's prefix."""
    for part in range(size):
        wanted = conditions.digests[index, part]
        if wanted != _EMPTY and tokens.digests[picked[part]] != wanted:
            return False
    first, last = conditions.starts[index], conditions.starts[index + 1]
    if first == last:
        return True
    part = conditions.part[index]
    field = tokens.crosses[index, part]
    start, stop = text_bytes(texts, field, text_of(tokens, field, picked[part]))
    if stop - start < last - first:
        return False
    for position in range(last - first):
        if load_u8(start + position) != conditions.heads[first + position]:
            return False
    return True


@bare_inline
def identity(tokens: Any, picked: Any, size: Any) -> Any:
    """A hash of the values that a key combines; never 0."""
    state = SEED
    for part in range(size):
        state = combine(state, tokens.digests[picked[part]], END if part == size - 1 else TIMES)
    return state


@bare_inline
def number_of(values: Any, index: Any, wanted: Any, limit: Any) -> Any:
    """The number of a value in its slice, 0 where the slice is full, and whether it is new."""
    mask = values.identities.shape[1] - 1
    slot = np.int64(wanted & np.uint64(mask))
    while values.identities[index, slot] not in (wanted, _EMPTY):
        slot = (slot + 1) & mask
    if values.identities[index, slot] == wanted:
        return values.numbers[index, slot], False
    if values.used[index] == limit:
        return _OTHER, False
    values.used[index] += 1
    values.identities[index, slot] = wanted
    values.numbers[index, slot] = values.used[index]
    return values.numbers[index, slot], True
