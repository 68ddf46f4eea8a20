"""Online gradient descent (Zinkevich, ICML 2003): w <- w - eta g."""

from __future__ import annotations

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    return value


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    return value - at.eta * g
