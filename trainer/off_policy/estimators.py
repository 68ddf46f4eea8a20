"""IPS, clipped IPS and SNIPS with their 95 % intervals: from weights and rewards to estimates and their reliability.

With weights w = pi(a|x) / p(a|x), rewards r, importance m, over all rows:
    IPS  = sum(m w r) / sum(m)           clipped: with min(w, limit) for w
    SNIPS = sum(m w r) / sum(m w)        (Swaminathan and Joachims, NeurIPS 2015)
All are ratios of sums over clusters, the rows of a cookie, or of a request without one, so one formula gives their
variance: with the residual e = numerator - estimate * denominator of each of C clusters, C / (C - 1) * sum(e^2) / (sum
of denominators)^2 (the delta method). Optional bootstrap intervals are percentiles (Efron 1979) over clusters drawn
with replacement, the same draws for all policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.learn.metrics.figures import NORMAL_95

Array = npt.NDArray[Any]

SHOWN, REWARD, WEIGHT, WEIGHTED, CLIPPED = range(5)
"""Columns of the sums of a cluster."""
OUTER = (2.5, 97.5)
FEWEST_ROWS = 100
FEWEST_CLICKS = 10
MOST_UNLOGGED = 0.01
MOST_CLIPPED = 0.01
_DEVIATIONS = 4.0
_CLOSE = 1e-6
RATIOS = {"ips": (WEIGHTED, SHOWN), "clipped": (CLIPPED, SHOWN), "snips": (WEIGHTED, WEIGHT)}


@dataclass(frozen=True)
class Estimate:
    """A click rate and its 95 % intervals, clipped to 0 and 1: normal, and bootstrapped if requested.

    None where the denominator is 0; the intervals also where there are no clicks or fewer than two clusters.
    """

    value: float | None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None


@dataclass(frozen=True)
class Support:
    """How much of the log is evidence about a policy.

    matched: share of rows with a weight above 0; ess: effective sample size (sum w)^2 / sum w^2, in rows; mean: mean
    weight, expected to be 1 if propensities and candidates are right, and error its standard error; largest: largest
    weight; clipped: share of rows with a weight above the limit; clicks: effective number, (sum w r)^2 / sum (w r)^2.
    """

    rows: int
    matched: float
    ess: float
    mean: float
    error: float | None
    largest: float
    clipped: float
    clicks: float


def sums_by_cluster(cluster: Array, weight: Array, reward: Array, importance: Array, limit: float) -> Array:
    """float64[clusters, 5]: the sums whose ratios are the estimates. The arguments are over rows."""
    columns = (
        importance,
        importance * reward,
        importance * weight,
        importance * weight * reward,
        importance * np.minimum(weight, limit) * reward,
    )
    return np.column_stack([np.bincount(cluster, each) for each in columns])


def ratio(numerator: Array, denominator: Array) -> Estimate:
    """The ratio of two sums over clusters, with its normal interval."""
    total = float(denominator.sum())
    if total <= 0.0:
        return Estimate(None)
    value = float(numerator.sum()) / total
    if value == 0.0:  # without clicks there is no variance to estimate
        return Estimate(value)
    error = error_of(residuals(numerator, denominator))
    if error is None:
        return Estimate(value)
    return Estimate(value, error, max(0.0, value - NORMAL_95 * error), min(1.0, value + NORMAL_95 * error))


def residuals(numerator: Array, denominator: Array) -> Array:
    """Each cluster's effect on the ratio, to first order: float64[clusters]."""
    total = float(denominator.sum())
    return np.asarray((numerator - numerator.sum() / total * denominator) / total)


def error_of(effects: Array) -> float | None:
    """The standard error of a sum of independent effects; None for fewer than two."""
    clusters = effects.size
    if clusters < 2:
        return None
    return float(np.sqrt(clusters / (clusters - 1) * (effects**2).sum()))


def support_of(weight: Array, reward: Array, importance: Array, sums: Array, limit: float) -> Support:
    """The support of a policy; sums: from `sums_by_cluster`."""
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


def support_warnings(support: Support, unlogged: float, limit: float) -> tuple[str, ...]:
    """Reasons not to trust a policy's estimates."""
    found = []
    if support.ess < FEWEST_ROWS:
        found.append(
            f"its effective sample is {support.ess:.0f} rows; under {FEWEST_ROWS} its intervals are too narrow"
        )
    if support.clicks < FEWEST_CLICKS:
        found.append(
            f"its estimate rests on {support.clicks:.1f} effective clicks; under {FEWEST_CLICKS} its intervals are "
            "rough"
        )
    if unlogged > MOST_UNLOGGED:
        found.append(
            f"{unlogged:.1%} of the items it shows are never shown in the log, so their clicks are unknown; "
            "IPS counts them as never clicked, SNIPS as clicked like the rest"
        )
    expected = 1.0 - unlogged
    if abs(support.mean - expected) > _DEVIATIONS * (support.error or 0.0) + _CLOSE:
        found.append(
            f"its mean weight is {support.mean:.3f} ± {support.error or 0.0:.3f} and should be {expected:.3g}: "
            "propensities or candidates are not those of the log"
        )
    if support.clipped > MOST_CLIPPED:
        found.append(
            f"{support.clipped:.1%} of its weights are above {limit:.0f}: the clipped estimate is biased"
        )
    return tuple(found)


def resampled(
    sums: Array, draws: int, seed: int, on_progress: Callable[[int], None] = lambda done: None
) -> Array:
    """Column totals over each bootstrap draw of clusters: float64[draws, columns]; sums: float64[clusters, columns]."""
    random = np.random.Generator(np.random.Philox(seed))
    clusters = len(sums)
    totals = np.empty((draws, sums.shape[1]))
    for draw in range(draws):
        times = np.bincount(random.integers(0, clusters, clusters), minlength=clusters)
        totals[draw] = times @ sums
        on_progress(draw + 1)
    return totals


def interval(numerators: Array, denominators: Array) -> tuple[float, float] | None:
    """The middle 95 % of the ratios, without draws whose denominator is 0; None if there are no others."""
    defined = denominators > 0.0
    if not defined.any():
        return None
    low, high = np.percentile(numerators[defined] / denominators[defined], OUTER)
    return float(low), float(high)
