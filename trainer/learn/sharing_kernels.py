"""Several variants that share each key's value (KDD 2013, section 4.4): their sums, and the mean of their steps.

uses: float64[classes, columns], see `Variants`; c: a class of features that the same variants use.

A key's new r in variant v is sqrt(n + x^2 e_v), e_v the square of the error, and its mean over the variants is needed.
One square root for each key and variant is the most costly part of a row. But with the middle of the squares m and
e_v = m + d u_v, |u_v| <= 1, and b = n + x^2 m,

    mean sqrt(n + x^2 e_v) = sqrt(b) sum over k of binomial(1/2, k) (x^2 d / b)^k mean(u_v^k)

where mean(u_v^k) depends on the class alone. Where x^2 d / b <= 1/64, the terms beyond k = 7 are less than 2^-54 of the
sum; elsewhere, for keys that are new in rows where variants differ, the roots are taken. ADR 0015.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners.ftrl import Ftrl
from trainer.learn.learners.operations import mean_step, take_roots
from trainer.learn.learners.rates import ClickCounts, Constant, Gradients, r_of
from trainer.learn.simd_kernels import (
    LANES,
    add_scaled,
    add_scaled_to_32,
    address,
    bounds_of,
    dot_of_roots,
    store_columns,
    store_mean,
    store_mean_roots,
    store_powers,
)

MEANS = LANES
LARGEST_PART = 1.0 / 64.0
_SMALLEST_REACH = 1e-300
"""Below it the squares differ by nothing that counts, and the inverse of a number that is not normal is infinite."""
_BINOMIALS = (1.0, 1.0 / 2, -1.0 / 8, 1.0 / 16, -5.0 / 128, 7.0 / 256, -21.0 / 1024, 33.0 / 2048)


@bare_inline
def add_to_variants(sums: Any, shares: Any, uses: Any, classes: Any, count: Any) -> None:
    """Add each of `count` shares to the sum of every variant that uses its class; classes: int64."""
    width, many = 8 * sums.size, np.int64(count)
    if sums.size == 4 * LANES:
        add_scaled_to_32(
            address(sums, 0), address(shares, 0), address(uses, 0), width, classes.ctypes.data, many
        )
    else:
        for lane in range(0, sums.size, LANES):
            add_scaled(
                address(sums, lane), address(shares, 0), address(uses, lane), width, classes.ctypes.data, many
            )


@bare_inline
def take_means(variants: Any, work: Any) -> Any:
    """The means of each class, `work.means`: of the error, and of u^1 to u^7. Returns m and d of the formula above."""
    several, classes = variants.parameters.shape[0], variants.using.size
    for v in range(several, work.squared.size):
        work.squared[v] = work.squared[0]
    low, high = bounds_of(address(work.squared, 0), np.int64(work.squared.size))
    middle = low + 0.5 * (high - low)
    reach = max(high - middle, middle - low)
    scale = 1.0 / reach if reach > _SMALLEST_REACH else 0.0
    for v in range(0, work.squared.size, LANES):
        store_powers(
            address(work.powers, v * MEANS), address(work.error, v), address(work.squared, v), middle, scale
        )
    rows, total = address(work.powers, 0), address(work.means, classes * MEANS)
    for c in range(classes, -1, -1):
        share, sign = (0.0, 1.0) if variants.adds[c] else (1.0, -1.0)
        members = variants.members.ctypes.data + 8 * c * variants.members.shape[1]
        using, inverse = (variants.using[c], variants.inverse[c]) if c < classes else (1.0, 1.0)
        store_mean(
            address(work.means, c * MEANS), total if c < classes else rows, share, rows, members,
            variants.counts[c], sign, using, inverse,
        )  # fmt: skip
    return middle, reach


@bare_inline
def take_columns(work: Any, size: Any) -> None:
    """Copy the means of each key's class to `work.columns`, where loops over keys find them side by side."""
    width = 8 * work.columns.shape[1]
    for i in range(0, size, LANES):
        classes = work.classes.ctypes.data + 8 * i
        store_columns(address(work.columns, i), width, address(work.means, 0), classes)


@bare_inline
def sum_of_roots(n: Any, factor: Any, squared: Any, uses: Any, c: Any) -> Any:
    """The sum of sqrt(n + factor * squared[v]) over the variants that use class c: their new sqrt(n)."""
    total = 0.0
    for lane in range(0, squared.size, LANES):
        total += dot_of_roots(n, factor, address(squared, lane), address(uses, c * squared.size + lane))
    return total


@implements(mean_step, Ftrl)
def _mean_of_ftrl(
    learner: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, i: Any,
    middle: Any, reach: Any, t: Any, lazy: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """All variants start from the same (z, n), so the mean of their new z and n is

    z + mean g - w (mean new r - r) / alpha    and    n + mean g^2.
    """
    mean_r, mean_n = means_of(learner.rate, n, counted, x, i, middle, reach, work)
    pull = w * (mean_r - r) / learner.rate.alpha if w != 0.0 else 0.0  # of a new key no root is taken
    return a + (x * work.columns[0, i] - pull), mean_n


@implements(take_roots, Ftrl)
def _take_roots(learner: Any, begin: Any, end: Any, middle: Any, reach: Any, variants: Any, work: Any) -> Any:
    roots_of(learner.rate, begin, end, middle, reach, variants, work)


@stub
def roots_of(rate: Any, begin: Any, end: Any, middle: Any, reach: Any, variants: Any, work: Any) -> Any:
    """Compute `work.root` of some of a row's keys: FTRL's mean new r, where it follows from gradients."""


@stub
def means_of(rate: Any, n: Any, counted: Any, x: Any, i: Any, middle: Any, reach: Any, work: Any) -> Any:
    """The means of the variants' new r and n."""


implements(roots_of, ClickCounts, Constant)(lambda rate, begin, end, middle, reach, variants, work: None)
implements(means_of, ClickCounts, Constant)(
    lambda rate, n, counted, x, i, middle, reach, work: (r_of(rate, counted), counted)
)
implements(means_of, Gradients)(
    lambda rate, n, counted, x, i, middle, reach, work: (
        work.root[i],
        n + x * x * (middle + reach * work.columns[1, i]),
    )
)


@implements(roots_of, Gradients)
def _by_series(rate: Any, begin: Any, end: Any, middle: Any, reach: Any, variants: Any, work: Any) -> Any:
    width = 8 * work.columns.shape[1]
    # Roots of keys before begin and from end on are computed too, from what is there, and not used.
    for i in range(begin // LANES * LANES, end, LANES):
        store_mean_roots(
            address(work.root, i), address(work.part, i), address(work.n, i), address(work.x, i), middle, reach,
            address(work.columns, i), width, _BINOMIALS,
        )  # fmt: skip
    for i in range(begin, end):
        if not work.part[i] <= LARGEST_PART and work.w[i] != 0.0:  # it may be NaN
            c = work.classes[i]
            roots = sum_of_roots(work.n[i], work.x[i] * work.x[i], work.squared, variants.uses, c)
            work.root[i] = roots / variants.using[c]
