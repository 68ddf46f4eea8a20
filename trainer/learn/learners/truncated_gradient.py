"""Truncated gradient (Langford, Li, Zhang, JMLR 2009, section 3.3).

Gradient descent; after the step of every k-th example, in every coordinate, touched or not, with a = k eta l1 (the
paper's form, `shrink = "rate"`) or a = l1, the same at every rate (`shrink = "fixed"`):

    w = max(0, w - a)    where 0 <= w <= theta
      = min(0, w + a)    where -theta <= w < 0
      = w                beyond theta

A weight within theta only shrinks, so it stays within theta until it is touched: m missed k-th examples shrink it by
the sum of their a. That sum is m l1 where a is fixed, m k eta l1 where the rate is per coordinate, and a difference of
running totals where it is global.

lazy[v] is (the sum of k eta over all k-th examples so far, the number of the last k-th example).

Oracle: `tests/trainer/oracles/truncated_gradient.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners import operations
from trainer.learn.learners.operations import Algorithm
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, eta


class TruncatedGradient(NamedTuple):
    """The learner's parameters; theta may be infinite. fixed: the shrinkage does not depend on the rate."""

    rate: Rate
    k: int
    theta: float
    fixed: bool


@bare_inline
def shrunk(w, by):
    """w moved towards 0 by `by`, at most to 0."""
    return math.copysign(max(0.0, abs(w) - by), w)


@bare_inline
def missed_rows(k, seen, lazy, v):
    """k times the number of k-th examples after `seen`. No branch: it would be mispredicted too often."""
    return max(0.0, lazy[v, 1] - math.floor(np.float64(seen) / k) * k)


@stub
def missed(rate, k, r, seen, t, lazy, v):
    """The sum of k eta over the k-th examples after `seen` and before t."""


implements(missed, *OWN_RATES)(
    lambda rate, k, r, seen, t, lazy, v: missed_rows(k, seen, lazy, v) * eta(rate, r, t)
)
implements(missed, Global)(lambda rate, k, r, seen, t, lazy, v: lazy[v, 0] - r)


@implements(operations.weight, TruncatedGradient)
def _weight(learner, l1, a, r, seen, t, lazy, v):
    if learner.fixed:
        by = l1 * (missed_rows(learner.k, seen, lazy, v) / learner.k)
    else:
        by = l1 * missed(learner.rate, learner.k, r, seen, t, lazy, v)
    return shrunk(a, by * np.float64(abs(a) <= learner.theta))


@implements(operations.step, TruncatedGradient)
def _step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    rate = eta(learner.rate, new_r, t)
    new_w = w - rate * g
    if t == lazy[v, 1] and abs(new_w) <= learner.theta:
        new_w = shrunk(new_w, l1 if learner.fixed else learner.k * rate * l1)
    return new_w


@stub
def _add_shrinkage(rate, k, t, lazy, v):
    """Add k eta of example t, a k-th one, to the running total."""


implements(_add_shrinkage, *OWN_RATES)(lambda rate, k, t, lazy, v: None)


@implements(_add_shrinkage, Global)
def _add_global(rate, k, t, lazy, v):
    lazy[v, 0] += k * eta(rate, 0.0, t)


@implements(operations.advance, TruncatedGradient)
def _advance(learner, t, lazy, v):
    if t % learner.k == 0:
        lazy[v, 1] = t
        _add_shrinkage(learner.rate, learner.k, t, lazy, v)


@implements(operations.reset_lazy, TruncatedGradient)
def _reset_lazy(learner, lazy, v):
    lazy[v, 0] = 0.0
    lazy[v, 1] = 0.0


implements(operations.running_total, TruncatedGradient)(lambda learner, lazy, v: lazy[v, 0])
implements(operations.needs_rebase, TruncatedGradient)(lambda learner, lazy: False)
operations.stores_weights(TruncatedGradient)
operations.learns_by_gradient(TruncatedGradient)

ALGORITHM = Algorithm(
    make=lambda spec, rate, l2: TruncatedGradient(
        rate, spec.learner.k, spec.learner.theta or 0.0, spec.learner.shrink == "fixed"
    ),
    catches_up=lambda spec: True,
)
