"""Regularized dual averaging (Xiao, JMLR 2010, section 1.3 and equation 10: the l1-RDA method, with an l2 term).

A coordinate keeps G, the sum of its gradients, and its weight is a function of G and of t, the examples so far:

    w = 0                                                 where |G / t| <= l1
      = -(G / t - sgn(G) l1) / (l2 + gamma / sqrt(t))     elsewhere

with gamma = 1 / alpha. With rates of the coordinates' own, (beta + sqrt(n)) / alpha stands for gamma sqrt(t), which is
AdaGrad's dual averaging (Duchi, Hazan, Singer, JMLR 2011, equation 24). Reading a weight is exact at any time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import implements, stub
from trainer.learn.learners.learner import keeps_no_marks, keeps_weights, step, weight, with_own
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, inverse, with_parameters


class Rda(NamedTuple):
    """The learner's parameters; l1 comes with the coordinate."""

    rate: Rate
    l2: float


@stub
def tether(rate: Any, r: Any, t: Any) -> Any:
    """t times what ties a weight to 0 beside l2."""


@implements(tether, *OWN_RATES)
def _own_tether(rate: Any, r: Any, t: Any) -> Any:
    return inverse(rate, r)


@implements(tether, Global)
def _global_tether(rate: Any, r: Any, t: Any) -> Any:
    return math.sqrt(t) / rate.alpha


@implements(weight, Rda)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    so_far = np.float64(t - 1)
    if abs(a) <= so_far * l1:
        return 0.0
    return -(a - math.copysign(so_far * l1, a)) / (so_far * learner.l2 + tether(learner.rate, r, so_far))


@implements(step, Rda)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, marks: Any, v: Any
) -> Any:
    return a + g


@implements(with_own, Rda)
def _with_own(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    return Rda(with_parameters(learner.rate, alpha, beta), l2)


keeps_weights(Rda)  # in name only: a spec with q2.13 and rda is refused
keeps_no_marks(Rda)
