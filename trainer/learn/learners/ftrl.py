"""FTRL-Proximal: McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), algorithm 1.

A coordinate stores z and n, the sum of g^2. With p = sigmoid(w x) and g = omega (p - y) x, one example does

    w     = 0                                                          where |z| <= l1
          = -(z - sgn(z) l1) / ((beta + sqrt(n)) / alpha + l2)         elsewhere
    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha
    z     = z + g - sigma w
    n     = n + g^2

In the code a is z, r is sqrt(n) before the example and new_r after it. The weight is a function of z and n alone, so a
coordinate that is not touched misses nothing.

During a warm-up alpha grows with t, and the paper's definition holds: sigma = 1 / eta_t - 1 / eta_(t-1) in every
coordinate, touched or not. An untouched z then falls by sigma w, and 1 / eta + l2 grows by sigma: w stays. So a is the
z which that w would have at the full alpha; `z_now` and `state_of_z` convert, and weight, q2.13 and the published rate
know no t.

Oracle: `tests/trainer/oracles/ftrl.py`, the same in plain Python; the two agree to 1e-12.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from model_store.jit import implements, stub
from trainer.learn.learners.operations import (
    has_no_lazy_state,
    learns_by_gradient,
    pack,
    step,
    unpack,
    weight,
    with_own_parameters,
)
from trainer.learn.learners.rates import PLAIN, TUNED, Rate, alpha_at, eta, inverse, with_parameters


class Ftrl(NamedTuple):
    """The learner's parameters; l1 comes with the coordinate."""

    rate: Rate
    l2: float


@implements(weight, Ftrl)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    if abs(a) <= l1:
        return 0.0
    return -(a - math.copysign(l1, a)) / (inverse(learner.rate, r) + learner.l2)


@implements(step, Ftrl)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, lazy: Any, v: Any
) -> Any:
    sigma = (new_r - r) / alpha_at(learner.rate, t)
    z = z_now(learner.rate, l1, learner.l2, a, w, r, t) + (g - sigma * w)
    return state_of_z(learner.rate, l1, learner.l2, z, new_r, t)


@stub
def z_now(rate: Any, l1: Any, l2: Any, a: Any, w: Any, r: Any, t: Any) -> Any:
    """z at the alpha of example t, of a coordinate with the weight w."""


@stub
def state_of_z(rate: Any, l1: Any, l2: Any, z: Any, r: Any, t: Any) -> Any:
    """The inverse of `z_now`; r belongs to z."""


@implements(z_now, *PLAIN)
def _a(rate: Any, l1: Any, l2: Any, a: Any, w: Any, r: Any, t: Any) -> Any:
    return a


@implements(state_of_z, *PLAIN)
def _z_itself(rate: Any, l1: Any, l2: Any, z: Any, r: Any, t: Any) -> Any:
    return z


@implements(z_now, *TUNED)
def _warm_z(rate: Any, l1: Any, l2: Any, a: Any, w: Any, r: Any, t: Any) -> Any:
    if t >= rate.warmup or w == 0.0:
        return a
    return math.copysign(l1, a) - w * ((rate.beta + r) / alpha_at(rate, t) + l2)


@implements(state_of_z, *TUNED)
def _at_full_alpha(rate: Any, l1: Any, l2: Any, z: Any, r: Any, t: Any) -> Any:
    if t >= rate.warmup or abs(z) <= l1:
        return z
    beyond = math.copysign(l1, z)
    now = (rate.beta + r) / alpha_at(rate, t) + l2
    return beyond + (z - beyond) * ((inverse(rate, r) + l2) / now)


@implements(pack, Ftrl)
def _eta_z(learner: Any, a: Any, r: Any) -> Any:
    """eta z, which has the size of a weight; q2.13 rounds it in place of z."""
    return a * eta(learner.rate, r, 0)


@implements(unpack, Ftrl)
def _z(learner: Any, value: Any, r: Any) -> Any:
    return value * inverse(learner.rate, r)


@implements(with_own_parameters, Ftrl)
def _with_own_parameters(learner: Any, alpha: Any, beta: Any, decay: Any, l2: Any) -> Any:
    return Ftrl(with_parameters(learner.rate, alpha, beta, decay), l2)


has_no_lazy_state(Ftrl)
learns_by_gradient(Ftrl)
