"""LocalProblem: one worker's part of a problem: its rows, as losses, gradients, curvature and local solutions.

Every method's local work is here. Two solvers:

- `descend`: a corrected quadratic model of the whole objective, minimised by coordinate descent. The model has the
  global gradient, the curvature of the shard's own rows exactly, that of other shards by its diagonal, and by their
  whole Hessian among the head keys.
- `solve_admm`: the shard's loss plus pull (w - center) + rho/2 (w - center)^2, by FTRL-Proximal passes, then by
  Newton steps with a line search, each solved by coordinate descent (Yuan, Ho and Lin, JMLR 2012, section 3).

Deterministic: the order of coordinates is drawn from a seed that the caller gives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.distributed import shard_kernels as kernels
from trainer.distributed.problem import Numbers, Problem
from trainer.distributed.shard import Shard
from trainer.distributed.shard_kernels import Quadratic
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

Indices = npt.NDArray[np.int64]


class Point(NamedTuple):
    """The shard's loss at some weights: scores, errors and curvature float64[variants * rows], the summed loss."""

    scores: Numbers
    errors: Numbers
    curvature: Numbers
    loss: float


class LocalProblem:
    """One problem on one shard. keys: how many the shard has; used: bool[keys], those that may have a weight."""

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
        self._rows, self._held, self._columns = shard.rows, shard.held, shard.columns
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

    def scores(self, weights: Numbers) -> Numbers:
        """The scores of the shard's rows: float64[variants * rows]."""
        scores = np.empty(self.variants * self.size)
        kernels.scores_of(self._rows, self._bits, weights, scores)
        return scores

    def gradient(self, point: Point) -> Numbers:
        """The gradient of the shard's loss: float64[keys], 0 where the problem does not use the key."""
        gradient = np.empty(self.keys)
        kernels.gradient_of(self._columns, self.size, self.variants, self._bits, point.errors, gradient)
        gradient[~self.used] = 0.0
        return gradient

    def losses(self, point: Point, first: Numbers, second: Numbers, steps: Numbers) -> Numbers:
        """The loss where the scores are changed by steps[i, 0] first + steps[i, 1] second: float64[steps]."""
        out = np.zeros(len(steps))
        kernels.losses_along(self._rows, point.scores, first, second, steps, out)
        return out

    def held_loss(self, weights: Numbers) -> float:
        """The summed loss of the held-out rows."""
        scores = self.held_scores(weights)
        none, out = np.zeros_like(scores), np.zeros(1)
        kernels.losses_along(self._held, scores, none, none, np.zeros((1, 2)), out)
        return float(out[0])

    def held_scores(self, weights: Numbers) -> Numbers:
        """The scores of the held-out rows: float64[variants * rows]."""
        scores = np.empty(self.variants * self._held.labels.size)
        kernels.scores_of(self._held, self._bits, weights, scores)
        return scores

    def squares(self, point: Point, keys: Indices) -> Numbers:
        """The sum of the squared gradients of single rows by the weights of some keys: float64[keys]."""
        out = np.empty(keys.size)
        kernels.squares_of(self._columns, self.size, self.variants, self._bits, point.errors, keys, out)
        return out

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
    ) -> tuple[Numbers, int]:  # fmt: skip
        """Minimise the corrected model over some keys; returns their displacements, float64[keys], and the rounds.

        gradient: global, own: the shard's, both float64[keys chosen]; totals, reach: the keys' reach in all shards and
        in this one, likewise; damping: multiplies the curvature of other shards outside the head; caution: how often
        the largest curvature that a key's rows can have, reach / 4, is added; other: their Hessian among the head.
        """
        curvature = self._curvature(point, keys)
        share = (totals - reach) / reach
        head_of = self._head_of(head)[keys]
        diagonal = np.where(head_of >= 0, 0.0, damping * curvature * share) + _FLOOR + self.l2[keys]
        diagonal += caution * reach / 4.0
        linear = gradient - own + self.l2[keys] * weights[keys]
        model = Quadratic(keys, linear, diagonal, curvature, self.l1[keys], weights[keys], head_of, other)
        moved, _, rounds = self._solve(point, model, MOST_ROUNDS, seed)
        return moved, rounds

    def solve_admm(
        self, start: Numbers, pull: Numbers, rho: float, center: Numbers, seed: list[int], passes: int
    ) -> Numbers:
        """Minimise the loss + pull (w - center) + rho/2 (w - center)^2 from `start`: float64[keys].

        passes: of FTRL-Proximal, before the Newton steps.
        """
        w = start.copy()
        keys = np.flatnonzero(self.used & (self.counts > 0))
        if not keys.size:
            return w
        for _ in range(passes):
            self._ftrl(w, pull, rho, center)
        point = self.at(w)
        value = point.loss + _proximal(w, pull, rho, center)
        for number in range(NEWTON_STEPS):
            linear = (pull + rho * (w - center))[keys]
            diagonal, nothing = np.full(keys.size, rho), np.zeros(keys.size)
            model = Quadratic(
                keys, linear, diagonal, self._curvature(point, keys), nothing, w[keys],
                np.full(keys.size, -1, np.int32), np.zeros((0, 0)),
            )  # fmt: skip
            moved, change, _ = self._solve(point, model, MOST_ROUNDS, [*seed, number])
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
        learner = Ftrl(Gradients(self.problem.alpha, self.problem.beta), 0.0)
        before = self.at(w)
        n = np.zeros(self.keys)
        keys = np.arange(self.keys)
        n[:] = self.squares(before, keys)
        a = -w * (self.problem.beta + np.sqrt(n)) / self.problem.alpha
        kernels.ftrl_pass(
            self._rows, self.variants, self._bits, learner, np.zeros((1, LAZY_SIZE)), pull, rho, center,
            np.maximum(self.counts, 1.0), a, n, w,
        )  # fmt: skip

    def _solve(
        self, point: Point, model: Quadratic, most: int, seed: list[int]
    ) -> tuple[Numbers, Numbers, int]:
        moved, change = np.zeros(model.keys.size), np.zeros_like(point.scores)
        order = np.random.Generator(np.random.PCG64(seed)).permutation(model.keys.size)
        rounds = 0
        if order.size:
            rounds = kernels.descend(
                self._columns, self.variants, self._bits, point.errors, point.curvature, model, order, most, ENOUGH,
                moved, change, np.zeros(len(model.other)),
            )  # fmt: skip
        return moved, change, int(rounds)

    def _curvature(self, point: Point, keys: Indices) -> Numbers:
        out = np.empty(keys.size)
        kernels.curvature_of(self._columns, self.size, self.variants, self._bits, point.curvature, keys, out)
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
