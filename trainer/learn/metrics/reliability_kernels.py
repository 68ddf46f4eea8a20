"""The kernel that sums predictions by group and by score, for reliability diagrams."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_kernel
from trainer.examples.examples_kernels import importance_of
from trainer.learn.metrics.metrics_kernels import SCORE_RANGE

# What the last axis of `sums` holds of a bucket.
ROWS, WEIGHT, SQUARED_WEIGHT, CLICKS, PREDICTED, LOSS = range(6)
COLUMNS = 6


@bare_kernel
def add_grouped(predictions: Any, rows: Any, groups: Any, sums: Any) -> None:
    """Add rows to groups, one after the other, so that batch boundaries change no bit.

    rows, groups: int64[n], rows of the predictions and the group to add each to; a row may occur several times. sums:
    float64[groups, variants, buckets, COLUMNS], buckets of equal width over scores from -16 to 16.
    """
    buckets = sums.shape[2]
    scale = buckets / (2.0 * SCORE_RANGE)
    for at in range(rows.size):
        row = rows[at]
        weight, label = importance_of(predictions, row), predictions.labels[row]
        for variant in range(sums.shape[1]):
            score = min(max(predictions.scores[row, variant], -SCORE_RANGE), SCORE_RANGE)
            bucket = sums[groups[at], variant, min(np.int64((score + SCORE_RANGE) * scale), buckets - 1)]
            bucket[ROWS] += 1.0
            bucket[WEIGHT] += weight
            bucket[SQUARED_WEIGHT] += weight * weight
            bucket[CLICKS] += weight * label
            bucket[PREDICTED] += weight * predictions.probabilities[row, variant]
            bucket[LOSS] += weight * predictions.losses[row, variant]
