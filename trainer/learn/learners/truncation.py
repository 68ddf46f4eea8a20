"""Simple coefficient rounding: gradient descent that drops small weights (Langford et al., JMLR 2009, section 3.1).

After the step of every k-th example, in every coordinate, touched or not:

    w = 0    where |w| <= theta

To drop a weight twice is to drop it once, so a coordinate only asks whether a k-th example passed since its last touch.
marks[v, 0] is the number of the last k-th example.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements
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
from trainer.learn.learners.rates import Rate, eta, with_parameters


class Truncation(NamedTuple):
    """The learner's parameters."""

    rate: Rate
    k: int
    theta: float


@bare_inline
def kept(w: Any, theta: Any, is_time: Any) -> Any:
    """w, or 0 if it is time and w is small. A factor, since small weights come too irregularly for a branch."""
    return w * np.float64((abs(w) > theta) | (not is_time))


@implements(weight, Truncation)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    return kept(a, learner.theta, seen < marks[v, 0])


@implements(step, Truncation)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, marks: Any, v: Any
) -> Any:
    return kept(w - eta(learner.rate, new_r, t) * g, learner.theta, t == marks[v, 0])


@implements(tick, Truncation)
def _tick(learner: Any, t: Any, marks: Any, v: Any) -> Any:
    if t % learner.k == 0:
        marks[v, 0] = t


@implements(mark, Truncation)
def _mark(learner: Any, marks: Any, v: Any) -> Any:
    return 0.0


@implements(worn, Truncation)
def _worn(learner: Any, marks: Any) -> Any:
    return False


@implements(fresh_marks, Truncation)
def _fresh_marks(learner: Any, marks: Any, v: Any) -> Any:
    marks[v, 0] = 0.0


@implements(with_own, Truncation)
def _with_own(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    return Truncation(with_parameters(learner.rate, alpha, beta), learner.k, learner.theta)


keeps_weights(Truncation)
