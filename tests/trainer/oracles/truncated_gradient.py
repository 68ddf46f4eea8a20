"""Truncated gradient (Langford, Li and Zhang, JMLR 2009, section 3.3): at every k-th example, small weights shrink."""

from __future__ import annotations

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    return value


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    v = value - at.eta * g
    if at.t % p.k != 0 or abs(v) > p.theta:
        return v
    a = p.l1 if p.shrink == "fixed" else p.k * at.eta * p.l1
    if v >= 0:
        return max(0.0, v - a)
    return min(0.0, v + a)
