"""From the sums of a group of rows to its figures: log-loss, AUC, calibration, paired differences, reliability."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

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
from trainer.learn.metrics.records import Bin, Difference, GroupMetrics, VariantMetrics
from trainer.learn.predictions_kernels import logarithms, probabilities

NORMAL_95 = 1.959963984540054
RELIABILITY_BINS = 20

Floats = npt.NDArray[np.float64]


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
class Group:
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

    def __add__(self, other: Group) -> Group:
        """The sums of both groups' rows."""
        return Group(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    def __sub__(self, earlier: Group) -> Group:
        """The sums of the rows after `earlier`.

        Differences of weights have rounding errors where no row was added; the numbers of rows are exact.
        """
        sums = {each.name: getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)}
        if sums["clicked"] == 0.0:
            sums |= {"clicks": 0.0, "positives": np.zeros_like(self.positives)}
        elif sums["clicked"] == sums["rows"]:
            sums |= {"clicks": sums["weight"], "negatives": np.zeros_like(self.negatives)}
        return Group(**sums)

    def metrics(self, variants: Sequence[str]) -> GroupMetrics:
        """All figures of the group; `variants` are names, the base first."""
        aucs = [auc(p, n) for p, n in zip(self.positives, self.negatives, strict=True)]
        return GroupMetrics(
            rows=round(self.rows),
            weight=self.weight,
            clicks=self.clicks,
            click_rate=_ratio(self.clicks, self.weight),
            variants={name: self._variant(index, aucs) for index, name in enumerate(variants)},
        )

    def logloss(self, variant: int = 0) -> float | None:
        """Mean log-loss of the variant with this index."""
        return _ratio(float(self.loss[variant]), self.weight)

    def _variant(self, index: int, aucs: Sequence[float | None]) -> VariantMetrics:
        logloss = self.logloss(index)
        predicted = float(self.predicted[index])
        return VariantMetrics(
            logloss=logloss,
            auc=aucs[index],
            calibration=_ratio(predicted, self.clicks),
            normalized_entropy=_ratio(logloss, entropy(_ratio(self.clicks, self.weight))),
            mean_prediction=_ratio(predicted, self.weight),
            difference=self._difference(index, aucs) if index else None,
        )

    def _difference(self, index: int, aucs: Sequence[float | None]) -> Difference:
        mean = _ratio(float(self.loss[index] - self.loss[0]), self.weight)
        half = None if mean is None else self._half_interval(index, mean)
        return Difference(
            logloss=mean,
            low=None if mean is None or half is None else mean - half,
            high=None if mean is None or half is None else mean + half,
            auc_loss_percent=_percent(aucs[index], aucs[0]),
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


def auc(positives: Floats, negatives: Floats) -> float | None:
    """The area under the ROC curve from histograms of scores, ties (a common bucket) counted half."""
    pairs = float(positives.sum()) * float(negatives.sum())
    if pairs <= 0.0:
        return None
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + 0.5 * negatives)).sum()) / pairs


def entropy(rate: float | None) -> float | None:
    """The entropy of a click rate in nats; None for rates of 0 or 1."""
    if rate is None or not 0.0 < rate < 1.0:
        return None
    # Our own logarithm: artefacts contain this figure, and must have the same bytes on every machine.
    log_rate, log_rest = _computed(logarithms, np.array([rate, 1.0 - rate]))
    return -float(rate * log_rate + (1.0 - rate) * log_rest)


def reliability(positives: Floats, negatives: Floats) -> list[Bin]:
    """Up to 20 bins of equal weight by prediction, each with its weight, sum of p and clicks.

    A row's p is taken at the middle of its score's bucket: within a factor exp(half a bucket) of its own, 0.2 % with
    the 8192 buckets of all rows.
    """
    weight = positives + negatives
    total = float(weight.sum())
    if total <= 0.0:
        return []
    bucket = 2.0 * SCORE_RANGE / weight.size
    middles: npt.NDArray[Any] = (np.arange(weight.size) + 0.5) * bucket - SCORE_RANGE
    predicted = weight * _computed(probabilities, middles)
    before = np.cumsum(weight) - weight
    bins = np.minimum((before + 0.5 * weight) / total * RELIABILITY_BINS, RELIABILITY_BINS - 1).astype(int)
    columns = [np.bincount(bins, each, RELIABILITY_BINS) for each in (weight, predicted, positives)]
    return [Bin(weight=w, predicted=p, clicks=y) for w, p, y in zip(*columns, strict=True) if w > 0.0]


def _computed(kernel: Callable[[Any, Any], None], numbers: Floats) -> Floats:
    out = np.empty(numbers.size)
    kernel(numbers, out)
    return out


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _percent(own: float | None, base: float | None) -> float | None:
    if own is None or base is None or base >= 1.0:
        return None
    return 100.0 * ((1.0 - own) / (1.0 - base) - 1.0)
