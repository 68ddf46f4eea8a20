"""Simple coefficient rounding: gradient descent that drops small weights (Langford et al., JMLR 2009, section 3.1).

After the step of every k-th example, in every coordinate, touched or not:

    w = 0    where |w| <= theta

Dropping a weight twice is the same as dropping it once, so a coordinate only needs to know whether a k-th example
passed since its last touch. lazy[v, 0] is the number of the last k-th example.

Oracle: `tests/trainer/oracles/truncation.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements
from trainer.learn.learners import operations
from trainer.learn.learners.operations import Algorithm
from trainer.learn.learners.rates import Rate, eta


class Truncation(NamedTuple):
    """The learner's parameters."""

    rate: Rate
    k: int
    theta: float


@bare_inline
def kept(w, theta, is_time):
    """w, or 0 if `is_time` and w is small. A factor: the branch would be mispredicted too often."""
    return w * np.float64((abs(w) > theta) | (not is_time))


@implements(operations.weight, Truncation)
def _weight(learner, l1, a, r, seen, t, lazy, v):
    return kept(a, learner.theta, seen < lazy[v, 0])


@implements(operations.step, Truncation)
def _step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    return kept(w - eta(learner.rate, new_r, t) * g, learner.theta, t == lazy[v, 0])


@implements(operations.advance, Truncation)
def _advance(learner, t, lazy, v):
    if t % learner.k == 0:
        lazy[v, 0] = t


@implements(operations.reset_lazy, Truncation)
def _reset_lazy(learner, lazy, v):
    lazy[v, 0] = 0.0


implements(operations.running_total, Truncation)(lambda learner, lazy, v: 0.0)
implements(operations.needs_rebase, Truncation)(lambda learner, lazy: False)
operations.stores_weights(Truncation)
operations.learns_by_gradient(Truncation)

ALGORITHM = Algorithm(
    make=lambda spec, rate, l2: Truncation(rate, spec.learner.k, spec.learner.theta or 0.0),
    catches_up=lambda spec: True,
)
