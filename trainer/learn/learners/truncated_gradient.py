"""Truncated gradient (Langford, Li, Zhang, JMLR 2009, section 3.3).

Gradient descent; after the step of every k-th example, in every coordinate, touched or not, with a = k eta l1:

    w = max(0, w - a)    where 0 <= w <= theta
      = min(0, w + a)    where -theta <= w < 0
      = w                beyond theta

A weight within theta only shrinks, so it stays within until it is touched: m missed times shrink it by the sum of their
a. Where the rate is the coordinate's own that is m k eta l1; where it is global, a difference of marks.

marks[v] is (the sum of k eta over all k-th examples so far, the number of the last k-th example).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners.learner import (
    fresh_marks,
    keeps_weights,
    mark,
    step,
    tick,
    weight,
    with_own,
    worn,
)
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, eta, with_parameters


class TruncatedGradient(NamedTuple):
    """The learner's parameters; theta may be infinite."""

    rate: Rate
    k: int
    theta: float


@bare_inline
def shrunk(w: Any, by: Any) -> Any:
    """w, brought nearer to 0 by `by`, and no further than 0."""
    return math.copysign(max(0.0, abs(w) - by), w)


@stub
def missed(rate: Any, k: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    """The sum of k eta over the k-th examples after `seen` and before t."""


@implements(missed, *OWN_RATES)
def _missed_at_its_own_rate(rate: Any, k: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    # No branch: whether a k-th example has passed since a key's last touch is more than the processor can guess.
    return max(0.0, marks[v, 1] - math.floor(np.float64(seen) / k) * k) * eta(rate, r, t)


@implements(missed, Global)
def _missed_at_global_rates(rate: Any, k: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    return marks[v, 0] - r


@implements(weight, TruncatedGradient)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    by = l1 * missed(learner.rate, learner.k, r, seen, t, marks, v)
    return shrunk(a, by * np.float64(abs(a) <= learner.theta))


@implements(step, TruncatedGradient)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, marks: Any, v: Any
) -> Any:
    rate = eta(learner.rate, new_r, t)
    new_w = w - rate * g
    if t == marks[v, 1] and abs(new_w) <= learner.theta:
        new_w = shrunk(new_w, learner.k * rate * l1)
    return new_w


@stub
def _all_shrink(rate: Any, k: Any, t: Any, marks: Any, v: Any) -> Any:
    """Add to the mark what example t, a k-th one, takes from every weight."""


@implements(_all_shrink, *OWN_RATES)
def _each_by_its_own(rate: Any, k: Any, t: Any, marks: Any, v: Any) -> Any:
    pass


@implements(_all_shrink, Global)
def _all_alike(rate: Any, k: Any, t: Any, marks: Any, v: Any) -> Any:
    marks[v, 0] += k * eta(rate, 0.0, t)


@implements(tick, TruncatedGradient)
def _tick(learner: Any, t: Any, marks: Any, v: Any) -> Any:
    if t % learner.k == 0:
        marks[v, 1] = t
        _all_shrink(learner.rate, learner.k, t, marks, v)


@implements(mark, TruncatedGradient)
def _mark(learner: Any, marks: Any, v: Any) -> Any:
    return marks[v, 0]


@implements(worn, TruncatedGradient)
def _worn(learner: Any, marks: Any) -> Any:
    return False


@implements(fresh_marks, TruncatedGradient)
def _fresh_marks(learner: Any, marks: Any, v: Any) -> Any:
    marks[v, 0] = 0.0
    marks[v, 1] = 0.0


@implements(with_own, TruncatedGradient)
def _with_own(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    return TruncatedGradient(with_parameters(learner.rate, alpha, beta), learner.k, learner.theta)


keeps_weights(TruncatedGradient)
