"""The figures of `ftrie experiment report`: from the store's online sums to rates, intervals, differences and tests.

The requests of a time are the sample: rows of one request are dependent, so intervals of ratios are the delta method's
over clusters (Deng, Knoblich, Lu: Applying the Delta Method in Metric Analytics, KDD 2018, section 3; Cochran 1977,
section 6.3), which needs only sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from model_store.versions.online_metrics import CTR_UNIT, SQUARE_UNIT, Cell, OnlineSums

MISMATCH_P = 0.001
"""Warn below this: one false warning in a thousand reports, as is usual (Fabijan et al., KDD 2019)."""
NORMAL = NormalDist()
Z_95 = NORMAL.inv_cdf(0.975)
POWER = 0.8
Z_POWER = NORMAL.inv_cdf(POWER)
TINY = 10
"""With fewer clicks, or shown items without one, a normal interval would be wrong."""


@dataclass(frozen=True)
class Outcome:
    """The figures of one variant, or of all.

    ctr, calibration: None if undefined; difference, lift, needed, detectable: None for the base, for all, and if either
    has too few clicks. needed: requests of the variant and the base together. versions: those that answered, ascending.
    """

    sums: OnlineSums
    ctr: float | None
    ctr_interval: Interval | None
    calibration: float | None
    calibration_interval: Interval | None
    versions: tuple[int, ...]
    difference: Difference | None = None
    lift: Lift | None = None
    needed: int | None = None
    detectable: float | None = None


@dataclass(frozen=True)
class Outcomes:
    """The figures of one model and time. mismatch_p: p-value of the requests given the shares, None if not tested."""

    base: str | None
    variants: Mapping[str, Outcome]
    all: Outcome
    minutes: int
    mismatch_p: float | None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_mismatched(self) -> bool:
        """Whether the requests do not match the shares."""
        return self.mismatch_p is not None and self.mismatch_p < MISMATCH_P


def outcomes(
    cells: Iterable[tuple[Cell, OnlineSums]],
    shares: Mapping[str, float],
    base: str | None,
    effect: float,
) -> Outcomes:
    """Compute the figures. shares: the variants' shares of the traffic, empty for no test.

    base: None for the first variant of the shares with requests, or else the variant with most requests.
    """
    sums: dict[str, OnlineSums] = {}
    versions: dict[str, set[int]] = {}
    minutes = set()
    for (minute, version, variant), each in cells:
        sums[variant] = sums.get(variant, OnlineSums()) + each
        versions.setdefault(variant, set()).add(version)
        minutes.add(minute)
    base = base if base is not None else _base(sums, shares)
    rank = {name: number for number, name in enumerate(shares)}
    ordered = sorted(sums, key=lambda name: (name != base, rank.get(name, len(rank)), name))
    against = sums.get(base, OnlineSums()) if base is not None else OnlineSums()
    return Outcomes(
        base=base,
        variants={
            name: _outcome(sums[name], versions[name], None if name == base else against, effect)
            for name in ordered
        },
        all=_outcome(sum(sums.values(), OnlineSums()), set().union(*versions.values()), None, effect),
        minutes=len(minutes),
        mismatch_p=_mismatch(sums, shares),
        shares=shares,
    )


def _base(sums: Mapping[str, OnlineSums], shares: Mapping[str, float]) -> str | None:
    first = next((name for name in shares if name in sums), None)
    return first or max(sums, key=lambda name: sums[name].requests, default=None)


def _outcome(sums: OnlineSums, versions: set[int], base: OnlineSums | None, effect: float) -> Outcome:
    rate, calibrated = click_rate(sums), calibration(sums)
    against = _comparable(base) if base is not None else None
    own = _comparable(sums)
    return Outcome(
        sums=sums,
        ctr=rate.value if rate else None,
        ctr_interval=click_rate_interval(sums),
        calibration=calibrated.value if calibrated else None,
        calibration_interval=calibrated.logarithmic()
        if calibrated and not _is_tiny(sums.positives, sums.shown)
        else None,
        versions=tuple(sorted(versions)),
        difference=difference(own, against),
        lift=lift(own, against, effect),
        needed=requests_needed(own, against, effect),
        detectable=detectable(own, against),
    )


def _comparable(sums: OnlineSums) -> Ratio | None:
    return None if is_tiny(sums) else click_rate(sums)


def _mismatch(sums: Mapping[str, OnlineSums], shares: Mapping[str, float]) -> float | None:
    judged = {name: share for name, share in shares.items() if share > 0.0}
    counts = [sums.get(name, OnlineSums()).requests for name in judged]
    return mismatch_p(counts, list(judged.values()))


@dataclass(frozen=True)
class Interval:
    """A 95 % interval. high may be infinite."""

    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """R = sum of y / sum of x over n clusters; variance: that of R, None if unknown."""

    value: float
    variance: float | None
    clusters: int

    @classmethod
    def of(cls, clusters: int, x: float, y: float, xx: float, yy: float, xy: float) -> Ratio | None:
        """From the sums over clusters of x, y, x², y², x y; None if the sum of x is 0.

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
        """R exp(± 1.96 errors of ln R), for a positive ratio that is compared with 1."""
        if self.error is None or self.value <= 0.0:
            return None
        factor = math.exp(Z_95 * self.error / self.value)
        return Interval(self.value / factor, self.value * factor)


