"""Several variants that share each key's value (KDD 2013, section 4.4): their sums, and the mean of their steps.

uses: float64[classes, lanes], see `Variants`; c: a class of features that the same variants use.
"""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners.adpredictor import AdPredictor, posterior
from trainer.learn.learners.fobos import Fobos
from trainer.learn.learners.ftrl import Ftrl, state_of_z, z_now
from trainer.learn.learners.lanes import LANES, add_scaled, address, dot, dot_of_roots
from trainer.learn.learners.ogd import Ogd, PenalizedOgd
from trainer.learn.learners.operations import running_total, step
from trainer.learn.learners.rates import (
    Constant,
    Counts,
    Gradients,
    TunedConstant,
    TunedCounts,
    TunedGradients,
    alpha_at,
    n_after,
    r_of,
)
from trainer.learn.learners.rda import Rda
from trainer.learn.learners.truncated_gradient import FixedTruncatedGradient, TruncatedGradient
from trainer.learn.learners.truncation import Truncation


@bare_inline
def add_to_variants(sums: Any, share: Any, uses: Any, c: Any) -> None:
    """Add `share` to the sum of every variant that uses class c."""
    for lane in range(0, sums.size, LANES):
        add_scaled(address(sums, lane), share, address(uses, c * sums.size + lane))


@bare_inline
def sum_over_variants(numbers: Any, uses: Any, c: Any) -> Any:
    """The sum of numbers[v] over the variants that use class c."""
    total = 0.0
    for lane in range(0, numbers.size, LANES):
        total += dot(address(numbers, lane), address(uses, c * numbers.size + lane))
    return total


@bare_inline
def sum_of_roots(n: Any, factor: Any, squared: Any, uses: Any, c: Any) -> Any:
    """The sum of sqrt(n + factor * squared[v]) over the variants that use class c: their new sqrt(n)."""
    total = 0.0
    for lane in range(0, squared.size, LANES):
        total += dot_of_roots(n, factor, address(squared, lane), address(uses, c * squared.size + lane))
    return total


@stub
def mean_step(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    lazy: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """The mean (a, n) over the variants that use class c."""


@implements(mean_step, Ogd, PenalizedOgd, Truncation, TruncatedGradient, FixedTruncatedGradient, Fobos, Rda)
def _mean_of_each(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    lazy: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """By definition: one variant after the other."""
    total = running_total(learner, lazy, 0)
    sum_a, sum_n = 0.0, 0.0
    for v in range(variants.parameters.shape[0]):
        if variants.uses[c, v] != 0.0:
            g = work.error[v] * x
            new_n = n_after(rate, n, counted, g, total)
            sum_a += step(learner, l1, a, w, g, r, r_of(rate, new_n), t, lazy, 0)
            sum_n += new_n
    return sum_a / variants.using[c], sum_n / variants.using[c]


@implements(mean_step, Ftrl)
def _mean_of_ftrl(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    lazy: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """All variants start from the same (z, n), so the mean of their new z and n is

    z + mean g - w (mean new r - r) / alpha    and    n + mean g^2.
    """
    pull = 0.0
    if w != 0.0:
        pull = w * (mean_r(rate, n, counted, x, c, variants, work) - r) / alpha_at(rate, t)
    new_n = mean_n(rate, n, counted, x, c, work)
    z = z_now(rate, l1, learner.l2, a, w, r, t) + (x * work.mean_error[c] - pull)
    return state_of_z(rate, l1, learner.l2, z, r_of(rate, new_n), t), new_n


@implements(mean_step, AdPredictor)
def _mean_of_posteriors(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    lazy: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """The mean of the variants' means and variances, which are linear in the derivatives; it then forgets."""
    return posterior(learner, a, n, r, x, work.mean_error[c], work.mean_squared[c])


@stub
def mean_r(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    """The mean of the variants' new r."""


@implements(mean_r, Gradients)
def _mean_root(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    return sum_of_roots(n, x * x, work.squared, variants.uses, c) / variants.using[c]


@implements(mean_r, TunedGradients)
def _mean_power(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    total = 0.0
    for v in range(variants.parameters.shape[0]):
        if variants.uses[c, v] != 0.0:
            total += r_of(rate, n + x * x * work.squared[v])
    return total / variants.using[c]


@implements(mean_r, Counts, Constant, TunedCounts, TunedConstant)
def _common_r(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    return r_of(rate, counted)


@stub
def mean_n(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    """The mean of the variants' new n."""


@implements(mean_n, Gradients, TunedGradients)
def _mean_squares(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    return n + x * x * work.mean_squared[c]


@implements(mean_n, Counts, Constant, TunedCounts, TunedConstant)
def _common_n(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    return counted
