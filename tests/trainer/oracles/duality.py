"""How far weights are from the minimum of an L1- and L2-penalised logistic loss, by its dual: no solver is needed.

    P(w) = Σ ω (ln(1 + e^s) − y s) + Σ l1 |w| + l2 w² / 2,    s = X w

For any α with α / ω + y in [0, 1], D(α) = −Σ ω φ*(α / ω) − R*(−Xᵀ α) ≤ min P, where φ*(u) = (u + y) ln(u + y) +
(1 − u − y) ln(1 − u − y), and R*(v) = Σ max(0, |v| − l1)² / (2 l2), where l2 = 0 it is 0 if |v| ≤ l1
and else infinite. At the minimum α = ω (p − y) makes both equal; elsewhere the same α, scaled until it is feasible,
bounds the distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sparse:
    """A matrix by its entries: entry k is x[k] in row rows[k] and column keys[k]; shape: rows, columns."""

    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    x: Numbers
    shape: tuple[int, int]

    def times(self, w: Numbers) -> Numbers:
        """X w."""
        return np.bincount(self.rows, self.x * w[self.keys], self.shape[0])

    def transposed_times(self, a: Numbers) -> Numbers:
        """Xᵀ a."""
        return np.bincount(self.keys, self.x * a[self.rows], self.shape[1])


def matrix_of(rows: Any, keys: int) -> Sparse:
    """The matrix of a shard's rows (`trainer.distributed.shard.Rows`)."""
    lengths = np.diff(rows.starts)
    x = rows.x if rows.x.size else np.ones(rows.ids.size)
    of_rows = np.repeat(np.arange(lengths.size), lengths)
    return Sparse(of_rows, rows.ids.astype(np.int64), x, (lengths.size, keys))


def bounds(
    matrix: Sparse, labels: Numbers, weights: Numbers, l1: Numbers, l2: Numbers, w: Numbers
) -> tuple[float, float]:
    """P(w), and a lower bound of the minimum."""
    scores = matrix.times(w)
    loss = np.logaddexp(0.0, scores) - labels * scores
    value = weights @ loss + l1 @ np.abs(w) + 0.5 * (l2 @ np.square(w))
    alpha = weights * (1.0 / (1.0 + np.exp(-scores)) - labels)
    forces = np.abs(matrix.transposed_times(alpha))
    free = l2 == 0.0
    largest = np.max(np.divide(forces, l1, out=np.zeros_like(forces), where=free & (l1 > 0.0)), initial=1.0)
    best = max(_dual(alpha / scale, forces / scale, labels, weights, l1, l2) for scale in (1.0, largest))
    return float(value), best


def _dual(
    alpha: Numbers, forces: Numbers, labels: Numbers, weights: Numbers, l1: Numbers, l2: Numbers
) -> float:
    beyond = np.maximum(forces - l1 * (1.0 + 1e-12), 0.0)
    if (beyond[l2 == 0.0] > 0.0).any():
        return -np.inf
    penalty = np.divide(np.square(beyond), 2.0 * l2, out=np.zeros_like(l2), where=l2 > 0.0).sum()
    share = np.divide(alpha, weights, out=np.zeros_like(alpha), where=weights > 0.0) + labels
    return float(-(weights @ (_entropy(share) + _entropy(1.0 - share))) - penalty)


def _entropy(p: Numbers) -> Numbers:
    return np.where(p > 0.0, p * np.log(np.where(p > 0.0, p, 1.0)), 0.0)
