"""What all textbook learners share: at every example ALL known coordinates take a step, whether it touches them or not.

A learner is two functions, in a file of its own: the weight that a coordinate's value stands for, and the value after
one example. Here are scores, gradients, rates, the two value structures and the rounding of q2.13. Nothing is lazy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Keys = Sequence[tuple[bytes, float, int]]


class Parameters(NamedTuple):
    """A learner's parameters, named as in the spec."""

    alpha: float
    beta: float
    l1: float = 0.0
    l2: float = 0.0
    k: int = 1
    theta: float = 0.0
    shrink: str = "rate"

    def inverse_rate(self, n: float) -> float:
        """1 / eta of a coordinate with this n."""
        return (self.beta + math.sqrt(n)) / self.alpha


class Moment(NamedTuple):
    """A coordinate at example t (from 1): its rate eta, its n without and with it, and whether the example has it."""

    t: int
    eta: float
    n_before: float
    n: float
    touched: bool


class Learner(NamedTuple):
    """weight(value, n, t, parameters) after t examples; step(value, weight, g, moment, parameters) -> new value.

    scaled: q2.13 keeps eta times the value, which is then of a weight's size (FTRL's z).
    """

    weight: Callable[[float, float, int, Parameters], float]
    step: Callable[[float, float, float, Moment, Parameters], float]
    scaled: bool = False


@dataclass
class Coordinate:
    """One key: the variants that use it, its clicked and unclicked examples, a value and an n for each place."""

    users: list[int]
    value: list[float]
    n: list[float]
    clicked: int = 0
    unclicked: int = 0


