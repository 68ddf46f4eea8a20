"""Reducer: a range of the keys' hashes: the common weights of its keys, and what the workers' parts sum to.

Each public method is a step, as in `worker.py`: `inbox` is what each worker sent; the list returned goes to the
workers. A key's reach is the sum of omega |x| of its occurrences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError
from trainer.distributed.problem import Numbers, Problem
from trainer.distributed.worker import (
    Inbox,
    KeyState,
    Outbox,
    Sparse,
    can_have_weight,
    pull_after,
    sparse,
    to_float32,
    triangle,
)

TINY = float(np.finfo(np.float64).tiny)
SCREEN = 0.9
"""Keys of weight 0 are active where their gradient exceeds this share of l1: they may get a weight once others move."""


class ScreenResult(NamedTuple):
    """penalty, nonzero: of theta; optimality: the squared norm of the objective's least subgradient.

    counts, hashes: of the active keys of greatest reach, which is in `counts`.
    """

    penalty: float
    nonzero: int
    optimality: float
    counts: Numbers
    hashes: npt.NDArray[np.uint64]


class Residuals(NamedTuple):
    """ADMM's squared residuals and what they are compared with (Boyd et al. 2011, section 3.3.1), all squared norms.

    weights: the greater of the workers' weights and the common ones; forces: the dual variables.
    """

    primal: float
    dual: float
    weights: float
    forces: float


_COLUMNS = ("theta", "step", "anchor", "best")
"""The parts of a state that have a number for each key; pull has one for each key of each worker."""


class Reducer:
    """One of several reducers. Arrays by key are in the order of the keys' hashes."""

    def __init__(self, index: int, workers: int) -> None:
        self._index, self._workers = index, workers
        self._state = KeyState.at(np.empty(0))
        self._kept: dict[int, tuple[Numbers, Numbers]] = {}

    def register(self, *, inbox: Inbox) -> Outbox:
        """Take every worker's keys. Returns their number."""
        self._hashes = np.unique(np.concatenate([part[0] for part in inbox]))
        self._all = [np.searchsorted(self._hashes, part[0]) for part in inbox]
        self._all_reach = [part[2] for part in inbox]
        self._features = np.zeros(self._hashes.size, np.uint16)
        self._totals, self._holders = np.zeros(self._hashes.size), np.zeros(self._hashes.size)
        for at, (_, features, reach) in zip(self._all, inbox, strict=True):
            self._features[at] = features
            self._totals[at] += reach
            self._holders[at] += reach > 0.0
        return self._hashes.size, None

    def begin(self, problem: Problem, *, inbox: Inbox = ()) -> Outbox:
        """Take a problem. Tells each worker the reach of its keys in all shards."""
        self._l1, self._l2 = problem.l1[self._features], problem.l2[self._features]
        self._used = problem.bits[self._features] != 0
        self._column = problem.column
        self._live = self._used & can_have_weight(self._totals, self._l1, problem.variants)
        self._at = [at[self._live[at]] for at in self._all]
        self._reach = [counts[self._live[at]] for at, counts in zip(self._all, self._all_reach, strict=True)]
        self._pulls = [np.zeros(at.size) for at in self._at]
        return None, [self._totals[at] for at in self._all]

    def average(self, *, inbox: Inbox) -> Outbox:
        """Commit iteration 0 at the mean of the workers' weights, each weighted by the key's reach there."""
        self._state = KeyState.at(to_float32(self._mean(inbox)))
        return None, [sparse(self._state.theta[at]) for at in self._at]

    def screen(self, most: int, *, inbox: Inbox) -> Outbox:
        """Sum the gradients; send those of the active keys. most: how many head keys to name."""
        theta = self._state.theta
        gradient = np.zeros(theta.size)
        for at, part in zip(self._at, inbox, strict=True):
            gradient[at] += part
        slope = gradient + self._l2 * theta
        active: npt.NDArray[np.bool_] = self._live & ((theta != 0.0) | (np.abs(slope) > SCREEN * self._l1))
        least = np.where(
            theta != 0.0, slope + np.copysign(self._l1, theta), np.maximum(np.abs(slope) - self._l1, 0.0)
        )
        chosen = np.flatnonzero(active)
        if chosen.size > most:
            chosen = np.sort(chosen[np.argsort(-self._totals[chosen], kind="stable")[:most]])
        penalty, nonzero = self._figures(theta)
        summary = ScreenResult(
            penalty, nonzero, float(np.square(least[self._used]).sum()), self._totals[chosen],
            self._hashes[chosen],
        )  # fmt: skip
        parts = []
        for at in self._at:
            index = np.flatnonzero(active[at])
            parts.append(Sparse(at.size, index.astype(np.uint32), gradient[at][index].astype(np.float32)))
        return summary, parts

    def sum_heads(self, *, inbox: Inbox) -> Outbox:
        """Reducer 0: the sum of the workers' Hessians among the head keys, for each worker."""
        if self._index:
            return None, None
        total = triangle(np.sum([part.full() for part in inbox], axis=0))
        return None, [total] * self._workers

    def combine(self, *, inbox: Inbox) -> Outbox:
        """The mean of the workers' displacements, weighted by reach. Returns the squared disagreement."""
        self._displacement = to_float32(self._mean(inbox))
        away = 0.0
        for at, reach, part in zip(self._at, self._reach, inbox, strict=True):
            share = reach / np.maximum(self._totals[at], TINY)
            away += float(share @ np.square(part.dense() - self._displacement[at]))
        return away, [sparse(self._displacement[at]) for at in self._at]

    def penalties(self, steps: Numbers, *, inbox: Inbox = ()) -> Outbox:
        """The penalty at theta + steps[i, 0] x the displacement + steps[i, 1] x the last step."""
        state = self._state
        keys = np.flatnonzero((state.theta != 0.0) | (self._displacement != 0.0) | (state.step != 0.0))
        theta, first, second, l1, l2 = (
            each[keys] for each in (state.theta, self._displacement, state.step, self._l1, self._l2)
        )
        found = []
        for size, again in steps:
            moved_to = theta + size * first + again * second
            found.append(float(l1 @ np.abs(moved_to) + 0.5 * (l2 @ np.square(moved_to))))
        return np.array(found), None

    def accept(self, size: float, again: float, renewed: bool, is_best: bool, *, inbox: Inbox = ()) -> Outbox:
        """Commit the next state: see `KeyState.moved`. Returns penalty and non-zeros."""
        self._state = self._state.moved(self._displacement, size, again, renewed=renewed, is_best=is_best)
        return self._figures(self._state.theta), None

    def agree(self, rho: float, plain: bool, is_best: bool, *, inbox: Inbox) -> Outbox:
        """ADMM: commit theta, the minimum of the penalty + rho/2 x squared distance from each worker's w + pull / rho.

        General-form consensus (Boyd et al. 2011, section 7.2): over the workers that hold the key; plain (section 7.1):
        over all. One that does not hold it minimises pull (w - theta) + rho/2 (w - theta)^2, so its w + pull / rho is
        theta, and its pull afterwards is -rho x the change of theta. is_best: as in `accept`. Returns penalty,
        non-zeros and `Residuals`.
        """
        before = self._state
        sums = np.zeros(before.theta.size)
        for at, part in zip(self._at, inbox, strict=True):
            sums[at] += part.dense()
        absent = self._workers - self._holders if plain else np.zeros(sums.size)
        holders = np.maximum(self._holders + absent, 1.0)
        middle = before.theta + sums / holders
        bend = rho * holders
        theta = np.copysign(np.maximum(np.abs(bend * middle) - self._l1, 0.0), middle) / (bend + self._l2)
        change = to_float32(np.where(self._used, theta - before.theta, 0.0))
        after = before.agreed(change, is_best=is_best)
        theta = after.theta
        pulls, primal, local, forces = [], 0.0, 0.0, 0.0
        for at, reach, part, old in zip(self._at, self._reach, inbox, self._pulls, strict=True):
            pull = pull_after(rho, before.theta[at], part.dense(), theta[at], self._used[at] & (reach > 0.0))
            apart = (pull - old) / rho
            primal += float(apart @ apart)
            local += float(np.square(apart + theta[at]).sum())
            forces += float(pull @ pull)
            pulls.append(pull)
        apart = before.step - change
        primal += float(absent @ np.square(apart))
        local += float(absent @ np.square(apart + theta))
        forces += float(absent @ np.square(rho * change))
        self._state, self._pulls = after, pulls
        agreed = self._holders + absent
        common, dual = agreed @ np.square(theta), agreed @ np.square(rho * change)
        residuals = Residuals(primal, float(dual), max(local, float(common)), forces)
        return (*self._figures(theta), residuals), [sparse(change[at]) for at in self._at]

    def step_back(self, *, inbox: Inbox = ()) -> Outbox:
        """Make the best theta the present one."""
        self._state = self._state._replace(theta=self._state.best)
        return None, None

    def squares(self, *, inbox: Inbox) -> Outbox:
        """Keep theta and the sum of the squared gradients as the problem's result; ADMM's dual variables go."""
        squares = np.zeros(self._hashes.size)
        for at, part in zip(self._at, inbox, strict=True):
            squares[at] += part.dense()
        self._kept[self._column] = self._state.theta, to_float32(squares)
        self._pulls = [np.zeros(at.size) for at in self._at]
        return None, None

    def published(self, columns: int, *, inbox: Inbox = ()) -> Outbox:
        """Ask for the keys that have a weight in any problem, each from one worker that has it.

        With their numbers: float32[keys, 2 x columns], the weights, then the sums of squares.
        """
        numbers = np.zeros((self._hashes.size, 2 * columns), np.float32)
        for column, (theta, squares) in self._kept.items():
            numbers[:, column], numbers[:, columns + column] = theta, squares
        wanted: npt.NDArray[np.bool_] = (numbers[:, :columns] != 0.0).any(axis=1)
        parts = []
        for at in self._all:
            index = np.flatnonzero(wanted[at])
            parts.append((index.astype(np.uint32), numbers[at[index]]))
            wanted[at[index]] = False
        return None, parts

    def dump(self, *, inbox: Inbox = ()) -> Outbox:
        """The state and the results, as the arrays of a checkpoint, by the keys' hashes: the first part."""
        columns = {name: getattr(self._state, name) for name in _COLUMNS}
        for column, (theta, squares) in self._kept.items():
            columns |= {f"kept.{column}.theta": theta, f"kept.{column}.squares": squares}
        rows = np.flatnonzero(np.column_stack([each != 0.0 for each in columns.values()]).any(axis=1))
        arrays: dict[str, npt.NDArray[Any]] = {"hashes": self._hashes[rows]}
        arrays |= {name: each[rows] for name, each in columns.items()}
        for worker, (at, pull) in enumerate(zip(self._at, self._pulls, strict=True)):
            pulled = np.flatnonzero(pull)
            arrays |= {f"pull.{worker}.hashes": self._hashes[at[pulled]], f"pull.{worker}": pull[pulled]}
        return None, [arrays, *[None] * (self._workers - 1)]

    def load(self, iteration: int, *, inbox: Inbox) -> Outbox:
        """Take what `dump` returned, and send the workers their part of it.

        Raises CheckpointError if it has keys that are not here.
        """
        (arrays,) = inbox
        rows = np.searchsorted(self._hashes, arrays["hashes"])
        known = self._hashes[np.minimum(rows, max(self._hashes.size - 1, 0))]
        if not np.array_equal(known, arrays["hashes"]):
            raise CheckpointError(
                "the checkpoint has keys that the log no longer has: the rows of a distributed run are fixed; restore "
                "the files, or start again with another folder"
            )
        columns: dict[str, Numbers] = {}
        for name, values in arrays.items():
            if not name.startswith(("hashes", "pull.")):
                columns[name] = np.zeros(self._hashes.size)
                columns[name][rows] = values
        for worker, (at, pull) in enumerate(zip(self._at, self._pulls, strict=True)):
            pull[:] = 0.0
            pull[np.searchsorted(self._hashes[at], arrays[f"pull.{worker}.hashes"])] = arrays[
                f"pull.{worker}"
            ]
        columns.setdefault("best", columns["theta"])
        theta, step, anchor, best = (columns[name] for name in _COLUMNS)
        self._state = KeyState(iteration, theta, step, anchor, np.zeros(theta.size), best)
        problems = [int(name.split(".")[1]) for name in columns if name.endswith(".squares")]
        self._kept = {
            each: (columns[f"kept.{each}.theta"], columns[f"kept.{each}.squares"]) for each in problems
        }
        return None, [
            (
                (theta[at], step[at], anchor[at], pull, best[at]),
                {each: weights[every] for each, (weights, _) in self._kept.items()},
            )
            for at, every, pull in zip(self._at, self._all, self._pulls, strict=True)
        ]

    def _mean(self, parts: Sequence[Sparse]) -> Numbers:
        """The workers' mean, weighted by each key's reach there."""
        total = np.zeros(self._hashes.size)
        for at, reach, part in zip(self._at, self._reach, parts, strict=True):
            total[at] += reach * part.dense()
        return total / np.maximum(self._totals, TINY)

    def _penalty(self, theta: Numbers) -> float:
        return float(self._l1 @ np.abs(theta) + 0.5 * (self._l2 @ np.square(theta)))

    def _figures(self, theta: Numbers) -> tuple[float, int]:
        return self._penalty(theta), int(np.count_nonzero(theta))
