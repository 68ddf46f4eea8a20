"""Online gradient descent (Zinkevich, ICML 2003), with l1 |w| + l2 w^2 / 2 added to the loss: w <- w - eta g'.

shrink = "touched": w of the example's keys only.
"""

from __future__ import annotations

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    return value


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    if p.shrink == "touched" and not at.touched:
        return value
    sign = (w > 0) - (w < 0)
    return value - at.eta * (g + p.l1 * sign + p.l2 * w)
