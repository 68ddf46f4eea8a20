"""Reducer: a range of the keys' hashes: the common weights of its keys, and what the workers' parts sum to.

Each public method is a step, as in `worker.py`: `inbox` is what each worker sent; the list returned goes to
the workers. A key's reach is the sum of omega |x| of its occurrences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.distributed.messages import Sparse, sparse, triangle
from trainer.distributed.problem import Numbers, Problem
from trainer.distributed.worker import (
    Inbox,
    Outbox,
    State,
    best_of,
    can_have_weight,
    moved,
    pull_after,
    stepped_back,
    to_float32,
)

TINY = float(np.finfo(np.float64).tiny)
SCREEN = 0.9
"""Keys of weight 0 are active where their gradient exceeds this share of l1: they may get a weight once others move."""


class Screened(NamedTuple):
    """penalty, nonzero: of theta; optimality: the squared norm of the objective's least subgradient.

    counts, hashes: of the active keys of greatest reach, which is in `counts`.
    """

    penalty: float
    nonzero: int
    active: int
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


class Reducer:
    """One of several reducers. Arrays by key are in the order of the keys' hashes."""

    def __init__(self, index: int, workers: int) -> None:
        self._index, self._workers = index, workers
        self._hashes = np.empty(0, np.uint64)
        self._states: list[State] = []
        self._kept: dict[int, tuple[Numbers, Numbers]] = {}

    def register(self, *, inbox: Inbox) -> Outbox:
        """Take every worker's keys. Returns their number."""
        hashes = np.unique(np.concatenate([part[0] for part in inbox]))
        if not np.array_equal(hashes, self._hashes):
            self._states, self._kept = [], {}
        self._hashes = hashes
        self._all = [np.searchsorted(hashes, part[0]) for part in inbox]
        self._all_reach = [part[2] for part in inbox]
        self._features = np.zeros(hashes.size, np.uint16)
        self._totals, self._holders = np.zeros(hashes.size), np.zeros(hashes.size)
        for at, (_, features, reach) in zip(self._all, inbox, strict=True):
            self._features[at] = features
            self._totals[at] += reach
            self._holders[at] += reach > 0.0
        return hashes.size, self._nothing

    def begin(self, problem: Problem, fresh: bool, *, inbox: Inbox = ()) -> Outbox:
        """Take a problem; fresh: without a state. Tells each worker the reach of its keys in all shards."""
        self._l1, self._l2 = problem.l1[self._features], problem.l2[self._features]
        self._used = problem.bits[self._features] != 0
        self._column = problem.column
        self._live = self._used & can_have_weight(self._totals, self._l1, problem.lanes)
        self._at = [at[self._live[at]] for at in self._all]
        self._reach = [counts[self._live[at]] for at, counts in zip(self._all, self._all_reach, strict=True)]
        if fresh:
            self._states = []
        elif self._states:  # another penalty: other keys may have a weight
            nothing = [np.zeros(at.size) for at in self._at]
            for iteration, pulls in self._pulls.items():
                if [pull.size for pull in pulls] != [pull.size for pull in nothing]:
                    self._pulls[iteration] = nothing
        return None, [self._totals[at] for at in self._all]

    def average(self, *, inbox: Inbox) -> Outbox:
        """Commit iteration 0 at the mean of the workers' weights, each weighted by the key's reach there."""
        theta = to_float32(self._mean(inbox))
        nothing = np.zeros(theta.size)
        alphas = [np.zeros(at.size) for at in self._at]
        self._states = [State(0, theta, nothing, theta, nothing, nothing)]
        self._pulls = {0: alphas}
        return self._figures(theta), [sparse(theta[at]) for at in self._at]

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
        summary = Screened(
            penalty, nonzero, int(active.sum()), float(np.square(least[self._used]).sum()), self._totals[chosen],
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
            return None, self._nothing
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
        return np.array(found), self._nothing

    def accept(self, size: float, again: float, renewed: bool, is_best: bool, *, inbox: Inbox = ()) -> Outbox:
        """Commit theta + size x the displacement + again x the last step. Returns penalty and non-zeros.

        is_best: no theta before this one predicted the held-out rows better.
        """
        before = self._state
        theta = moved(before.theta, self._displacement, before.step, size, again)
        anchor = before.theta if renewed else before.anchor
        self._commit(
            State(
                before.iteration + 1,
                theta,
                theta - before.theta,
                anchor,
                before.pull,
                best_of(before, is_best),
            ),
            self._pulls[before.iteration],
        )
        return self._figures(theta), self._nothing

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
        theta = moved(before.theta, change, change, 1.0, 0.0)
        pulls, primal, local, forces = [], 0.0, 0.0, 0.0
        for at, reach, part, old in zip(
            self._at, self._reach, inbox, self._pulls[before.iteration], strict=True
        ):
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
        self._commit(
            State(before.iteration + 1, theta, change, before.anchor, before.pull, best_of(before, is_best)),
            pulls,
        )
        agreed = self._holders + absent
        common, dual = agreed @ np.square(theta), agreed @ np.square(rho * change)
        residuals = Residuals(primal, float(dual), max(local, float(common)), forces)
        return (*self._figures(theta), residuals), [sparse(change[at]) for at in self._at]

    def step_back(self, *, inbox: Inbox = ()) -> Outbox:
        """Make the best theta the present one. A second time it changes nothing."""
        self._states = [stepped_back(self._state)]
        return None, self._nothing

    def squares(self, *, inbox: Inbox) -> Outbox:
        """Keep theta and the sum of the squared gradients as the problem's result; send the sums."""
        squares = np.zeros(self._hashes.size)
        for at, part in zip(self._at, inbox, strict=True):
            squares[at] += part.dense()
        squares = to_float32(squares)
        self._kept[self._column] = self._state.theta, squares
        return None, [sparse(squares[at]) for at in self._at]

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

    def reset(self, iteration: int, *, inbox: Inbox = ()) -> Outbox:
        """Return to the state of this iteration. Returns False if it is not here."""
        self._states = [state for state in self._states if state.iteration <= iteration]
        return bool(self._states) and self._state.iteration == iteration, self._nothing

    def share(self, *, inbox: Inbox = ()) -> Outbox:
        """The state, if it is here, for workers that have lost theirs."""
        if not self._states:
            return None, self._nothing
        pulls = self._pulls[self._state.iteration]
        theta, step, anchor, best = self._columns(self._state).values()
        return None, [
            [theta[at], step[at], anchor[at], pull, best[at]]
            for at, pull in zip(self._at, pulls, strict=True)
        ]

    def restore(self, iteration: int, *, inbox: Inbox) -> Outbox:
        """Take the state from the workers, unless it is here. Returns False if one of them has none."""
        if not self._states:
            if any(part is None for part in inbox):
                return False, self._nothing
            theta, step, anchor, best = (self._merged([state[n] for state in inbox]) for n in (0, 1, 2, 4))
            self._set_state(iteration, theta, step, anchor, best, [state[3] for state in inbox])
        return True, self._nothing

    def share_results(self, *, inbox: Inbox = ()) -> Outbox:
        """The results of the problems before this one, by column, for workers that have lost theirs."""
        ended = {each: pair for each, pair in self._kept.items() if each != self._column}
        return None, [{each: (theta[at], n[at]) for each, (theta, n) in ended.items()} for at in self._all]

    def restore_results(self, *, inbox: Inbox) -> Outbox:
        """Take the results that are not here from the workers. Returns False if one of them lacks them too."""
        for column in {column for part in inbox for column in part} - self._kept.keys():
            if any(column not in part for part in inbox):
                return False, self._nothing
            pair = np.zeros((2, self._hashes.size))
            for at, part in zip(self._all, inbox, strict=True):
                pair[:, at] = part[column]
            self._kept[column] = pair[0], pair[1]
        return True, self._nothing

    def dump(self, index: int, *, inbox: Inbox = ()) -> Outbox:
        """Reducer `index`: the state and the results, as arrays for a checkpoint. Returns None at others."""
        if index != self._index:
            return None, self._nothing
        state, pulls = self._state, self._pulls[self._state.iteration]
        columns = self._columns(state)
        for column, (theta, squares) in self._kept.items():
            columns |= {f"kept.{column}.theta": theta, f"kept.{column}.squares": squares}
        rows = np.flatnonzero(np.column_stack([each != 0.0 for each in columns.values()]).any(axis=1))
        arrays: dict[str, npt.NDArray[Any]] = {"hashes": self._hashes[rows]}
        arrays |= {name: each[rows] for name, each in columns.items()}
        for worker, (at, pull) in enumerate(zip(self._at, pulls, strict=True)):
            pulled = np.flatnonzero(pull)
            arrays |= {f"pull.{worker}.hashes": self._hashes[at[pulled]], f"pull.{worker}": pull[pulled]}
        return arrays, self._nothing

    def load(
        self, index: int, iteration: int, arrays: Mapping[str, npt.NDArray[Any]], *, inbox: Inbox = ()
    ) -> Outbox:
        """Reducer `index`: take what `dump` returned, for the same keys. Returns False if it has other keys."""
        if index != self._index:
            return True, self._nothing
        rows = np.searchsorted(self._hashes, arrays["hashes"])
        if not np.array_equal(
            self._hashes[np.minimum(rows, max(self._hashes.size - 1, 0))], arrays["hashes"]
        ):
            return False, self._nothing
        columns: dict[str, Numbers] = {}
        for name, values in arrays.items():
            if not name.startswith(("hashes", "pull.")):
                columns[name] = np.zeros(self._hashes.size)
                columns[name][rows] = values
        pulls = []
        for worker, at in enumerate(self._at):
            pull = np.zeros(at.size)
            pull[np.searchsorted(self._hashes[at], arrays[f"pull.{worker}.hashes"])] = arrays[
                f"pull.{worker}"
            ]
            pulls.append(pull)
        theta, step, anchor = columns["theta"], columns["step"], columns["anchor"]
        self._set_state(iteration, theta, step, anchor, columns.get("best", theta), pulls)
        for name, weights in columns.items():
            if name.startswith("kept.") and name.endswith(".theta"):
                self._kept[int(name.split(".")[1])] = weights, columns[name.replace(".theta", ".squares")]
        return True, self._nothing

    def _set_state(
        self,
        iteration: int,
        theta: Numbers,
        step: Numbers,
        anchor: Numbers,
        best: Numbers,
        pulls: list[Numbers],
    ) -> None:
        self._states = [State(iteration, theta, step, anchor, np.zeros(theta.size), best)]
        self._pulls = {iteration: pulls}

    @staticmethod
    def _columns(state: State) -> dict[str, Numbers]:
        """The parts of a state that have a number for each key; pull has one for each key of each worker."""
        return {"theta": state.theta, "step": state.step, "anchor": state.anchor, "best": state.best}

    def _merged(self, parts: Sequence[Numbers]) -> Numbers:
        """One number for each key, from those of each worker's keys, which agree: float64[keys]."""
        out = np.zeros(self._hashes.size)
        for at, part in zip(self._at, parts, strict=True):
            out[at] = part
        return out

    @property
    def _nothing(self) -> list[Any]:
        return [None] * self._workers

    @property
    def _state(self) -> State:
        return self._states[-1]

    def _commit(self, state: State, pulls: list[Numbers]) -> None:
        before = self._state
        self._states = [before, state]
        self._pulls = {before.iteration: self._pulls[before.iteration], state.iteration: pulls}

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
