"""Regularized dual averaging: the value is G, the sum of all gradients.

Global rate: Xiao (JMLR 2010), the l1 form with an added l2, gamma = 1 / alpha. Rate from gradients: the primal-dual
AdaGrad of Duchi, Hazan and Singer (JMLR 2011) for l1 and a diagonal H = (beta + sqrt(n)) / alpha, with an added l2.
Constant rate: the same with n = 0, which is Xiao's with beta_t = gamma = beta / alpha in place of gamma sqrt(t).
"""

from __future__ import annotations

import math

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    if t == 0:
        return 0.0
    mean = value / t
    if abs(mean) <= p.l1:
        return 0.0
    return -(mean - math.copysign(p.l1, mean)) / (p.l2 + 1.0 / (p.alpha * math.sqrt(t)))


def weight_of_gradients(value: float, n: float, t: int, p: Parameters) -> float:
    if abs(value) <= t * p.l1:
        return 0.0
    return -(value - math.copysign(t * p.l1, value)) / (t * p.l2 + p.inverse_rate(n))


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    return value + g