def click_rate(sums: OnlineSums) -> Ratio | None:
    """Clicks per item shown; None if nothing was shown."""
    squares = (sums.shown_squared, sums.clicks_squared, sums.shown_clicks)
    return Ratio.of(sums.requests, sums.shown, sums.clicks, *squares)


def click_rate_interval(sums: OnlineSums) -> Interval | None:
    """The click rate's interval: the delta method's, or Wilson's if `is_tiny`."""
    rate = click_rate(sums)
    if rate is None:
        return None
    if is_tiny(sums):
        return wilson(sums.clicks, sums.shown)
    return rate.normal()


def is_tiny(sums: OnlineSums) -> bool:
    """Whether there are too few clicks, or shown items without one, for a normal interval."""
    return _is_tiny(sums.clicks, sums.shown)


def _is_tiny(clicks: int, shown: int) -> bool:
    return min(clicks, shown - clicks) < TINY


def calibration(sums: OnlineSums) -> Ratio | None:
    """Predicted positives per positive; None without positives, or if some items have no ctr."""
    if sums.without_ctr:
        return None
    c, cc, cp = sums.ctr_nano * CTR_UNIT, sums.ctr_squared * SQUARE_UNIT, sums.ctr_clicks * SQUARE_UNIT
    return Ratio.of(sums.requests, sums.positives, c, sums.positives_squared, cc, cp)


def wilson(successes: float, trials: float) -> Interval:
    """The score interval of a share of independent trials (Wilson 1927), valid for any number of trials."""
    share, z = successes / trials, Z_95 * Z_95 / trials
    middle = (share + z / 2.0) / (1.0 + z)
    half = math.sqrt(share * (1.0 - share) * z + z * z / 4.0) / (1.0 + z)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True)
class Difference:
    """A variant's click rate minus the base's. p: two-sided, of the hypothesis of no difference.

    relative: to the base's rate; its interval is exp of that of the logarithm of the two rates' ratio.
    """

    absolute: float
    absolute_interval: Interval
    relative: float
    relative_interval: Interval
    p: float


def difference(own: Ratio | None, base: Ratio | None) -> Difference | None:
    """The difference of two rates of independent requests; None if either is not known well enough.

    The variance of the difference is the sum of both; that of ln (R / R0) is Var R / R² + Var R0 / R0².
    """
    if own is None or base is None or own.variance is None or base.variance is None:
        return None
    if own.value <= 0.0 or base.value <= 0.0 or own.variance + base.variance <= 0.0:
        return None
    absolute = own.value - base.value
    half = Z_95 * math.sqrt(own.variance + base.variance)
    ratio = own.value / base.value
    factor = math.exp(Z_95 * math.sqrt(own.variance / own.value**2 + base.variance / base.value**2))
    return Difference(
        absolute=absolute,
        absolute_interval=Interval(absolute - half, absolute + half),
        relative=ratio - 1.0,
        relative_interval=Interval(ratio / factor - 1.0, ratio * factor - 1.0),
        p=2.0 * NORMAL.cdf(-abs(absolute) * Z_95 / half),
    )


@dataclass(frozen=True)
class Lift:
    """A variant's click rate relative to the base's, minus 1, however often and whenever one looks.

    interval: contains the true lift at all times at once with 95 % probability; p: the smallest level whose interval
    excludes 0 now.
    """

    relative: float
    interval: Interval
    p: float