@dataclass
class Oracle:
    """A dense learner of several variants, which share one value a key or (`per_variant`) have one each.

    parameters: one for each variant. rate: gradients, counts, global or constant. rounding(key, t, place): the R of
    q2.13, uniform on [0, 1); None keeps every bit. rules: parameters of the keys with a prefix; the longest prefix
    wins. fixed: keys whose weight is given and not learned. averages: variants that are the average of another, with
    its number and the half-life, None for polynomial decay. fake_negatives: examples are negatives first, and are
    weighed by Ktena et al., RecSys 2019.
    """

    learner: Learner
    parameters: Sequence[Parameters]
    rate: str
    per_variant: bool = False
    rounding: Callable[[bytes, int, int], float] | None = None
    rules: Mapping[bytes, Mapping[str, float]] = field(default_factory=dict)
    fixed: Mapping[bytes, float] = field(default_factory=dict)
    averages: Mapping[int, tuple[int, float | None]] = field(default_factory=dict)
    fake_negatives: bool = False
    averaged: dict[tuple[bytes, int], float] = field(default_factory=dict)
    t: int = 0
    coordinates: dict[bytes, Coordinate] = field(default_factory=dict)

    def learn(self, keys: Keys, label: float, omega: float) -> list[float]:
        """Learn one example of (key, x, variant mask); return every variant's score before it was learned."""
        several = range(len(self.parameters))
        given = [(self.fixed[key] * x, mask) for key, x, mask in keys if key in self.fixed]
        margins = [sum(part for part, mask in given if mask >> variant & 1) for variant in several]
        keys = [each for each in keys if each[0] not in self.fixed]
        x_of = {key: x for key, x, _ in keys}
        for key, _, mask in keys:
            self._know(key, mask)
        scores = [margins[variant] + self._score(x_of, variant) for variant in several]
        rates = [1.0 / (1.0 + math.exp(-score)) for score in scores]
        omegas = [
            omega * ((1.0 + p) * (1.0 if label else 1.0 - p) if self.fake_negatives else 1.0) for p in rates
        ]
        errors = [mine * (p - label) for mine, p in zip(omegas, rates, strict=True)]
        weights = {
            key: {variant: self.weight(key, variant) for variant in known.users}
            for key, known in self.coordinates.items()
        }
        counted = {key: self._counted(known) for key, known in self.coordinates.items()}
        self.t += 1
        for key in x_of:
            self.coordinates[key].clicked += int(label == 1.0)
            self.coordinates[key].unclicked += int(label == 0.0)
        for key in self.coordinates:
            x = x_of.get(key, 0.0)
            self._step(key, weights[key], [error * x for error in errors], counted[key], key in x_of)
        self._average()
        return scores

    def _average(self) -> None:
        for variant, (of, half_life) in self.averages.items():
            share = 10.0 / (self.t + 9)
            if half_life is not None:
                share = max(1.0 / self.t, 1.0 - 2.0 ** (-1.0 / half_life))
            for key, known in self.coordinates.items():
                if variant in known.users:
                    before = self.averaged.get((key, variant), 0.0)
                    self.averaged[key, variant] = before + share * (self.weight(key, of) - before)

    def weight(self, key: bytes, variant: int) -> float:
        """A variant's weight of a key, after the examples so far."""
        if variant in self.averages:
            return self.averaged.get((key, variant), 0.0)
        known = self.coordinates[key]
        place = variant if self.per_variant else 0
        n = self._counted(known) if self.rate == "counts" else known.n[place]
        return self.learner.weight(known.value[place], n, self.t, self._parameters(key, variant))

    def _parameters(self, key: bytes, variant: int) -> Parameters:
        own = self.parameters[variant]
        for prefix in sorted((prefix for prefix in self.rules if key.startswith(prefix)), key=len):
            own = own._replace(**self.rules[prefix])
        return own

    def _know(self, key: bytes, mask: int) -> None:
        variants = len(self.parameters)
        if key not in self.coordinates:
            users = [variant for variant in range(variants) if mask >> variant & 1]
            places = variants if self.per_variant else 1
            self.coordinates[key] = Coordinate(users, [0.0] * places, [0.0] * places)

    def _score(self, x_of: dict[bytes, float], variant: int) -> float:
        users = {key: self.coordinates[key].users for key in x_of}
        return sum(x * self.weight(key, variant) for key, x in x_of.items() if variant in users[key])

    def _counted(self, known: Coordinate) -> float:
        both = known.clicked + known.unclicked
        return known.clicked * known.unclicked / both if both else 0.0

    def _step(
        self, key: bytes, weights: dict[int, float], g: Sequence[float], counted: float, touched: bool
    ) -> None:
        """Every variant that uses the key computes the new state as if alone; one shared place gets their mean."""
        known = self.coordinates[key]
        new_value, new_n = {}, {}
        learning = [variant for variant in known.users if variant not in self.averages]
        for variant in learning:
            place = variant if self.per_variant else 0
            before = counted if self.rate == "counts" else known.n[place]
            after = self._n_after(known, before, g[variant])
            parameters = self._parameters(key, variant)
            moment = Moment(self.t, self._eta(after, parameters), before, after, touched)
            new_value[variant] = self.learner.step(
                known.value[place], weights[variant], g[variant], moment, parameters
            )
            new_n[variant] = after
        if self.per_variant:
            for variant in learning:
                known.value[variant], known.n[variant] = new_value[variant], new_n[variant]
        else:
            known.value[0] = sum(new_value.values()) / len(known.users)
            known.n[0] = sum(new_n.values()) / len(known.users)
        if touched and self.rounding is not None:
            self._round(key, known)

    def _n_after(self, known: Coordinate, before: float, g: float) -> float:
        if self.rate == "gradients":
            return before + g * g
        return self._counted(known) if self.rate == "counts" else 0.0

    def _eta(self, n: float, p: Parameters) -> float:
        if self.rate == "global":
            return p.alpha / math.sqrt(self.t)
        if self.rate == "constant":
            return p.alpha / p.beta
        return p.alpha / (p.beta + math.sqrt(n)) if p.beta or n else math.inf

    def _round(self, key: bytes, known: Coordinate) -> None:
        """q2.13 (the paper, section 4.5): the weight, or FTRL's eta z, rounded at random so that the mean is kept."""
        assert self.rounding is not None
        for place in range(len(known.value)):
            n = self._counted(known) if self.rate == "counts" else known.n[place]
            eta = self._eta(n, self._parameters(key, place)) if self.learner.scaled else 1.0
            steps = math.floor(2**13 * (eta * known.value[place]) + self.rounding(key, self.t, place))
            known.value[place] = min(max(steps, -(2**15)), 2**15 - 1) / 2**13 / eta
