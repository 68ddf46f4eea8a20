"""FTRL-Proximal by its definition: the whole history, and a numeric minimum of the proximal objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


def play(
    initial: Numbers, gradients: Numbers, rates: Sequence[Mapping[str, float]], *, l1: float, l2: float
) -> Numbers:
    """The weights after each step: float64[steps, coordinates]; gradients likewise.

    rates: of each step base and slope of 1 / eta = base + slope sqrt(n), which may differ from those before.
    """
    out = np.empty_like(gradients)
    for i, start in enumerate(initial):
        w, sigmas, weights = float(start), list[float](), list[float]()
        begun = int(np.argmax(gradients[:, i] != 0.0)) if gradients[:, i].any() else len(gradients)
        for t, rate in enumerate(rates):
            if t >= begun:  # its history begins with its first gradient that is not 0
                history = gradients[begun : t + 1, i]
                sigmas.append(rate["base"] + rate["slope"] * np.sqrt(np.sum(history**2)) - sum(sigmas))
                weights.append(w)
                w = _minimum(history, np.array(sigmas), np.array(weights), l1, l2)
            out[t, i] = w
    return out


def _minimum(g: Numbers, sigmas: Numbers, weights: Numbers, l1: float, l2: float) -> float:
    """The zero of the objective's derivative, which only grows, by bisection."""
    low, high = -1e3, 1e3
    for _ in range(100):
        w = (low + high) / 2
        derivative = g.sum() + np.sum(sigmas * (w - weights)) + l1 * np.sign(w) + l2 * w
        low, high = (w, high) if derivative < 0 else (low, w)
    return (low + high) / 2
