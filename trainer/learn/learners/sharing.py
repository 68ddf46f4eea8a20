"""What several variants do to a value they share: the mean of what each would do (the paper, section 4.4)."""

from __future__ import annotations

from typing import Any

from model_store.jit import implements, stub
from trainer.learn.learners.fobos import Fobos
from trainer.learn.learners.ftrl import Ftrl
from trainer.learn.learners.lanes import sum_of_roots
from trainer.learn.learners.learner import mark, step
from trainer.learn.learners.ogd import Ogd
from trainer.learn.learners.rates import Constant, Counts, Gradients, grown, reading
from trainer.learn.learners.rda import Rda
from trainer.learn.learners.truncated_gradient import TruncatedGradient
from trainer.learn.learners.truncation import Truncation


@stub
def mean_step(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    marks: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """The mean (a, n) over the variants that use class c."""


@implements(mean_step, Ogd, Truncation, TruncatedGradient, Fobos, Rda)
def _mean_of_each(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    marks: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """By the definition: one variant after the other."""
    new_mark = mark(learner, marks, 0)
    sum_a, sum_n = 0.0, 0.0
    for v in range(variants.parameters.shape[0]):
        if variants.uses[c, v] != 0.0:
            g = work.error[v] * x
            new_n = grown(rate, n, counted, g, new_mark)
            sum_a += step(learner, l1, a, w, g, r, reading(rate, new_n), t, marks, 0)
            sum_n += new_n
    return sum_a / variants.users[c], sum_n / variants.users[c]


@implements(mean_step, Ftrl)
def _mean_of_ftrl(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    marks: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """All variants start from the same (z, n), so the mean of their new ones is

    z + mean g - w (mean new r - r) / alpha    and    n + mean g^2.
    """
    pull = 0.0
    if w != 0.0:
        pull = w * (mean_reading(rate, n, counted, x, c, variants, work) - r) / rate.alpha
    new_n = mean_n(rate, n, counted, x, c, work)
    return a + (x * work.mean_error[c] - pull), new_n


@stub
def mean_reading(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    """The mean of the variants' new r."""


@implements(mean_reading, Gradients)
def _mean_root(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    return sum_of_roots(n, x * x, work.squared, variants.uses, c) / variants.users[c]


@implements(mean_reading, Counts, Constant)
def _common_reading(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    return reading(rate, counted)


@stub
def mean_n(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    """The mean of the variants' new n."""


@implements(mean_n, Gradients)
def _mean_squares(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    return n + x * x * work.mean_squared[c]


@implements(mean_n, Counts, Constant)
def _common_n(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    return counted
