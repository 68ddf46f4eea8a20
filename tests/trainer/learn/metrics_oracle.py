"""What the metrics must be, in plain Python over lists of rows: slow and obvious, the oracle of the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One example as it was predicted: a score for each variant, the label, the weight, the request."""

    scores: tuple[float, ...]
    label: float
    weight: float
    request: int

    def probability(self, variant: int) -> float:
        return 1.0 / (1.0 + math.exp(-self.scores[variant]))

    def loss(self, variant: int) -> float:
        p = self.probability(variant)
        return -math.log(max(p if self.label else 1.0 - p, 1e-15))


def mean(rows: Sequence[Row], of) -> float:
    return math.fsum(row.weight * of(row) for row in rows) / math.fsum(row.weight for row in rows)


def logloss(rows: Sequence[Row], variant: int) -> float:
    return mean(rows, lambda row: row.loss(variant))


def calibration(rows: Sequence[Row], variant: int) -> float:
    return mean(rows, lambda row: row.probability(variant)) / mean(rows, lambda row: row.label)


def normalized_entropy(rows: Sequence[Row], variant: int) -> float:
    rate = mean(rows, lambda row: row.label)
    return logloss(rows, variant) / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def auc(rows: Sequence[Row], variant: int) -> float:
    """Over all pairs of a clicked and another row: how often the clicked one's score is higher; ties are half."""
    wins = pairs = 0.0
    for clicked in (row for row in rows if row.label):
        for other in (row for row in rows if not row.label):
            pair = clicked.weight * other.weight
            pairs += pair
            ahead = clicked.scores[variant] - other.scores[variant]
            wins += pair * (0.5 if ahead == 0 else float(ahead > 0))
    return wins / pairs


def interval(rows: Sequence[Row], variant: int) -> tuple[float, float]:
    """The 95 % interval of the mean difference to variant 0, rows of one request in a row being one cluster."""
    difference = logloss(rows, variant) - logloss(rows, 0)
    clusters: list[list[Row]] = []
    for row in rows:
        if not clusters or clusters[-1][-1].request != row.request:
            clusters.append([])
        clusters[-1].append(row)
    residuals = [
        math.fsum(row.weight * (row.loss(variant) - row.loss(0) - difference) for row in cluster)
        for cluster in clusters
    ]
    count, weight = len(clusters), math.fsum(row.weight for row in rows)
    variance = count / (count - 1) * math.fsum(r * r for r in residuals) / weight**2
    half = 1.959963984540054 * math.sqrt(variance)
    return difference - half, difference + half
