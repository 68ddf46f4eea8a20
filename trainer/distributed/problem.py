"""Problems: what a distributed run minimises, and one worker's part of it.

There is one problem for each variant, or one for all that share their values:

    F(w) = ( sum over rows of omega * logloss + sum over keys of (l1 |w| + l2 w^2 / 2) ) / m

m is the sum of the rows' importances omega. l1 and l2 are those of the spec, which scales them as scikit-learn does:
C = 1 / l1. Where V variants share values, every row counts once for each variant with the variant's keys, a key's
penalty once for each variant that uses it, and m is V times as large: the minimum is where the mean over a key's
variants of gradient and penalty is 0, as in the online learner (KDD 2013, section 4.4).

A `LocalProblem` is a worker's part: its rows, as losses, gradients, curvature and local solutions. Two solvers:

- `descend`: a corrected quadratic model of the whole objective, minimised by coordinate descent. The model has the
  global gradient, the curvature of the shard's own rows exactly, that of other shards by its diagonal, and by their
  whole Hessian among the head keys.
- `solve_admm`: the shard's loss plus pull (w - center) + rho/2 (w - center)^2, by FTRL-Proximal passes, then by
  Newton steps with a line search, each solved by coordinate descent (Yuan, Ho and Lin, JMLR 2012, section 3).

Deterministic: the order of coordinates is drawn from a seed that the caller gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from trainer.distributed import shard_kernels as kernels
from trainer.distributed.shard import Shard
from trainer.distributed.shard_kernels import Quadratic, ShardRows
from trainer.examples.rules import FeatureRules
from trainer.learn.learners.ftrl import Ftrl
from trainer.learn.learners.operations import LAZY_SIZE
from trainer.learn.learners.rates import Gradients

MOST_ROUNDS = 10
"""Rounds of coordinate descent for a model: more of them solve it better than it describes the objective."""
ENOUGH = 1e-2
"""A model is solved once a round's steps are this share of the first round's."""
NEWTON_STEPS = 3
_FLOOR = 1e-9
_ARMIJO = 1e-4
_SHORTEST = 1e-4

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """One minimisation.

    name: of the variant, or "all" where variants share values; column: of its weights among the model's; variants: how
    many share it; bits: uint32[features], bit v set where variant v uses the feature; l1, l2: float64[features];
    alpha, beta: of the FTRL passes.
    """

    name: str
    column: int
    variants: int
    bits: npt.NDArray[np.uint32]
    l1: Numbers
    l2: Numbers
    alpha: float
    beta: float


def problems_of(
    spec: ModelSpec, masks: npt.NDArray[np.uint32], rules: FeatureRules, l1: float | None = None
) -> Sequence[Problem]:
    """The problems of a resolved spec. masks: uint32[features], bit v set where variant v uses the feature.

    l1: instead of the learner's and the variants' own, not of that of rules.
    """
    section, several = spec.learner, len(spec.variants)
    groups: list[tuple[str, int, int, npt.NDArray[np.uint32], dict[str, float]]]
    if section.values != "per_variant" or several == 1:
        groups = [(next(iter(spec.variants)) if several == 1 else "all", 0, several, masks, {})]
    else:
        groups = [
            (name, v, 1, masks >> np.uint32(v) & np.uint32(1), dict(variant.own_parameters))
            for v, (name, variant) in enumerate(spec.variants.items())
        ]
    given = {} if l1 is None else {"l1": l1}
    found = []
    for name, column, variants, bits, own in groups:
        values = {each: getattr(section, each) for each in ("alpha", "beta", "l1", "l2")} | own | given
        using = np.bitwise_count(bits).astype(np.float64)
        # A feature without a rule has NaN.
        l1s = values["l1"] if rules.l1 is None else np.where(np.isnan(rules.l1), values["l1"], rules.l1)
        penalties = l1s * using, values["l2"] * using
        found.append(Problem(name, column, variants, bits, *penalties, values["alpha"], values["beta"]))
    return found


class Point(NamedTuple):
    """The shard's loss at some weights: scores, errors and curvature float64[variants * rows], the summed loss."""

    scores: Numbers
    errors: Numbers
    curvature: Numbers
    loss: float


