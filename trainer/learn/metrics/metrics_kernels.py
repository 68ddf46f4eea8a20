"""Kernels of the metrics: sums of predictions by group, reliability by score, the orders of requests, regret."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import END, SEED, TIMES, combine, digest, load_u8
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import cross_size, importance_of, pick, text_bytes, text_of, x_of

SCORE_RANGE = 16.0

# What `Tally.counts` holds of a group.
ROWS, CLICKED, WEIGHT, CLICKS, CLUSTERS, SQUARED_WEIGHT, OPEN_WEIGHT, IS_OPEN = range(8)
COUNTS = 8
# What `Tally.sums` holds of a group and a variant.
LOSS, PREDICTED, SQUARES, PRODUCTS, OPEN = range(5)
SUMS = 5
# What reliability diagrams hold of a bucket.
BIN_ROWS, BIN_WEIGHT, BIN_SQUARED_WEIGHT, BIN_CLICKS, BIN_PREDICTED, BIN_LOSS = range(6)
BIN_COLUMNS = 6
# The measures of a request's order.
RECIPROCAL_RANK, NDCG, HIT_1, HIT_3, HIT_10, AUC = range(6)
MEASURES = 6

_EMPTY = np.uint64(0)
_OTHER = np.int64(0)
# The identity of the rows without a value; that of a value is a digest of 64 bits.
_ABSENT = np.uint64(1)
NO_TOKEN = -1


# Sums of groups: losses, paired differences and histograms of scores. A group is all rows (`add_all`), or the rows with
# one value of a slice (`add_slices`). A slice is evaluated like a cross of its fields, whether or not the model has
# that cross; one field is a cross of one.


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
    weight = importance_of(predictions, row)
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
    for variant in range(variants):
        histogram[variant, bucket_of(predictions.scores[row, variant], histogram.shape[1])] += weight
    if variants > 1:
        compare(predictions, row, weight, tally, group)


@bare_inline
def bucket_of(score: Any, buckets: Any) -> Any:
    """The bucket of a score, of equal widths from -SCORE_RANGE to SCORE_RANGE; scores beyond are in the outer ones."""
    inside = min(max(score, -SCORE_RANGE), SCORE_RANGE)
    return min(np.int64((inside + SCORE_RANGE) * (buckets / (2.0 * SCORE_RANGE))), buckets - 1)


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


@bare_kernel
def add_grouped(predictions: Any, rows: Any, groups: Any, sums: Any) -> None:
    """Add rows to groups, one after the other, so that batch boundaries change no bit.

    rows, groups: int64[n], rows of the predictions and the group to add each to; a row may occur several times. sums:
    float64[groups, variants, buckets, BIN_COLUMNS], buckets of equal width over scores from -16 to 16.
    """
    for at in range(rows.size):
        row = rows[at]
        weight, label = importance_of(predictions, row), predictions.labels[row]
        for variant in range(sums.shape[1]):
            bucket = sums[groups[at], variant, bucket_of(predictions.scores[row, variant], sums.shape[2])]
            bucket[BIN_ROWS] += 1.0
            bucket[BIN_WEIGHT] += weight
            bucket[BIN_SQUARED_WEIGHT] += weight * weight
            bucket[BIN_CLICKS] += weight * label
            bucket[BIN_PREDICTED] += weight * predictions.probabilities[row, variant]
            bucket[BIN_LOSS] += weight * predictions.losses[row, variant]


# The orders of requests' candidates.


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


# Regret: scores of the recorded examples, the summed log-loss, its gradient, and the loss along a direction.
#
# rows is a `HashedRows` whose `hashes` are int32 numbers of keys, in the order in which they first occur; uses:
# float64[features], 1 where the variant uses the feature, else 0; end: only the first `end` rows count.


@bare_inline
def log_loss(margin: Any) -> Any:
    """ln(1 + exp(-margin)) without overflow; margin is the score, negated where the label is 0."""
    return math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0)


@bare_inline
def probability(score: Any) -> Any:
    """1 / (1 + exp(-score)) without overflow."""
    small = math.exp(-abs(score))
    return (1.0 if score >= 0.0 else small) / (1.0 + small)


@bare_kernel
def scores_of(rows: Any, uses: Any, end: Any, weights: Any, scores: Any) -> None:
    """The score of each row under float64[keys] weights: float64[rows] out."""
    for row in range(end):
        score = 0.0
        for i in range(rows.starts[row], rows.starts[row + 1]):
            score += uses[rows.features[i]] * x_of(rows, i) * weights[rows.hashes[i]]
        scores[row] = score


@bare_kernel
def add_gradient(rows: Any, uses: Any, end: Any, scores: Any, gradient: Any) -> None:
    """Add the gradient of the summed loss at these scores to float64[keys]."""
    for row in range(end):
        error = importance_of(rows, row) * (probability(scores[row]) - rows.labels[row])
        for i in range(rows.starts[row], rows.starts[row + 1]):
            gradient[rows.hashes[i]] += uses[rows.features[i]] * x_of(rows, i) * error


@bare_kernel
def add_curvature(rows: Any, uses: Any, end: Any, curvature: Any) -> None:
    """Add the largest second derivative of the summed loss along each key to float64[keys]: sum of omega x^2 / 4."""
    for row in range(end):
        for i in range(rows.starts[row], rows.starts[row + 1]):
            x = uses[rows.features[i]] * x_of(rows, i)
            curvature[rows.hashes[i]] += 0.25 * importance_of(rows, row) * x * x


@bare_kernel
def losses_to(rows: Any, scores: Any, ends: Any, out: Any) -> None:
    """The summed loss of the first ends[i] rows, for ascending int64 ends: float64[ends] out."""
    total, row = 0.0, 0
    for index in range(ends.size):
        while row < ends[index]:
            sign = 1.0 if rows.labels[row] > 0.5 else -1.0
            total += importance_of(rows, row) * log_loss(sign * scores[row])
            row += 1
        out[index] = total


@bare_kernel
def along(rows: Any, end: Any, scores: Any, direction: Any, size: Any) -> Any:
    """The summed loss at scores + size * direction (both float64[rows]) and its first two derivatives in `size`."""
    loss, slope, bend = 0.0, 0.0, 0.0
    for row in range(end):
        importance, score = importance_of(rows, row), scores[row] + size * direction[row]
        p = probability(score)
        loss += importance * log_loss(score if rows.labels[row] > 0.5 else -score)
        slope += importance * (p - rows.labels[row]) * direction[row]
        bend += importance * p * (1.0 - p) * direction[row] * direction[row]
    return loss, slope, bend
