"""Sums of groups of rows: what `metrics_kernels` adds up, the figures of a group, and bins for reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from trainer.learn.metrics.figures import NORMAL_95, Floats, VariantSums, computed, figures_of, ratio
from trainer.learn.metrics.metrics_kernels import (
    CLICKED,
    CLICKS,
    CLUSTERS,
    COUNTS,
    LOSS,
    OPEN,
    OPEN_WEIGHT,
    PREDICTED,
    PRODUCTS,
    ROWS,
    SCORE_RANGE,
    SQUARED_WEIGHT,
    SQUARES,
    SUMS,
    WEIGHT,
    Tally,
)
from trainer.learn.metrics.records import Bin, DifferenceFromBase, GroupMetrics, VariantMetrics
from trainer.learn.predictions_kernels import probabilities

RELIABILITY_BINS = 20


def new_tally(groups: int, variants: int, buckets: int) -> Tally:
    """The sums of `groups` groups, all 0; `buckets` divide the scores from -16 to 16."""
    return Tally(
        counts=np.zeros((groups, COUNTS)),
        sums=np.zeros((groups, SUMS, variants)),
        positives=np.zeros((groups, variants, buckets)),
        negatives=np.zeros((groups, variants, buckets)),
        requests=np.zeros(groups, np.uint64),
    )


@dataclass(frozen=True)
class GroupSums:
    """A copy of the sums of one group of rows; a later copy minus an earlier one has the sums of the rows between.

    squares, products, squared_weight are over clusters, as in `Tally`. loss, predicted, squares, products:
    float64[variants]; positives, negatives: float64[variants, buckets].
    """

    rows: float
    clicked: float
    weight: float
    clicks: float
    clusters: float
    squared_weight: float
    loss: Floats
    predicted: Floats
    squares: Floats
    products: Floats
    positives: Floats
    negatives: Floats

    @classmethod
    def of(cls, tally: Tally, group: int = 0) -> Self:
        """Copy a group's sums, its open cluster included."""
        counts, sums = tally.counts[group], tally.sums[group]
        pending, weight = sums[OPEN], counts[OPEN_WEIGHT]
        return cls(
            rows=float(counts[ROWS]),
            clicked=float(counts[CLICKED]),
            weight=float(counts[WEIGHT]),
            clicks=float(counts[CLICKS]),
            clusters=float(counts[CLUSTERS]),
            squared_weight=float(counts[SQUARED_WEIGHT] + weight * weight),
            loss=sums[LOSS].copy(),
            predicted=sums[PREDICTED].copy(),
            squares=sums[SQUARES] + pending * pending,
            products=sums[PRODUCTS] + pending * weight,
            positives=tally.positives[group].copy(),
            negatives=tally.negatives[group].copy(),
        )

    def __add__(self, other: GroupSums) -> GroupSums:
        """The sums of both groups' rows."""
        return GroupSums(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    def __sub__(self, earlier: GroupSums) -> GroupSums:
        """The sums of the rows after `earlier`.

        Differences of weights have rounding errors where no row was added; the numbers of rows are exact.
        """
        sums = {each.name: getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)}
        if sums["clicked"] == 0.0:
            sums |= {"clicks": 0.0, "positives": np.zeros_like(self.positives)}
        elif sums["clicked"] == sums["rows"]:
            sums |= {"clicks": sums["weight"], "negatives": np.zeros_like(self.negatives)}
        return GroupSums(**sums)

    def metrics(self, variants: Sequence[str]) -> GroupMetrics:
        """All figures of the group; `variants` are names, the base first."""
        figures = [figures_of(self._variant(index)) for index in range(len(variants))]
        differences = [self._difference(index, figures) if index else None for index in range(len(variants))]
        made = zip(variants, figures, differences, strict=True)
        return GroupMetrics(
            rows=round(self.rows),
            weight=self.weight,
            clicks=self.clicks,
            click_rate=ratio(self.clicks, self.weight),
            variants={name: VariantMetrics(**own, difference=each) for name, own, each in made},
        )

    def _variant(self, index: int) -> VariantSums:
        sums = float(self.loss[index]), float(self.predicted[index])
        return VariantSums(self.weight, self.clicks, *sums, self.positives[index], self.negatives[index])

    def _difference(self, index: int, figures: Sequence[dict[str, float | None]]) -> DifferenceFromBase:
        mean = ratio(float(self.loss[index] - self.loss[0]), self.weight)
        half = None if mean is None else self._half_interval(index, mean)
        return DifferenceFromBase(
            logloss=mean,
            low=None if mean is None or half is None else mean - half,
            high=None if mean is None or half is None else mean + half,
            auc_loss_percent=_percent(figures[index]["auc"], figures[0]["auc"]),
        )

    def _half_interval(self, index: int, mean: float) -> float | None:
        """Half the 95 % interval of a ratio of sums over clusters, linearised (Cochran 1977, section 6.3).

        The residual of cluster c is D_c - mean W_c; its expanded square needs only sums that do not depend on the mean.
        """
        if self.clusters < 2:
            return None
        squares = self.squares[index] - 2.0 * mean * self.products[index] + mean * mean * self.squared_weight
        variance = max(float(squares), 0.0) * self.clusters / (self.clusters - 1.0)
        return NORMAL_95 * math.sqrt(variance) / self.weight


def equal_weights(weight: Floats, count: int) -> npt.NDArray[np.int64]:
    """The number of each bucket's bin, of `count` bins of about equal weight: int64[buckets]."""
    before = np.cumsum(weight) - weight
    bins = np.minimum((before + 0.5 * weight) / weight.sum() * count, count - 1)
    return np.asarray(bins, np.int64)


def reliability(positives: Floats, negatives: Floats) -> list[Bin]:
    """Up to 20 bins of equal weight by prediction, each with its weight, sum of p and clicks.

    A row's p is taken at the middle of its score's bucket: within a factor exp(half a bucket) of its own, 0.2 % with
    the 8192 buckets of all rows.
    """
    weight = positives + negatives
    if float(weight.sum()) <= 0.0:
        return []
    bucket = 2.0 * SCORE_RANGE / weight.size
    middles: npt.NDArray[Any] = (np.arange(weight.size) + 0.5) * bucket - SCORE_RANGE
    predicted = weight * computed(probabilities, middles)
    bins = equal_weights(weight, RELIABILITY_BINS)
    columns = [np.bincount(bins, each, RELIABILITY_BINS) for each in (weight, predicted, positives)]
    return [Bin(weight=w, predicted=p, clicks=y) for w, p, y in zip(*columns, strict=True) if w > 0.0]


def _percent(own: float | None, base: float | None) -> float | None:
    if own is None or base is None or base >= 1.0:
        return None
    return 100.0 * ((1.0 - own) / (1.0 - base) - 1.0)