class LocalProblem:
    """One problem on one shard.

    keys: how many the shard has; used: bool[keys], those that may have a weight; held: the held-out rows.
    """

    def __init__(self, shard: Shard, problem: Problem) -> None:
        features = shard.keys.features
        self.problem = problem
        self.variants = problem.variants
        self.keys = int(features.size)
        self.counts = shard.keys.counts
        bits = problem.bits[features]
        self.used = bits != 0
        self.l1, self.l2 = problem.l1[features], problem.l2[features]
        self._bits = bits if self.variants > 1 else np.empty(0, np.uint32)
        self._rows, self.held, self._columns = shard.rows, shard.held, shard.columns
        self._longest = int(np.diff(shard.rows.starts).max(initial=0))
        self.size = int(shard.rows.labels.size)
        self.weight = shard.rows.importance * self.variants
        self.held_weight = shard.held.importance * self.variants

    def at(self, weights: Numbers) -> Point:
        """The shard's loss at float64[keys] weights."""
        scores = self.scores(weights)
        errors, curvature = np.empty_like(scores), np.empty_like(scores)
        loss = kernels.derivatives_of(self._rows, scores, errors, curvature)
        return Point(scores, errors, curvature, float(loss))

    def scores(self, weights: Numbers, rows: ShardRows | None = None) -> Numbers:
        """The scores of the shard's rows, or of others such as `held`: float64[variants * rows]."""
        rows = self._rows if rows is None else rows
        scores = np.empty(self.variants * rows.labels.size)
        kernels.scores_of(rows, self._bits, weights, scores)
        return scores

    def gradient(self, point: Point) -> Numbers:
        """The gradient of the shard's loss: float64[keys], 0 where the problem does not use the key."""
        gradient, keys = np.zeros(self.keys), np.flatnonzero(self.used)
        gradient[keys] = self._by_key(kernels.gradient_of, point.errors, False, keys)
        return gradient

    def losses(self, point: Point, first: Numbers, second: Numbers, steps: Numbers) -> Numbers:
        """The loss where the scores are changed by steps[i, 0] first + steps[i, 1] second: float64[steps]."""
        out = np.zeros(len(steps))
        kernels.losses_along(self._rows, point.scores, first, second, steps, out)
        return out

    def held_loss(self, weights: Numbers) -> float:
        """The summed loss of the held-out rows."""
        scores = self.scores(weights, self.held)
        none, out = np.zeros_like(scores), np.zeros(1)
        kernels.losses_along(self.held, scores, none, none, np.zeros((1, 2)), out)
        return float(out[0])

    def squares(self, point: Point, keys: Indices) -> Numbers:
        """The sum of the squared gradients of single rows by the weights of some keys: float64[keys]."""
        return self._by_key(kernels.gradient_of, point.errors, True, keys)

    def head_hessian(self, point: Point, head: Indices) -> Numbers:
        """The Hessian of the shard's loss among the head keys, -1 for one that it lacks: float64[head, head]."""
        hessian = np.zeros((head.size, head.size))
        found, values = np.empty(self._longest, np.int64), np.empty(self._longest)
        head_of = self._head_of(head)
        kernels.add_head_hessian(
            self._rows, self.variants, self._bits, point.curvature, head_of, hessian, found, values
        )
        return hessian + np.triu(hessian, 1).T

    def descend(
        self, point: Point, weights: Numbers, keys: Indices, gradient: Numbers, own: Numbers, totals: Numbers,
        reach: Numbers, damping: float, caution: float, head: Indices, other: Numbers, seed: list[int],
    ) -> Numbers:  # fmt: skip
        """Minimise the corrected model over some keys; returns their displacements, float64[keys].

        gradient: global, own: the shard's, both float64[keys chosen]; totals, reach: the keys' reach in all shards and
        in this one, likewise; damping: multiplies the curvature of other shards outside the head; caution: how often
        the largest curvature that a key's rows can have, reach / 4, is added; other: their Hessian among the head.
        """
        curvature = self._by_key(kernels.curvature_of, point.curvature, keys)
        share = (totals - reach) / reach
        head_of = self._head_of(head)[keys]
        diagonal = np.where(head_of >= 0, 0.0, damping * curvature * share) + _FLOOR + self.l2[keys]
        diagonal += caution * reach / 4.0
        linear = gradient - own + self.l2[keys] * weights[keys]
        model = Quadratic(keys, linear, diagonal, curvature, self.l1[keys], weights[keys], head_of, other)
        return self._solve(point, model, seed)[0]

    def solve_admm(
        self, center: Numbers, pull: Numbers, rho: float, seed: list[int], *, by_ftrl: bool
    ) -> Numbers:
        """Minimise the loss + pull (w - center) + rho/2 (w - center)^2 from `center` on: float64[keys].

        by_ftrl: with a pass of FTRL-Proximal before the Newton steps.
        """
        w = center.copy()
        keys = np.flatnonzero(self.used & (self.counts > 0))
        if not keys.size:
            return w
        if by_ftrl:
            self._ftrl(w, pull, rho, center)
        point = self.at(w)
        value = point.loss + _proximal(w, pull, rho, center)
        for number in range(NEWTON_STEPS):
            linear = (pull + rho * (w - center))[keys]
            diagonal, nothing = np.full(keys.size, rho), np.zeros(keys.size)
            curvature = self._by_key(kernels.curvature_of, point.curvature, keys)
            without_head = np.full(keys.size, -1, np.int32), np.zeros((0, 0))
            model = Quadratic(keys, linear, diagonal, curvature, nothing, w[keys], *without_head)
            moved, change = self._solve(point, model, [*seed, number])
            slope = float(point.errors @ change + linear @ moved)
            size, direction = 1.0, np.zeros(self.keys)
            direction[keys] = moved
            while True:
                new = w + size * direction
                loss = self.losses(point, change, change, np.array([[size, 0.0]]))[0]
                lower = loss + _proximal(new, pull, rho, center)
                if lower <= value + _ARMIJO * size * slope or size < _SHORTEST:
                    break
                size /= 2.0
            if lower >= value:
                break
            done = value - lower < _FLOOR * abs(value)
            w, value = new, lower
            if done:
                break
            point = self.at(w)
        return w

    def _ftrl(self, w: Numbers, pull: Numbers, rho: float, center: Numbers) -> None:
        """Change w by a pass over the rows that begins with the squared gradients at w."""
        alpha, beta = self.problem.alpha, self.problem.beta
        n = self.squares(self.at(w), np.arange(self.keys))
        kernels.ftrl_pass(
            self._rows, self.variants, self._bits, Ftrl(Gradients(alpha, beta), 0.0), np.zeros((1, LAZY_SIZE)),
            pull, rho, center, np.maximum(self.counts, 1.0), -w * (beta + np.sqrt(n)) / alpha, n, w,
        )  # fmt: skip

    def _solve(self, point: Point, model: Quadratic, seed: list[int]) -> tuple[Numbers, Numbers]:
        """The displacements that minimise a model, and how they change the scores."""
        moved, change = np.zeros(model.keys.size), np.zeros_like(point.scores)
        order = np.random.Generator(np.random.PCG64(seed)).permutation(model.keys.size)
        if order.size:
            kernels.descend(
                self._columns, self.variants, self._bits, point.errors, point.curvature, model, order, MOST_ROUNDS,
                ENOUGH, moved, change, np.zeros(len(model.other)),
            )  # fmt: skip
        return moved, change

    def _by_key(self, kernel: Any, of_rows: Numbers, *arguments: Any) -> Numbers:
        """What a kernel finds for some keys, its last argument, from numbers of the rows: float64[keys]."""
        out = np.empty(arguments[-1].size)
        kernel(self._columns, self.size, self.variants, self._bits, of_rows, *arguments, out)
        return out

    def _head_of(self, head: Indices) -> npt.NDArray[np.int32]:
        """Each key's index in the head, -1 for none: int32[keys]."""
        head_of = np.full(self.keys, -1, np.int32)
        held = np.flatnonzero(head >= 0)
        head_of[head[held]] = held
        return head_of


def reach_of(shard: Shard) -> Numbers:
    """The sum of omega |x| of each key, which bounds the gradient of the loss by its weight: float64[keys]."""
    if not shard.columns.x.size and not shard.rows.weights.size:
        counts: Numbers = shard.keys.counts
        return counts
    reach = np.empty(shard.keys.hashes.size)
    kernels.reach_of(shard.columns, shard.rows.weights, reach)
    return reach


def _proximal(w: Numbers, pull: Numbers, rho: float, center: Numbers) -> float:
    away = w - center
    return float(pull @ away + 0.5 * rho * (away @ away))
