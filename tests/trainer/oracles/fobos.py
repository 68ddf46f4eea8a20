"""Forward-backward splitting (Duchi and Singer, JMLR 2009, its forms for l1 and l2): a step, then a proximal step.

The second step minimises (w - v)^2 / 2 + eta (l1 |w| + l2 w^2 / 2); shrink = "fixed": l2 is not multiplied by eta.
"""

from __future__ import annotations

import math

from tests.trainer.oracles.dense import Moment, Parameters


def weight(value: float, n: float, t: int, p: Parameters) -> float:
    return value


def step(value: float, w: float, g: float, at: Moment, p: Parameters) -> float:
    v = value - at.eta * g
    return (
        math.copysign(1.0, v)
        * max(0.0, abs(v) - at.eta * p.l1)
        / (1.0 + (p.l2 if p.shrink == "fixed" else at.eta * p.l2))
    )
