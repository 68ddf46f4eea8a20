"""Regularized dual averaging: the l1-RDA method with an l2 term (Xiao, JMLR 2010, section 1.3 and equation 10).

A coordinate stores G, the sum of its gradients. Its weight is a function of G and of t, the number of examples so far:

    w = 0                                                 where |G / t| <= l1
      = -(G / t - sgn(G) l1) / (l2 + gamma / sqrt(t))     elsewhere

with gamma = 1 / alpha. Where the rate is per coordinate, (beta + sqrt(n)) / alpha takes the place of gamma sqrt(t):
AdaGrad's dual averaging (Duchi, Hazan, Singer, JMLR 2011, equation 24). Where the rate is constant, beta / alpha does:
gamma / t in the formula. The code multiplies the formulas by t; a is G.

Oracle: `tests/trainer/oracles/rda.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_store.jit import implements, stub
from trainer.learn.learners import operations
from trainer.learn.learners.operations import Algorithm
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, inverse


class Rda(NamedTuple):
    """The learner's parameters; l1 comes with the coordinate."""

    rate: Rate
    l2: float


@stub
def proximity(rate, r, t):
    """gamma sqrt(t), or (beta + sqrt(n)) / alpha where the rate is per coordinate."""


implements(proximity, *OWN_RATES)(lambda rate, r, t: inverse(rate, r))
implements(proximity, Global)(lambda rate, r, t: math.sqrt(t) / rate.alpha)


@implements(operations.weight, Rda)
def _weight(learner, l1, a, r, seen, t, lazy, v):
    examples = np.float64(t - 1)
    if abs(a) <= examples * l1:
        return 0.0
    return -(a - math.copysign(examples * l1, a)) / (
        examples * learner.l2 + proximity(learner.rate, r, examples)
    )


@implements(operations.step, Rda)
def _step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    return a + g


operations.stores_weights(
    Rda
)  # q2.13 needs an implementation to compile; a spec with q2.13 and rda is rejected
operations.has_no_lazy_state(Rda)
operations.learns_by_gradient(Rda)

ALGORITHM = Algorithm(make=lambda spec, rate, l2: Rda(rate, l2), averages=True)
