"""The kernel that watches predictions: log-loss, sums and histograms of scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.jit import bare_kernel
from model_store.kernels import sigmoid

AUC_BUCKETS = 8192
AUC_BUCKETS_PER_UNIT = 256.0
AUC_RANGE = 16.0
SMALLEST_PROBABILITY = 1e-15

_ROWS_BETWEEN_LOGS = 16  # 16 factors of at least 1e-15 stay far above the smallest float64


@bare_kernel
def watch(
    scores: Any,
    labels: Any,
    weights: Any,
    totals: Any,
    sums: Any,
    product: Any,
    positives: Any,
    negatives: Any,
    probability: Any,
) -> None:
    """Add a batch's progressive predictions to the running metrics; where batches begin and end changes no bit.

    scores: float64[rows, >= variants]; labels float64[rows]; weights float64[rows], or empty where all are 1;
    totals: float64[3], rows, weight and clicks; sums: float64[variants, 2], log-loss and sum of p;
    positives, negatives: float64[variants, AUC_BUCKETS]. Logarithms are taken of a product of up to 16
    probabilities, not of each; product: float64[variants], those whose logarithm is still to be taken.
    """
    rows, variants = labels.size, sums.shape[0]
    for row in range(rows):
        weight = weights[row] if weights.size else 1.0
        totals[0] += 1.0
        totals[1] += weight
        totals[2] += weight * labels[row]
        clicked = labels[row] > 0.5
        for variant in range(variants):
            probability[variant] = sigmoid(scores[row, variant])
            sums[variant, 1] += weight * probability[variant]
        if weights.size:
            for variant in range(variants):
                right = probability[variant] if clicked else 1.0 - probability[variant]
                sums[variant, 0] -= weight * math.log(max(right, SMALLEST_PROBABILITY))
        else:
            for variant in range(variants):
                right = probability[variant] if clicked else 1.0 - probability[variant]
                product[variant] *= max(right, SMALLEST_PROBABILITY)
        histogram = positives if clicked else negatives
        for variant in range(variants):
            score = min(max(scores[row, variant], -AUC_RANGE), AUC_RANGE)
            place = np.int64((score + AUC_RANGE) * AUC_BUCKETS_PER_UNIT)
            histogram[variant, min(place, AUC_BUCKETS - 1)] += weight
        if totals[0] % _ROWS_BETWEEN_LOGS == 0.0:
            for variant in range(variants):
                sums[variant, 0] -= math.log(product[variant])
                product[variant] = 1.0
