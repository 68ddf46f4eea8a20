"""FTRL-Proximal by its definition: the whole history, and a numeric minimum of the proximal objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass
class Coordinate:
    """One coordinate's history since its first gradient that is not 0."""

    w: float
    gradients: list[float] = field(default_factory=list)
    sigmas: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def step(self, g: float, base: float, slope: float, l1: float, l2: float) -> None:
        """One step with 1 / eta = base + slope sqrt(n), which may differ from the one before."""
        if g == 0.0 and not self.gradients:
            return
        self.gradients.append(g)
        inverse_rate = base + slope * np.sqrt(np.sum(np.square(self.gradients)))
        self.sigmas.append(inverse_rate - sum(self.sigmas))
        self.weights.append(self.w)
        self.w = self._minimum(l1, l2)

    def _minimum(self, l1: float, l2: float) -> float:
        """The zero of the objective's derivative, which only grows, by bisection."""
        g, sigmas, weights = (np.array(each) for each in (self.gradients, self.sigmas, self.weights))

        def derivative(w: float) -> float:
            return float(g.sum() + np.sum(sigmas * (w - weights)) + l1 * np.sign(w) + l2 * w)

        low, high = -1e3, 1e3
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
        return (low + high) / 2


def play(
    initial: Numbers, gradients: Numbers, rates: Sequence[Mapping[str, float]], *, l1: float, l2: float
) -> Numbers:
    """The weights after each step: float64[steps, coordinates]; gradients likewise; rates: base and slope of each."""
    coordinates = [Coordinate(float(w)) for w in initial]
    out = np.empty_like(gradients)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True)):
        for i, g in enumerate(gradient):
            coordinates[i].step(float(g), **rate, l1=l1, l2=l2)
            out[t, i] = coordinates[i].w
    return out
