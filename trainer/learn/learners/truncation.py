"""Simple coefficient rounding: gradient descent that drops small weights (Langford et al., JMLR 2009, section 3.1).

After the step of every k-th example, in every coordinate, touched or not:

    w = 0    where |w| <= theta

Dropping a weight twice is the same as dropping it once, so a coordinate only needs to know whether a k-th example
passed since its last touch. lazy[v, 0] is the number of the last k-th example.

Oracle: `tests/trainer/oracles/truncation.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements
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
from trainer.learn.learners.rates import Rate, eta


class Truncation(NamedTuple):
    """The learner's parameters."""

    rate: Rate
    k: int
    theta: float


@bare_inline
def kept(w: Any, theta: Any, is_time: Any) -> Any:
    """w, or 0 if `is_time` and w is small. A factor: the branch would be mispredicted too often."""
    return w * np.float64((abs(w) > theta) | (not is_time))


@implements(weight, Truncation)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    return kept(a, learner.theta, seen < lazy[v, 0])


@implements(step, Truncation)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, lazy: Any, v: Any
) -> Any:
    return kept(w - eta(learner.rate, new_r, t) * g, learner.theta, t == lazy[v, 0])


@implements(advance, Truncation)
def _advance(learner: Any, t: Any, lazy: Any, v: Any) -> Any:
    if t % learner.k == 0:
        lazy[v, 0] = t


@implements(reset_lazy, Truncation)
def _reset_lazy(learner: Any, lazy: Any, v: Any) -> Any:
    lazy[v, 0] = 0.0


implements(running_total, Truncation)(lambda learner, lazy, v: 0.0)
implements(needs_rebase, Truncation)(lambda learner, lazy: False)
stores_weights(Truncation)
learns_by_gradient(Truncation)

ALGORITHM = Algorithm(
    make=lambda spec, rate, l2: Truncation(rate, spec.learner.k, spec.learner.theta or 0.0),
    catches_up=lambda spec: True,
)
