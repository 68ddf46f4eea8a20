"""FTRL-Proximal: McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), section 3, algorithm 1.

A coordinate stores z and n, the sum of g^2. With p = sigmoid(w x) and g = omega (p - y) x, one example does

    w     = 0                                                          where |z| <= l1
          = -(z - sgn(z) l1) / ((beta + sqrt(n)) / alpha + l2)         elsewhere
    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha
    z     = z + g - sigma w
    n     = n + g^2

In the code a is z, r is sqrt(n) before the example and new_r after it. The weight is a function of z and n alone, so a
coordinate that is not touched misses nothing.

Oracle: `tests/trainer/oracles/ftrl.py`, the same in plain Python; the two agree to 1e-12.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_store.jit import implements
from trainer.learn.learners import operations
from trainer.learn.learners.operations import Algorithm, Numbers
from trainer.learn.learners.rates import Rate, eta, inverse


class Ftrl(NamedTuple):
    """The learner's parameters; l1 comes with the coordinate."""

    rate: Rate
    l2: float


@implements(operations.weight, Ftrl)
def _weight(learner, l1, a, r, seen, t, lazy, v):
    if abs(a) <= l1:
        return 0.0
    return -(a - math.copysign(l1, a)) / (inverse(learner.rate, r) + learner.l2)


@implements(operations.step, Ftrl)
def _step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    sigma = (new_r - r) / learner.rate.alpha
    return a + (g - sigma * w)


# q2.13 rounds eta z, which has the size of a weight.
implements(operations.pack, Ftrl)(lambda learner, a, r: a * eta(learner.rate, r, 0))
implements(operations.unpack, Ftrl)(lambda learner, value, r: value * inverse(learner.rate, r))
operations.has_no_lazy_state(Ftrl)
operations.learns_by_gradient(Ftrl, has_own_mean=True)


def z_of_weight(weight: Numbers, l1: Numbers, l2: float, inverse: Numbers, within: Numbers | None) -> Numbers:
    """The inverse of the first equation, z = -(w (1 / eta + l2) + sgn(w) l1); within: z where w is 0."""
    z: Numbers = -(weight * (inverse + l2) + np.sign(weight) * l1)
    return z if within is None else np.where(weight == 0.0, np.clip(within, -l1, l1), z)


def weight_of_z(z: Numbers, l1: Numbers, l2: float, inverse: Numbers) -> Numbers:
    """The first equation."""
    weight: Numbers = -(z - np.sign(z) * l1) / (inverse + l2)
    return np.where(np.abs(z) <= l1, 0.0, weight)


ALGORITHM = Algorithm(
    make=lambda spec, rate, l2: Ftrl(rate, l2), state_of_weight=z_of_weight, weight_of_state=weight_of_z
)
