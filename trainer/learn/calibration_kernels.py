"""The kernel that counts predictions by score: examples, clicks and the sum of the probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import sigmoid
from model_store.jit import bare_kernel

BUCKETS = 512
BUCKETS_PER_UNIT = 16.0
RANGE = 16.0  # scores beyond are counted at the ends
EXAMPLES, CLICKS, EXPECTED = 0, 1, 2


@bare_kernel
def count(scores: Any, labels: Any, weights: Any, places: Any, first: Any, end: Any, counts: Any) -> None:
    """Add rows first to end - 1; each row by itself, in order, so that where batches begin changes no bit.

    scores: float64[rows, >= variants]; labels, weights: float64[rows] (weights empty: all 1); places: int64[rows],
    the scope of each row beside the whole, 0 for none (or empty: all 0); counts: float64[variants, scopes, BUCKETS, 3],
    scope 0 the whole; the last axis holds the weight of the examples, that of the clicks, and the sum of weight * p.
    """
    for row in range(first, end):
        weight = weights[row] if weights.size else 1.0
        place = places[row] if places.size else 0
        for variant in range(counts.shape[0]):
            score = scores[row, variant]
            inside = min(max(score, -RANGE), RANGE)
            bucket = min(np.int64((inside + RANGE) * BUCKETS_PER_UNIT), BUCKETS - 1)
            expected = weight * sigmoid(score)
            counts[variant, 0, bucket, EXAMPLES] += weight
            counts[variant, 0, bucket, CLICKS] += weight * labels[row]
            counts[variant, 0, bucket, EXPECTED] += expected
            if place > 0:
                counts[variant, place, bucket, EXAMPLES] += weight
                counts[variant, place, bucket, CLICKS] += weight * labels[row]
                counts[variant, place, bucket, EXPECTED] += expected
