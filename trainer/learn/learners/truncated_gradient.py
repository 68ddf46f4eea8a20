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
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements, stub
from model_store.spec.spec import ModelSpec
from trainer.learn.learners.operations import (
    Algorithm,
    advance,
    learns_by_gradient,
    needs_rebase,
    reset_lazy,
    running_total,
    step,
    stores_weights,
    weight,
)
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, eta


class TruncatedGradient(NamedTuple):
    """The learner's parameters; theta may be infinite."""

    rate: Rate
    k: int
    theta: float


class FixedTruncatedGradient(NamedTuple):
    """The parameters of the learner whose shrinkage does not depend on the rate."""

    rate: Rate
    k: int
    theta: float


_BOTH = (TruncatedGradient, FixedTruncatedGradient)


@bare_inline
def shrunk(w: Any, by: Any) -> Any:
    """w moved towards 0 by `by`, at most to 0."""
    return math.copysign(max(0.0, abs(w) - by), w)


@bare_inline
def missed_rows(k: Any, seen: Any, lazy: Any, v: Any) -> Any:
    """k times the number of k-th examples after `seen`. No branch: it would be mispredicted too often."""
    return max(0.0, lazy[v, 1] - math.floor(np.float64(seen) / k) * k)


@stub
def missed(rate: Any, k: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    """The sum of k eta over the k-th examples after `seen` and before t."""


implements(missed, *OWN_RATES)(
    lambda rate, k, r, seen, t, lazy, v: missed_rows(k, seen, lazy, v) * eta(rate, r, t)
)
implements(missed, Global)(lambda rate, k, r, seen, t, lazy, v: lazy[v, 0] - r)


@implements(weight, FixedTruncatedGradient)
def _fixed_weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    by = l1 * (missed_rows(learner.k, seen, lazy, v) / learner.k)
    return shrunk(a, by * np.float64(abs(a) <= learner.theta))


@implements(weight, TruncatedGradient)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    by = l1 * missed(learner.rate, learner.k, r, seen, t, lazy, v)
    return shrunk(a, by * np.float64(abs(a) <= learner.theta))


@stub
def pull(learner: Any, rate: Any) -> Any:
    """a / l1 of a k-th example with this rate."""


implements(pull, TruncatedGradient)(lambda learner, rate: learner.k * rate)
implements(pull, FixedTruncatedGradient)(lambda learner, rate: 1.0)


@implements(step, *_BOTH)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, lazy: Any, v: Any
) -> Any:
    rate = eta(learner.rate, new_r, t)
    new_w = w - rate * g
    if t == lazy[v, 1] and abs(new_w) <= learner.theta:
        new_w = shrunk(new_w, pull(learner, rate) * l1)
    return new_w


@stub
def _add_shrinkage(rate: Any, k: Any, t: Any, lazy: Any, v: Any) -> Any:
    """Add k eta of example t, a k-th one, to the running total."""


implements(_add_shrinkage, *OWN_RATES)(lambda rate, k, t, lazy, v: None)


@implements(_add_shrinkage, Global)
def _add_global(rate: Any, k: Any, t: Any, lazy: Any, v: Any) -> Any:
    lazy[v, 0] += k * eta(rate, 0.0, t)


@implements(advance, *_BOTH)
def _advance(learner: Any, t: Any, lazy: Any, v: Any) -> Any:
    if t % learner.k == 0:
        lazy[v, 1] = t
        _add_shrinkage(learner.rate, learner.k, t, lazy, v)


@implements(reset_lazy, *_BOTH)
def _reset_lazy(learner: Any, lazy: Any, v: Any) -> Any:
    lazy[v, 0] = 0.0
    lazy[v, 1] = 0.0


implements(running_total, *_BOTH)(lambda learner, lazy, v: lazy[v, 0])
implements(needs_rebase, *_BOTH)(lambda learner, lazy: False)
stores_weights(*_BOTH)
learns_by_gradient(*_BOTH)


def _of(spec: ModelSpec, rate: Rate, l2: float) -> TruncatedGradient | FixedTruncatedGradient:
    kind = FixedTruncatedGradient if spec.learner.shrink == "fixed" else TruncatedGradient
    return kind(rate, spec.learner.k, spec.learner.theta or 0.0)


ALGORITHM = Algorithm(make=_of, catches_up=lambda spec: True)
