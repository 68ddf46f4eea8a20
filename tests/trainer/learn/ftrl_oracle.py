"""FTRL-Proximal with the single value structure, in plain Python: slow, obvious, the judge of the kernel.

It follows algorithm 1 of McMahan et al. (KDD 2013) and the definition in section 4.4 word for word: every variant that
uses a key computes the key's new (z, n) as if it were alone, and their means are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class FtrlOracle:
    alpha: float
    beta: float
    l1: float
    l2: float
    variants: int
    z: dict[bytes, float] = field(default_factory=dict)
    n: dict[bytes, float] = field(default_factory=dict)

    def weight(self, key: bytes) -> float:
        z, n = self.z.get(key, 0.0), self.n.get(key, 0.0)
        if abs(z) <= self.l1:
            return 0.0
        sign = 1.0 if z > 0 else -1.0
        return -(z - sign * self.l1) / ((self.beta + math.sqrt(n)) / self.alpha + self.l2)

    def learn(self, keys: Sequence[tuple[bytes, float, int]], label: float, omega: float) -> list[float]:
        """Learn one example of (key, x, variant mask); return every variant's score before it was learned."""
        weights = [self.weight(key) for key, _, _ in keys]
        scores = []
        for variant in range(self.variants):
            scores.append(
                sum(w * x for w, (_, x, mask) in zip(weights, keys, strict=True) if mask >> variant & 1)
            )
        probabilities = [1.0 / (1.0 + math.exp(-score)) for score in scores]
        for w, (key, x, mask) in zip(weights, keys, strict=True):
            self._step(key, w, x, [p for v, p in enumerate(probabilities) if mask >> v & 1], label, omega)
        return scores

    def _step(self, key: bytes, w: float, x: float, users: list[float], label: float, omega: float) -> None:
        if not users:
            return
        z, n = self.z.get(key, 0.0), self.n.get(key, 0.0)
        new_z, new_n = [], []
        for probability in users:
            g = omega * (probability - label) * x
            sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / self.alpha
            new_z.append(z + g - sigma * w)
            new_n.append(n + g * g)
        self.z[key] = sum(new_z) / len(users)
        self.n[key] = sum(new_n) / len(users)
