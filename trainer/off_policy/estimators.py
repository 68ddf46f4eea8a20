"""IPS, clipped IPS and SNIPS with their 95 % intervals: from weights and rewards to estimates. Knows no log or model.

With weights w = pi(a|x) / p(a|x), rewards r, importance m, over all rows:
    IPS  = sum(m w r) / sum(m)           clipped: with min(w, limit) for w
    SNIPS = sum(m w r) / sum(m w)        (Swaminathan and Joachims, NeurIPS 2015)
All are ratios of sums over requests, so one formula has their variance: with the residual e = numerator - estimate *
denominator of each of C requests, C / (C - 1) * sum(e^2) / (sum of denominators)^2 (the delta method).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Z = 1.959963984540054
"""A standard normal number lies within ± Z with a chance of 95 %."""

SHOWN, REWARD, WEIGHT, WEIGHTED, CLIPPED = range(5)
"""Columns of the sums of a request."""
RATIOS = {"ips": (WEIGHTED, SHOWN), "clipped": (CLIPPED, SHOWN), "snips": (WEIGHTED, WEIGHT)}


@dataclass(frozen=True)
class Estimate:
    """A click rate and its 95 % intervals, cut off at 0 and 1: normal, and of bootstrapped requests where asked for.

    None where there is nothing to divide by; the intervals also where there is not one click, or but one request.
    """

    value: float | None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None


@dataclass(frozen=True)
class Support:
    """How much of the log speaks about a policy.

    rows; matched: share of them with a weight above 0; ess: effective sample size (sum w)^2 / sum w^2, in rows; mean:
    mean weight, 1 on average if propensities and candidates are right, and error its standard error; largest weight;
    clipped: share of rows whose weight is over the limit; clicks: the effective number of them, (sum w r)^2 /
    sum (w r)^2.
    """

    rows: int
    matched: float
    ess: float
    mean: float
    error: float | None
    largest: float
    clipped: float
    clicks: float


def sums_by_request(
    request: Array, requests: int, weight: Array, reward: Array, importance: Array, limit: float
) -> Array:
    """float64[requests, 5]: the sums that all estimates are ratios of. All else over rows."""
    columns = (
        importance,
        importance * reward,
        importance * weight,
        importance * weight * reward,
        importance * np.minimum(weight, limit) * reward,
    )
    return np.column_stack([np.bincount(request, each, requests) for each in columns])


def ratio(numerator: Array, denominator: Array) -> Estimate:
    """The ratio of two sums over requests, with its normal interval."""
    total = float(denominator.sum())
    if total <= 0.0:
        return Estimate(None)
    value = float(numerator.sum()) / total
    if value == 0.0:  # not one click: there is nothing to tell a spread from
        return Estimate(value)
    error = error_of(residuals(numerator, denominator))
    if error is None:
        return Estimate(value)
    return Estimate(value, error, max(0.0, value - Z * error), min(1.0, value + Z * error))


def residuals(numerator: Array, denominator: Array) -> Array:
    """What each request moves the ratio by, to first order: float64[requests]."""
    total = float(denominator.sum())
    return np.asarray((numerator - numerator.sum() / total * denominator) / total)


def error_of(moves: Array) -> float | None:
    """The standard error of the sum of independent moves, None for fewer than two."""
    requests = moves.size
    if requests < 2:
        return None
    return float(np.sqrt(requests / (requests - 1) * (moves**2).sum()))


def support_of(weight: Array, reward: Array, importance: Array, sums: Array, limit: float) -> Support:
    """See Support. sums: of the requests."""
    mean = ratio(sums[:, WEIGHT], sums[:, SHOWN])
    return Support(
        rows=int(weight.size),
        matched=float((weight > 0.0).mean()),
        ess=_effective(weight),
        mean=mean.value or 0.0,
        error=mean.error,
        largest=float(weight.max()),
        clipped=float((weight > limit).mean()),
        clicks=_effective(weight * reward),
    )


def _effective(weight: Array) -> float:
    """How many equal weights have the same spread (Kish 1965)."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


# --- Intervals by the bootstrap: requests are drawn with replacement, and every estimate is made anew from
# each draw ---
#
# All estimates of all policies are made from the same draws. Percentiles (Efron 1979); the seed makes them
# repeatable.


OUTER = (2.5, 97.5)


def resampled(
    sums: Array, draws: int, seed: int, on_progress: Callable[[int], None] = lambda done: None
) -> Array:
    """The columns' totals over each draw of requests: float64[draws, columns] from float64[requests, columns]."""
    random = np.random.Generator(np.random.Philox(seed))
    requests = len(sums)
    totals = np.empty((draws, sums.shape[1]))
    for draw in range(draws):
        times = np.bincount(random.integers(0, requests, requests), minlength=requests)
        totals[draw] = times @ sums
        on_progress(draw + 1)
    return totals


def interval(numerators: Array, denominators: Array) -> tuple[float, float] | None:
    """The middle 95 % of the ratios; draws with nothing to divide by are passed over. None if all are."""
    there = denominators > 0.0
    if not there.any():
        return None
    low, high = np.percentile(numerators[there] / denominators[there], OUTER)
    return float(low), float(high)
