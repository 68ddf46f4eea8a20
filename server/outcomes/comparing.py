"""Two variants' click rates against one another, how much more traffic would tell, and whether it fell as it should.

Formulas only; what is compared with what, and how it looks, is elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from server.outcomes.ratios import NORMAL, Z_95, Interval, Ratio

POWER = 0.8
Z_POWER = NORMAL.inv_cdf(POWER)


@dataclass(frozen=True)
class Difference:
    """A variant's click rate less the base's. p: two-sided, of no difference at all.

    relative: of the base's rate; its interval is exp of that of the logarithm of the two rates' ratio.
    """

    absolute: float
    absolute_interval: Interval
    relative: float
    relative_interval: Interval
    p: float


def difference(own: Ratio | None, base: Ratio | None) -> Difference | None:
    """Of independent requests; None where either is not known well enough.

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


def requests_needed(own: Ratio | None, base: Ratio | None, effect: float) -> int | None:
    """How many requests of the two together show a relative change by `effect`, with 80 % power at the 5 % level.

    (z.975 + z.8)² (v / f + v0 / (1 - f)) / (effect R0)², with v the variance of one request's share in R and f the part
    of the requests that the variant gets now.
    """
    if own is None or base is None or own.variance is None or base.variance is None or base.value <= 0.0:
        return None
    both = own.clusters + base.clusters
    spread = both * (own.variance + base.variance)  # v = clusters x Var R, and f = clusters / both
    return math.ceil((Z_95 + Z_POWER) ** 2 * spread / (effect * base.value) ** 2)


def detectable(own: Ratio | None, base: Ratio | None) -> float | None:
    """The relative change that the requests there are would show, with 80 % power at the 5 % level."""
    if own is None or base is None or own.variance is None or base.variance is None or base.value <= 0.0:
        return None
    return (Z_95 + Z_POWER) * math.sqrt(own.variance + base.variance) / base.value


def mismatch_p(counts: Sequence[int], shares: Sequence[float]) -> float | None:
    """How likely requests fall so far from these shares by chance: Pearson's chi-square test; None of one variant.

    counts: of the variants with a share above 0; shares: these, in any unit.
    """
    total, whole = sum(counts), sum(shares)
    if len(counts) < 2 or not total or not whole:
        return None
    expected = [total * share / whole for share in shares]
    statistic = sum((count - e) ** 2 / e for count, e in zip(counts, expected, strict=True))
    return chi_square_tail(statistic, len(counts) - 1)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X > statistic) of a chi-square variable: the finite series (Abramowitz and Stegun, 26.4.4 and 26.4.5)."""
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