def lift(own: Ratio | None, base: Ratio | None, effect: float) -> Lift | None:
    """The lift by the mixture sequential test; None if either rate is not known well enough.

    effect: the relative change for which the interval is tightest; any is valid. With θ = ln (R / R0) of variance V and
    a normal mixture of variance τ² = ln(1 + effect)² over the alternatives, the likelihood ratio is √(V / (V + τ²))
    exp(θ² τ² / (2 V (V + τ²))), a martingale as the sample grows. By Ville's inequality the probability that it ever
    exceeds 1 / α is at most α (Robbins 1970; Johari, Koomen, Pekelis and Walsh, KDD 2017, section 5).
    """
    found = difference(own, base)
    if found is None or own is None or base is None:
        return None
    assert own.variance is not None and base.variance is not None  # there is a difference
    variance = own.variance / own.value**2 + base.variance / base.value**2
    theta, spread = math.log(own.value / base.value), math.log1p(effect) ** 2
    whole = variance + spread
    half = math.sqrt(variance * whole / spread * (2.0 * math.log(1.0 / 0.05) + math.log(whole / variance)))
    likelihood = 0.5 * math.log(variance / whole) + theta**2 * spread / (2.0 * variance * whole)
    return Lift(
        relative=found.relative,
        interval=Interval(math.expm1(theta - half), _expm1(theta + half)),
        p=min(1.0, math.exp(-likelihood)) if likelihood > -700.0 else 1.0,
    )


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 700.0 else math.inf


def chances_best(rates: Mapping[str, Ratio | None]) -> dict[str, float]:
    """The probability of each variant that its click rate is the highest; {} for fewer than two known rates.

    The rates are taken as independent and normal around what was observed, which is the posterior of a flat prior. Of
    variant i it is ∫ φ(z) Π_j Φ((R_i + s_i z − R_j) / s_j) dz, s the standard errors, by the trapezoidal rule.
    """
    known = {
        name: (rate.value, rate.error)
        for name, rate in rates.items()
        if rate is not None and rate.error is not None and rate.error > 0.0
    }
    if len(known) < 2:
        return {}
    steps = [8.0 * k / 200.0 for k in range(-200, 201)]
    chances = {}
    for name, (value, error) in known.items():
        others = [each for other, each in known.items() if other != name]
        chances[name] = sum(
            NORMAL.pdf(z)
            * math.prod(NORMAL.cdf((value + error * z - rate) / spread) for rate, spread in others)
            for z in steps
        )
    total = sum(chances.values())
    return {name: chance / total for name, chance in chances.items()}


def requests_needed(own: Ratio | None, base: Ratio | None, effect: float) -> int | None:
    """Requests of both together that detect a relative change by `effect`, with 80 % power at the 5 % level.

    (z.975 + z.8)² (v / f + v0 / (1 - f)) / (effect R0)², where v is the variance of one request's share in R and f
    the variant's current share of the requests.
    """
    if own is None or base is None or own.variance is None or base.variance is None or base.value <= 0.0:
        return None
    both = own.clusters + base.clusters
    spread = both * (own.variance + base.variance)  # v = clusters x Var R, and f = clusters / both
    return math.ceil((Z_95 + Z_POWER) ** 2 * spread / (effect * base.value) ** 2)


def detectable(own: Ratio | None, base: Ratio | None) -> float | None:
    """The relative change that the current requests detect, with 80 % power at the 5 % level."""
    if own is None or base is None or own.variance is None or base.variance is None or base.value <= 0.0:
        return None
    return (Z_95 + Z_POWER) * math.sqrt(own.variance + base.variance) / base.value


def mismatch_p(counts: Sequence[int], shares: Sequence[float]) -> float | None:
    """The p-value of Pearson's chi-square test of requests against shares; None for fewer than two variants.

    counts, shares: of the variants with a share above 0; shares in any unit.
    """
    total, whole = sum(counts), sum(shares)
    if len(counts) < 2 or not total or not whole:
        return None
    expected = [total * share / whole for share in shares]
    statistic = sum((count - e) ** 2 / e for count, e in zip(counts, expected, strict=True))
    return chi_square_tail(statistic, len(counts) - 1)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X > statistic) of a chi-square variable, by the finite series (Abramowitz and Stegun, 26.4.4 and 26.4.5)."""
    half = statistic / 2.0
    if freedom % 2 == 0:
        term, total = math.exp(-half), 0.0
        for k in range(freedom // 2):
            total += term
            term *= half / (k + 1)
        return min(1.0, total)
    total = math.erfc(math.sqrt(half))
    term = math.exp(-half) * math.sqrt(half) * 2.0 / math.sqrt(math.pi)
    for k in range(freedom // 2):
        total += term
        term *= half / (k + 1.5)
    return min(1.0, total)
