"""FTRL-Proximal (McMahan et al., KDD 2013, algorithm 1): the value is z."""

from __future__ import annotations

import math

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    if abs(value) <= p.l1:
        return 0.0
    return -(value - math.copysign(p.l1, value)) / ((p.beta + math.sqrt(n)) / p.alpha + p.l2)


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    sigma = (math.sqrt(at.n) - math.sqrt(at.n_before)) / p.alpha
    return value + g - sigma * w
