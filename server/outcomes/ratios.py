"""A ratio of two sums over requests, and its 95 % interval: the click rate, and the calibration.

Rows of one request belong together, so the request is what is drawn: the interval is the delta method's for a ratio of
sums over clusters (Deng, Knoblich, Lu: Applying the Delta Method in Metric Analytics, KDD 2018, section 3; Cochran
1977, section 6.3). Only sums are needed, so nothing here sees a request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from model_store.online_metrics import CTR_UNIT, SQUARE_UNIT, OnlineSums

NORMAL = NormalDist()
Z_95 = NORMAL.inv_cdf(0.975)
TINY = 10
"""Fewer clicks than these, or shows without one, and a normal interval would be wrong."""


@dataclass(frozen=True)
class Interval:
    """A 95 % interval. high may be infinite."""

    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """R = sum of y / sum of x over n clusters; variance: that of R, None where it is not known."""

    value: float
    variance: float | None
    clusters: int

    @classmethod
    def of(cls, clusters: int, x: float, y: float, xx: float, yy: float, xy: float) -> Ratio | None:
        """From the sums over clusters of x, y, x², y², x y; None where sum of x is 0.

        Var R = n / (n - 1) sum of (y - R x)² / (sum of x)²: the residuals' sum is 0, and their squares need only sums.
        """
        if x <= 0.0:
            return None
        ratio = y / x
        if clusters < 2:
            return cls(ratio, None, clusters)
        residuals = max(yy - 2.0 * ratio * xy + ratio * ratio * xx, 0.0)
        return cls(ratio, clusters / (clusters - 1.0) * residuals / (x * x), clusters)

    @property
    def error(self) -> float | None:
        """The standard error."""
        return None if self.variance is None else math.sqrt(self.variance)

    def normal(self) -> Interval | None:
        """R ± 1.96 errors."""
        if self.error is None:
            return None
        return Interval(self.value - Z_95 * self.error, self.value + Z_95 * self.error)

    def logarithmic(self) -> Interval | None:
        """R exp(± 1.96 errors of ln R): for a ratio that is compared with 1, and never below 0."""
        if self.error is None or self.value <= 0.0:
            return None
        factor = math.exp(Z_95 * self.error / self.value)
        return Interval(self.value / factor, self.value * factor)


def click_rate(sums: OnlineSums) -> Ratio | None:
    """Clicks per item shown; None where nothing was shown."""
    squares = (sums.shown_squared, sums.clicks_squared, sums.shown_clicks)
    return Ratio.of(sums.requests, sums.shown, sums.clicks, *squares)


def click_rate_interval(sums: OnlineSums) -> Interval | None:
    """Of the click rate: the delta method's, or Wilson's where clicks or shows without one are fewer than TINY."""
    rate = click_rate(sums)
    if rate is None:
        return None
    if is_tiny(sums):
        return wilson(sums.clicks, sums.shown)
    return rate.normal()


def is_tiny(sums: OnlineSums) -> bool:
    """Whether there are too few clicks, or shows without one, for a normal interval."""
    return min(sums.clicks, sums.shown - sums.clicks) < TINY


def calibration(sums: OnlineSums) -> Ratio | None:
    """Clicks predicted per click; None without a click, and where some items have no ctr."""
    if sums.without_ctr:
        return None
    c, cc, cy = sums.ctr_nano * CTR_UNIT, sums.ctr_squared * SQUARE_UNIT, sums.ctr_clicks * SQUARE_UNIT
    return Ratio.of(sums.requests, sums.clicks, c, sums.clicks_squared, cc, cy)


def wilson(successes: float, trials: float) -> Interval:
    """The score interval of a share (Wilson 1927): right however few there are, with trials taken as independent."""
    share, z = successes / trials, Z_95 * Z_95 / trials
    middle = (share + z / 2.0) / (1.0 + z)
    half = math.sqrt(share * (1.0 - share) * z + z * z / 4.0) / (1.0 + z)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))
