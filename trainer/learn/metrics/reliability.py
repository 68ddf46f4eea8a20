"""Reliability: predicted against observed click rates of groups of rows, by bins of the prediction.

In: predictions and the group of each row. Out: a `GroupReliability` per group: the figures of `VariantMetrics`, bins
with Wilson intervals, and the expected calibration error beside what chance alone would make it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.ratios import wilson
from trainer.learn.metrics.figures import Figures, MetricsRecord, VariantSums, figures_of, ratio
from trainer.learn.metrics.metrics_kernels import (
    BIN_CLICKS,
    BIN_COLUMNS,
    BIN_LOSS,
    BIN_PREDICTED,
    BIN_ROWS,
    BIN_SQUARED_WEIGHT,
    BIN_WEIGHT,
    add_grouped,
)
from trainer.learn.metrics.tally import equal_weights
from trainer.learn.predictions_kernels import Predictions

BINS, ROWS_OF_BIN = 10, 10
"""The most bins of a group; with fewer than BINS * ROWS_OF_BIN clicked (or unclicked) rows, it has fewer of them."""
BUCKETS = 512
ENOUGH = 20
"""A group with fewer clicked or fewer unclicked rows is not judged: its bins would be noise."""

Floats = npt.NDArray[np.float64]


class ReliabilityBin(MetricsRecord):
    """Rows with similar predictions: their mean prediction, and their click rate with its 95 % interval (Wilson).

    With importance weights the interval takes the effective number of rows, (Σ ω)² / Σ ω² (Kish 1965).
    """

    rows: int
    weight: float
    predicted: float
    click_rate: float
    low: float
    high: float


class Reliability(Figures):
    """One variant's figures over the rows of a group; None where undefined.

    ece: the expected calibration error, the mean over the bins of |mean prediction - click rate| by weight; by_chance:
    what a perfectly calibrated model would have in these bins, in expectation, by the normal approximation:
    Σ_b √(2/π Σ ω² p (1 - p)) / Σ ω, with p the bin's mean prediction.
    """

    ece: float | None
    by_chance: float | None
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class GroupReliability:
    """The rows of one group, with every variant's figures. low, high: the 95 % interval of the click rate (Wilson)."""

    rows: int
    clicked: int
    weight: float
    clicks: float
    click_rate: float | None
    low: float | None
    high: float | None
    variants: dict[str, Reliability]

    @property
    def worst(self) -> float:
        """The largest excess of a variant's calibration error over chance."""
        pairs = ((each.ece, each.by_chance) for each in self.variants.values())
        return max(
            (ece - chance for ece, chance in pairs if ece is not None and chance is not None), default=0.0
        )


class ReliabilitySums:
    """The sums of numbered groups. 24 KiB per group and variant, once a row of the group was added.

    `clicked`: int64[groups], the clicked rows.
    """

    def __init__(self, groups: int, variants: int) -> None:
        self.clicked = np.zeros(groups, np.int64)
        self._sums = np.zeros((groups, variants, BUCKETS, BIN_COLUMNS))

    def add(
        self, predictions: Predictions, rows: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
    ) -> None:
        """Add rows `rows` of the predictions to `groups`, pair by pair."""
        add_grouped(predictions, rows, groups, self._sums)
        np.add.at(self.clicked, groups, predictions.labels[rows] > 0.5)

    def regrouped(self, groups: npt.NDArray[np.int64], count: int) -> ReliabilitySums:
        """The sums of `count` new groups; groups[i] is the one that takes group i's rows."""
        made = ReliabilitySums(count, self._sums.shape[1])
        np.add.at(made.clicked, groups, self.clicked)
        np.add.at(made._sums, groups, self._sums)
        return made

    def rows(self, group: int) -> int:
        """The rows of a group."""
        return int(self._sums[group, 0, :, BIN_ROWS].sum())

    def enough(self, group: int) -> bool:
        """Whether a group has enough clicked and unclicked rows to be judged."""
        clicked = int(self.clicked[group])
        return min(clicked, self.rows(group) - clicked) >= ENOUGH

    def group(self, group: int, variants: Sequence[str]) -> GroupReliability:
        """The figures of one group."""
        total = self._sums[group, 0].sum(axis=0)
        own = _bin(total) if total[BIN_WEIGHT] > 0.0 else None
        clicked = int(self.clicked[group])
        fewer = min(clicked, int(total[BIN_ROWS]) - clicked)
        count = min(max(fewer // ROWS_OF_BIN, 1), BINS)
        return GroupReliability(
            rows=int(total[BIN_ROWS]),
            clicked=clicked,
            weight=float(total[BIN_WEIGHT]),
            clicks=float(total[BIN_CLICKS]),
            click_rate=ratio(total[BIN_CLICKS], total[BIN_WEIGHT]),
            low=own.low if own else None,
            high=own.high if own else None,
            variants={name: _reliability(self._sums[group, bit], count) for bit, name in enumerate(variants)},
        )


def _reliability(buckets: Floats, count: int) -> Reliability:
    """The figures of one group and variant: float64[BUCKETS, BIN_COLUMNS]."""
    total = buckets.sum(axis=0)
    weight, clicks = float(total[BIN_WEIGHT]), float(total[BIN_CLICKS])
    bins = np.zeros((count, BIN_COLUMNS))
    if weight > 0.0:
        np.add.at(bins, equal_weights(buckets[:, BIN_WEIGHT], count), buckets)
    bins = bins[bins[:, BIN_WEIGHT] > 0.0]
    gap = np.abs(bins[:, BIN_PREDICTED] - bins[:, BIN_CLICKS])
    mean = bins[:, BIN_PREDICTED] / bins[:, BIN_WEIGHT]
    noise = np.sqrt(2.0 / math.pi * bins[:, BIN_SQUARED_WEIGHT] * mean * np.maximum(1.0 - mean, 0.0))
    outcomes = buckets[:, BIN_CLICKS], buckets[:, BIN_WEIGHT] - buckets[:, BIN_CLICKS]
    sums = VariantSums(weight, clicks, float(total[BIN_LOSS]), float(total[BIN_PREDICTED]), *outcomes)
    return Reliability(
        **figures_of(sums),
        ece=ratio(gap.sum(), weight),
        by_chance=ratio(noise.sum(), weight),
        bins=tuple(_bin(each) for each in bins),
    )


def _bin(sums: Floats) -> ReliabilityBin:
    weight = float(sums[BIN_WEIGHT])
    rate = min(float(sums[BIN_CLICKS]) / weight, 1.0)
    low, high = wilson(rate, weight * weight / float(sums[BIN_SQUARED_WEIGHT]))
    predicted = float(sums[BIN_PREDICTED]) / weight
    return ReliabilityBin(
        rows=int(sums[BIN_ROWS]), weight=weight, predicted=predicted, click_rate=rate, low=low, high=high
    )
