"""Progressive validation: each example is predicted before it is learned from (the paper, section 5.1).

Memory does not grow with the log. AUC comes from a histogram of scores, 256 buckets to a unit of log-odds, ties counted
half: within 1e-4 of exact. Nothing here knows how the scores came about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from trainer.watching import kernels


@dataclass(frozen=True)
class VariantMetrics:
    """One variant's metrics; None where the log does not define them (no click at all, or nothing but clicks).

    logloss: mean of -ln p(label), p clipped at 1e-15; auc; calibration: sum of p / sum of y; normalized_entropy:
    logloss divided by the entropy of the log's click rate (He et al., ADKDD 2014).
    """

    logloss: float | None
    auc: float | None
    calibration: float | None
    normalized_entropy: float | None

    def as_dict(self) -> dict[str, float | None]:
        """The metrics by name."""
        return asdict(self)


class ProgressiveMetrics:
    """Running metrics of every variant, weighted by the examples' importance."""

    def __init__(self, variants: Sequence[str]) -> None:
        self.variants = tuple(variants)
        self._totals = np.zeros(3)
        self._product = np.ones(len(variants))
        self._sums = np.zeros((len(variants), 2))
        self._positives = np.zeros((len(variants), kernels.AUC_BUCKETS))
        self._negatives = np.zeros((len(variants), kernels.AUC_BUCKETS))

    def update(
        self,
        scores: npt.NDArray[np.float64],
        labels: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float64],
    ) -> None:
        """Add a batch: scores float64[rows, >= variants], labels and weights float64[rows] (weights empty: all 1)."""
        kernels.watch(
            scores,
            labels,
            weights,
            self._totals,
            self._sums,
            self._product,
            self._positives,
            self._negatives,
            np.empty(len(self.variants)),
        )

    @property
    def weight(self) -> float:
        """The sum of all examples' weights."""
        return float(self._totals[1])

    @property
    def clicks(self) -> float:
        """The sum of the weights of the clicked examples."""
        return float(self._totals[2])

    def logloss(self, variant: int = 0) -> float | None:
        """Mean log-loss so far of the variant with this index."""
        if not self.weight:
            return None
        return float(self._sums[variant, 0] - math.log(self._product[variant])) / self.weight

    def summary(self) -> dict[str, VariantMetrics]:
        """The metrics of every variant by name."""
        return {name: self._variant(index) for index, name in enumerate(self.variants)}

    def _variant(self, index: int) -> VariantMetrics:
        logloss = self.logloss(index)
        entropy = self._entropy()
        return VariantMetrics(
            logloss=logloss,
            auc=_auc(self._positives[index], self._negatives[index]),
            calibration=float(self._sums[index, 1]) / self.clicks if self.clicks else None,
            normalized_entropy=logloss / entropy if logloss is not None and entropy else None,
        )

    def _entropy(self) -> float | None:
        rate = self.clicks / self.weight if self.weight else 0.0
        if not 0.0 < rate < 1.0:
            return None
        return -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))


def _auc(positives: npt.NDArray[np.float64], negatives: npt.NDArray[np.float64]) -> float | None:
    pairs = float(positives.sum()) * float(negatives.sum())
    if pairs == 0.0:
        return None
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + 0.5 * negatives)).sum()) / pairs
