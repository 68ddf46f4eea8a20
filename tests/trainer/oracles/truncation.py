"""Simple coefficient rounding (Langford et al., JMLR 2009, section 3.1): every k-th example cuts what is small."""

from __future__ import annotations

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    return value


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    v = value - at.eta * g
    if at.t % p.k == 0 and abs(v) <= p.theta:
        return 0.0
    return v
