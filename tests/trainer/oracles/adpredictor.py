"""AdPredictor (Graepel et al., ICML 2010, sections 3 and 4): a normal distribution per key, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

from model_store.spec.keys import BIAS
from tests.trainer.oracles.dense import Keys

STANDARD = NormalDist()


class Prior(NamedTuple):
    """A variant's prior variance of a weight, its noise, and the prior mean of its bias."""

    variance: float
    noise: float
    bias: float = 0.0


@dataclass
class Belief:
    mean: float
    variance: float


@dataclass
class Coordinate:
    """One key: the variants that use it, and a belief for each place."""

    users: list[int]
    beliefs: list[Belief]


def phi(t: float) -> float:
    return math.exp(-t * t / 2.0) / math.sqrt(2.0 * math.pi)


def v_and_w(t: float) -> tuple[float, float]:
    """φ(t) / Φ(t), and v (v + t): by definition where Φ has digits, else by the series of Mills' ratio."""
    if t > -5.0:
        v = phi(t) / (0.5 * math.erfc(-t / math.sqrt(2.0)))
        return v, v * (v + t)
    mills = 0.0  # Laplace's continued fraction of Φ(t) / φ(t)
    for k in range(400, 0, -1):
        mills = k / (-t + mills)
    return -t + mills, (-t + mills) * mills


@dataclass
class AdPredictorOracle:
    """One belief a key, shared by the variants, or (`per_variant`) one for each. `priors`: one for each variant."""

    priors: Sequence[Prior]
    forgetting: float = 0.0
    per_variant: bool = False
    t: int = 0
    coordinates: dict[bytes, Coordinate] = field(default_factory=dict)

    def learn(self, keys: Keys, label: float, omega: float) -> list[float]:
        """Learn one example of (key, x, variant mask); return every variant's score in deviations before it."""
        for key, _, mask in keys:
            self._know(key, mask)
        first: list[float] = []
        learned = 0.0
        while omega - learned > 1e-12 * omega:
            part = min(omega - learned, 1.0 if learned < 1000.0 else 0.1 * learned)
            latent = self._observe(keys, label, part)
            first, learned = first or latent, learned + part
        self.t += 1
        return first

    def weight(self, key: bytes, variant: int) -> float:
        """A variant's mean of a key's weight."""
        return self.coordinates[key].beliefs[variant if self.per_variant else 0].mean

    def variance(self, key: bytes, variant: int) -> float:
        """A variant's variance of a key's weight."""
        return self.coordinates[key].beliefs[variant if self.per_variant else 0].variance

    def _know(self, key: bytes, mask: int) -> None:
        if key not in self.coordinates:
            priors = self.priors if self.per_variant else self.priors[:1]
            beliefs = [Belief(p.bias if key == BIAS else 0.0, p.variance) for p in priors]
            users = [v for v in range(len(self.priors)) if mask >> v & 1]
            self.coordinates[key] = Coordinate(users, beliefs)

    def _observe(self, keys: Keys, label: float, omega: float) -> list[float]:
        y = 1.0 if label else -1.0
        latent, slopes, bends = [], [], []
        for variant, prior in enumerate(self.priors):
            mine = [(key, x) for key, x, _ in keys if variant in self.coordinates[key].users]
            total = prior.noise**2 + sum(x * x * self.variance(key, variant) for key, x in mine)
            deviation = math.sqrt(total)
            latent.append(sum(x * self.weight(key, variant) for key, x in mine) / deviation)
            v, w = v_and_w(y * latent[-1])
            slopes.append(omega * y * v / deviation)
            bends.append(omega * w / total)
        for key, x, _ in keys:
            known = self.coordinates[key]
            for place in known.users if self.per_variant else [0]:
                users = [place] if self.per_variant else known.users
                belief = known.beliefs[place]
                mean = sum(belief.mean + x * belief.variance * slopes[v] for v in users) / len(users)
                left = sum(1.0 - x * x * belief.variance * bends[v] for v in users) / len(users)
                known.beliefs[place] = self._forget(
                    Belief(mean, belief.variance * max(left, 1.0 / 1024.0)), key, place
                )
        return latent

    def _forget(self, belief: Belief, key: bytes, place: int) -> Belief:
        prior, kept = self.priors[place], 1.0 - self.forgetting
        mean = prior.bias if key == BIAS else 0.0
        variance = 1.0 / (kept / belief.variance + self.forgetting / prior.variance)
        new_mean = variance * (kept * belief.mean / belief.variance + self.forgetting * mean / prior.variance)
        return Belief(new_mean, variance)
