"""Kernels over the recorded examples: scores, the summed log-loss, its gradient, and the loss along a direction.

rows is a `HashedRows` whose `hashes` are int32 numbers of keys, in the order in which they first occur; uses:
float64[features], 1 where the variant uses the feature, else 0; end: only the first `end` rows count.
"""

from __future__ import annotations

import math
from typing import Any

from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of, x_of


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
