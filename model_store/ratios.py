"""Ratios of sums over clusters of dependent observations: their variance, and intervals valid once or at all times.

Rows of a request and requests of a cookie are dependent, so the variance of a ratio comes from sums by cluster, which
are not (Deng, Knoblich, Lu: Applying the Delta Method in Metric Analytics, KDD 2018, section 3; Cochran 1977, section
6.3). A result that is checked repeatedly needs wider bounds: those of a normal mixture (Robbins 1970; Howard, Ramdas,
McAuliffe, Sekhon 2021) in information time, which is 1 / variance (Waudby-Smith et al., asymptotic confidence
sequences, 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NORMAL = NormalDist()
Z_95 = NORMAL.inv_cdf(0.975)
BUCKETS = 64
"""Cookies that are too many to be kept one by one are divided by a hash into this many clusters."""


class Interval(NamedTuple):
    """The ends of an interval. high may be infinite."""

    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """R = sum of y / sum of x over clusters; variance: that of R, None if unknown."""

    value: float
    variance: float | None
    clusters: int

    @classmethod
    def of(cls, y: npt.NDArray[Any], x: npt.NDArray[Any], least: int = 2) -> Ratio | None:
        """y, x: sums by cluster. None if the sum of x is 0; no variance if x is 0 in all but fewer than `least`.

        Var R = n / (n - 1) sum of (y - R x)² / (sum of x)².
        """
        total = float(x.sum())
        if total <= 0.0:
            return None
        ratio, clusters = float(y.sum()) / total, int(np.count_nonzero(x))
        if clusters < least:
            return cls(ratio, None, clusters)
        residuals = y - ratio * x
        return cls(ratio, clusters / (clusters - 1.0) * float(residuals @ residuals) / total**2, clusters)

    @property
    def error(self) -> float | None:
        """The standard error."""
        return None if self.variance is None else math.sqrt(self.variance)

    @property
    def log_variance(self) -> float | None:
        """That of ln R, to first order; None for a ratio that is not known well enough to be compared."""
        return self.variance / self.value**2 if self.variance and self.value > 0.0 else None

    def interval(self) -> Interval | None:
        """95 %, for one look: R ± t errors."""
        if self.error is None:
            return None
        # Student's t and not the normal distribution: the variance is estimated from the same clusters.
        half = t_quantile(0.975, self.clusters - 1) * self.error
        return Interval(self.value - half, self.value + half)

    def logarithmic(self) -> Interval | None:
        """95 %, for one look: R exp(± t errors of ln R), for a positive ratio that is compared with 1."""
        if self.log_variance is None:
            return None
        factor = math.exp(t_quantile(0.975, self.clusters - 1) * math.sqrt(self.log_variance))
        return Interval(self.value / factor, self.value * factor)


def wilson(rate: float, trials: float) -> Interval:
    """The 95 % score interval of a rate over independent trials (Wilson 1927), valid for any number of them."""
    z = Z_95 * Z_95 / trials
    middle = (rate + z / 2.0) / (1.0 + z)
    half = math.sqrt(rate * (1.0 - rate) * z + z * z / 4.0) / (1.0 + z)
    # The interval contains the rate, also where rounding says otherwise.
    return Interval(min(max(0.0, middle - half), rate), max(min(1.0, middle + half), rate))


def always_valid_half(variance: float, level: float, sharpest: float) -> float:
    """Half the interval of a mean that contains the truth at all times at once, but with probability `level`.

    variance: of the mean now. sharpest: the mean for which a normal mixture of this standard deviation is made.
    """
    whole = variance + sharpest**2
    return math.sqrt(
        variance * whole / sharpest**2 * (2.0 * math.log(1.0 / level) + math.log(whole / variance))
    )


def always_valid_p(mean: float, variance: float, sharpest: float) -> float:
    """The smallest level whose `always_valid_half` excludes a mean of 0 now.

    The likelihood ratio of the mixture, √(V / (V + τ²)) exp(θ² τ² / (2 V (V + τ²))), is a martingale as the sample
    grows; by Ville's inequality it ever exceeds 1 / level with at most that probability.
    """
    whole = variance + sharpest**2
    # Its logarithm: the exponential of much evidence overflows.
    likelihood = 0.5 * math.log(variance / whole) + (mean * sharpest) ** 2 / (2.0 * variance * whole)
    return min(1.0, math.exp(-max(likelihood, 0.0)))


def t_quantile(p: float, freedom: int) -> float:
    """The quantile of Student's t, by the expansion in 1/freedom (Abramowitz & Stegun, 26.7.5).

    With 127 degrees of freedom it is exact to 6 digits up to p = 1 - 1e-6; with 7, within 1 % up to p = 0.995.
    """
    z = NORMAL.inv_cdf(p)
    square = z * z
    terms = (
        z * (square + 1.0) / 4.0,
        z * ((5.0 * square + 16.0) * square + 3.0) / 96.0,
        z * (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0,
        z * ((((79.0 * square + 776.0) * square + 1482.0) * square - 1920.0) * square - 945.0) / 92160.0,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
