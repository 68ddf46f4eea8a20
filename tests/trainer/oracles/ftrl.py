"""FTRL-Proximal (McMahan et al., KDD 2013, algorithm 1): the value is z; sigma = 1 / eta_t - 1 / eta_(t-1)."""

from __future__ import annotations

import math

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    if abs(value) <= p.l1:
        return 0.0
    return -(value - math.copysign(p.l1, value)) / (p.inverse_rate(n) + p.l2)


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    sigma = p.inverse_rate(at.n) - p.inverse_rate(at.n_before)
    return value + g - sigma * w
