"""Worker: a shard of the rows, and its part of every iteration.

Each public method is a step: it takes `inbox`, what each reducer sent to this worker, and returns a summary for the
driver and what goes to each reducer. Steps do not change what is committed, except those that say so: they commit the
state of an iteration, and the state before it is kept until the next one.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.distributed.local import Indices, LocalProblem, reach_of
from trainer.distributed.messages import Sparse, sparse, triangle
from trainer.distributed.problem import Numbers, Problem
from trainer.distributed.shard import Shard
from trainer.examples.examples_kernels import HashedRows
from trainer.learn.metrics.metrics import group_of
from trainer.learn.metrics.recent import sums_of
from trainer.learn.predictions_kernels import Predictions

Inbox = Sequence[Any]
Outbox = tuple[Any, list[Any]]
_RANGE = np.uint64(32)
FTRL_ITERATIONS = 5
"""ADMM's first iterations solve locally by an FTRL pass before the Newton steps; later a pass only adds noise."""


class State(NamedTuple):
    """What an iteration ends with, float64[keys] each.

    theta: the common weights, which float32 represents; step: the last change of theta; anchor: theta where the head's
    Hessian was computed; pull: ADMM's dual variables; best: theta after the one of the iterations before that predicted
    the held-out rows best.
    """

    iteration: int
    theta: Numbers
    step: Numbers
    anchor: Numbers
    pull: Numbers
    best: Numbers


def reducer_of(hashes: npt.NDArray[np.uint64], reducers: int) -> npt.NDArray[np.uint64]:
    """The reducer of each key: ranges of hashes of equal size."""
    found: npt.NDArray[np.uint64] = (hashes >> _RANGE) * np.uint64(reducers) >> _RANGE
    return found


class Worker:
    """Worker number `index`. make: makes its shard, always the same one."""

    def __init__(self, index: int, reducers: int, make: Callable[[], Shard]) -> None:
        self._index, self._reducers, self._make = index, reducers, make
        self._shard: Shard | None = None
        self._states: list[State] = []
        self._kept: dict[int, tuple[Numbers, Numbers]] = {}
        self._scale = 1.0

    def build(self, *, inbox: Inbox = ()) -> Outbox:
        """Make the shard, unless it is there. Returns its summary."""
        if self._shard is None:
            began = time.perf_counter()
            self._shard = self._make()
            self._weigh(1.0)
            hashes = self._shard.keys.hashes
            order = np.argsort(hashes)
            ends = np.searchsorted(
                reducer_of(hashes[order], self._reducers), np.arange(self._reducers + 1, dtype=np.uint64)
            )
            self._mine = [order[first:end] for first, end in pairwise(ends)]
            self._summary = self._shard.summary(time.perf_counter() - began)
        return self._summary, self._nothing

    def register(self, scales: Sequence[float], *, inbox: Inbox = ()) -> Outbox:
        """Tell each reducer its keys: hashes in order, features, reach.

        scales: what the importances of each worker's rows are multiplied by.
        """
        if scales[self._index] != self._scale:
            self._weigh(scales[self._index] / self._scale)
        keys = self._shard_made.keys
        return None, [(keys.hashes[mine], keys.features[mine], self._reach[mine]) for mine in self._mine]

    def begin(self, problem: Problem, fresh: bool, *, inbox: Inbox) -> Outbox:
        """Take a problem; fresh: without a state. inbox: the reach of each key in all shards.

        Returns the importance of the shard's rows, and of its held-out rows.
        """
        self._problem = LocalProblem(self._shard_made, problem)
        self._totals = np.zeros(self._problem.keys)
        for mine, part in zip(self._mine, inbox, strict=True):
            self._totals[mine] = part
        live = self._problem.used & can_have_weight(self._totals, self._problem.l1, problem.lanes)
        self._problem.used = live
        self._live = [mine[live[mine]] for mine in self._mine]
        if fresh:
            self._states = []
        return (self._problem.weight, self._problem.held_weight), self._nothing

    def first_weights(self, *, inbox: Inbox = ()) -> Outbox:
        """The weights of the FTRL pass that made the shard."""
        first = self._shard_made.first[:, self._problem.problem.column] * self._problem.used
        return None, [sparse(first[mine]) for mine in self._live]

    def start(self, *, inbox: Inbox) -> Outbox:
        """Commit iteration 0 at the reducers' common weights. Returns the loss of the held-out rows."""
        theta, nothing = self._scattered(inbox), np.zeros(self._problem.keys)
        self._states = [State(0, theta, nothing, theta, nothing, nothing)]
        return self._problem.held_loss(theta), self._nothing

    def gradient(self, *, inbox: Inbox = ()) -> Outbox:
        """The gradient of the shard's loss at theta. Returns the loss."""
        self._point = self._problem.at(self._state.theta)
        self._gradient = self._problem.gradient(self._point)
        return self._point.loss, [self._gradient[mine].astype(np.float32) for mine in self._live]

    def head(self, hashes: npt.NDArray[np.uint64], renew: bool, *, inbox: Inbox = ()) -> Outbox:
        """The shard's Hessian among the head keys, at theta if it is renewed, else at the anchor; to reducer 0."""
        order = np.concatenate(self._live)
        self._head = np.full(hashes.size, -1, np.int64)
        known = self._shard_made.keys.hashes[order]
        at = np.searchsorted(known, hashes)
        found = np.flatnonzero(at < known.size)
        found = found[known[at[found]] == hashes[found]]
        self._head[found] = order[at[found]]
        point = self._point if renew else self._problem.at(self._state.anchor)
        self._own_head = self._problem.head_hessian(point, self._head)
        return None, [triangle(self._own_head), *self._nothing[1:]]

    def others(self, *, inbox: Inbox) -> Outbox:
        """Take the Hessian of all shards among the head keys, from reducer 0; keep that of the others."""
        self._other = inbox[0].full() - self._own_head
        return None, self._nothing

    def propose(self, damping: float, caution: float, *, inbox: Inbox) -> Outbox:
        """A displacement of the active keys, whose global gradient is in `inbox`. Returns the rounds it took."""
        keys, gradient = self._chosen(inbox)
        holds = self._reach[keys] > 0.0
        keys, gradient = keys[holds], gradient[holds]
        moved, rounds = self._problem.descend(
            self._point, self._state.theta, keys, gradient, self._gradient[keys], self._totals[keys],
            self._reach[keys], damping, caution, self._head, self._other, self._seed,
        )  # fmt: skip
        displacement = np.zeros(self._problem.keys)
        displacement[keys] = moved
        return rounds, [sparse(displacement[mine]) for mine in self._live]

    def losses(self, steps: Numbers, *, inbox: Inbox) -> Outbox:
        """The loss at theta + steps[i, 0] x the common displacement, in `inbox`, + steps[i, 1] x the last step."""
        self._displacement = self._scattered(inbox)
        first = self._problem.scores(self._displacement)
        second = self._problem.scores(self._state.step)
        return self._problem.losses(self._point, first, second, steps), self._nothing

    def accept(self, size: float, again: float, renewed: bool, is_best: bool, *, inbox: Inbox = ()) -> Outbox:
        """Commit theta + size x the displacement + again x the last step. Returns the loss of the held-out rows.

        is_best: no theta before this one predicted those better.
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
            )
        )
        return self._problem.held_loss(theta), self._nothing

    def solve(self, rho: float, *, inbox: Inbox = ()) -> Outbox:
        """ADMM: the local solution w, sent as w + pull / rho - theta."""
        state, problem = self._state, self._problem
        passes = int(state.iteration < FTRL_ITERATIONS)
        w = problem.solve_admm(state.theta, state.pull, rho, state.theta, self._seed, passes)
        away = np.where(self._reach > 0.0, w + state.pull / rho - state.theta, 0.0)
        self._away = to_float32(away)
        return None, [sparse(away[mine]) for mine in self._live]

    def agree(self, rho: float, is_best: bool, *, inbox: Inbox) -> Outbox:
        """ADMM: commit the common weights, whose change is in `inbox`, and the dual variables. is_best: as in `accept`.

        Returns the loss of the shard and that of the held-out rows.
        """
        before = self._state
        change = self._scattered(inbox)
        theta = moved(before.theta, change, change, 1.0, 0.0)
        pull = pull_after(rho, before.theta, self._away, theta, self._problem.used & (self._reach > 0.0))
        self._commit(
            State(before.iteration + 1, theta, change, before.anchor, pull, best_of(before, is_best))
        )
        return (self._problem.at(theta).loss, self._problem.held_loss(theta)), self._nothing

    def step_back(self, *, inbox: Inbox = ()) -> Outbox:
        """Make the best theta the present one. A second time it changes nothing."""
        self._states = [stepped_back(self._state)]
        return None, self._nothing

    def squares(self, *, inbox: Inbox = ()) -> Outbox:
        """The sum of the squared gradients at theta by each key with a weight."""
        keys = np.flatnonzero(self._state.theta)
        squares = np.zeros(self._problem.keys)
        squares[keys] = self._problem.squares(self._problem.at(self._state.theta), keys)
        return None, [sparse(squares[mine]) for mine in self._live]

    def keep(self, *, inbox: Inbox) -> Outbox:
        """Keep theta, and the squares of all shards, as the problem's result, should a reducer lose it."""
        self._kept[self._problem.problem.column] = self._state.theta, self._scattered(inbox)
        return None, self._nothing

    def published(self, *, inbox: Inbox) -> Outbox:
        """The keys that the reducers ask for: (data, offsets, features, numbers), numbers float32[keys, columns]."""
        keys = self._shard_made.keys
        chosen = np.concatenate([mine[index] for mine, (index, _) in zip(self._mine, inbox, strict=True)])
        numbers = np.concatenate([numbers for _, numbers in inbox])
        data, offsets = keys.texts(chosen)
        return (data, offsets, keys.features[chosen], numbers), self._nothing

    def judge(self, problems: Sequence[Problem], of_views: bool, *, inbox: Inbox = ()) -> Outbox:
        """Predict the held-out rows by the results of all problems. Returns the sums of the metrics, and the guard's.

        None where the worker has no such rows. of_views: see `metrics.recent.weights_are_views`.
        """
        held = self._shard_made.held
        rows = int(held.labels.size)
        if not rows:
            return None, self._nothing
        columns = []
        for problem in problems:
            local = LocalProblem(self._shard_made, problem)
            scores = local.held_scores(self._kept[problem.column][0])
            columns += list(scores.reshape(problem.lanes, rows))
        none = np.empty(0)
        labelled = HashedRows(held.starts, none, none, none, held.labels.astype(np.float64), held.weights)
        scores = np.ascontiguousarray(np.column_stack(columns))
        predictions = Predictions.of_scores(scores, labelled, np.empty(0, np.uint64), len(columns))
        return (group_of(predictions, len(columns)), sums_of(predictions, of_views)), self._nothing

    def reset(self, iteration: int, *, inbox: Inbox = ()) -> Outbox:
        """Return to the state of this iteration. Returns False if it is not here."""
        self._states = [state for state in self._states if state.iteration <= iteration]
        return bool(self._states) and self._state.iteration == iteration, self._nothing

    def share(self, *, inbox: Inbox = ()) -> Outbox:
        """The state, if it is here, for reducers that have lost theirs."""
        if not self._states:
            return None, self._nothing
        return None, [[each[mine] for each in self._state[1:]] for mine in self._live]

    def restore(self, iteration: int, *, inbox: Inbox) -> Outbox:
        """Take the state from the reducers, unless it is here. Returns False if one of them has none."""
        if not self._states:
            if any(part is None for part in inbox):
                return False, self._nothing
            self._states = [State(iteration, *(self._gathered(each) for each in zip(*inbox, strict=True)))]
        return True, self._nothing

    def share_results(self, *, inbox: Inbox = ()) -> Outbox:
        """The results of the problems before this one, by column, for reducers that have lost theirs."""
        ended = {each: pair for each, pair in self._kept.items() if each != self._problem.problem.column}
        return None, [
            {each: (theta[mine], n[mine]) for each, (theta, n) in ended.items()} for mine in self._mine
        ]

    def restore_results(self, *, inbox: Inbox) -> Outbox:
        """Take the results that are not here from the reducers. Returns False if one of them lacks them too."""
        for column in {column for part in inbox for column in part} - self._kept.keys():
            if any(column not in part for part in inbox):
                return False, self._nothing
            pair = np.zeros((2, self._problem.keys))
            for mine, part in zip(self._mine, inbox, strict=True):
                pair[:, mine] = part[column]
            self._kept[column] = pair[0], pair[1]
        return True, self._nothing

    def peak_bytes(self, *, inbox: Inbox = ()) -> Outbox:
        """The largest resident size of the process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, self._nothing

    def _weigh(self, scale: float) -> None:
        """Multiply the rows' importances, and find the keys' reach."""
        shard = self._shard_made
        self._shard = shard = shard if scale == 1.0 else replace(shard, rows=shard.rows.scaled(scale))
        self._scale, self._reach = self._scale * scale, reach_of(shard)

    @property
    def _nothing(self) -> list[Any]:
        return [None] * self._reducers

    @property
    def _shard_made(self) -> Shard:
        assert self._shard is not None
        return self._shard

    @property
    def _state(self) -> State:
        return self._states[-1]

    @property
    def _seed(self) -> list[int]:
        return [self._problem.problem.column, self._state.iteration, self._index]

    def _commit(self, state: State) -> None:
        self._states = [self._state, state]

    def _gathered(self, parts: Sequence[Any]) -> Numbers:
        """One number for each key, from those of each reducer's keys: float64[keys]."""
        out = np.zeros(self._problem.keys)
        for mine, part in zip(self._live, parts, strict=True):
            out[mine] = part
        return out

    def _scattered(self, parts: Sequence[Sparse]) -> Numbers:
        return self._gathered([part.dense() for part in parts])

    def _chosen(self, parts: Sequence[Sparse]) -> tuple[Indices, Numbers]:
        """The keys that the parts name, and their values."""
        keys = np.concatenate([mine[part.where] for mine, part in zip(self._live, parts, strict=True)])
        return keys, np.concatenate([part.values for part in parts]).astype(np.float64)


def can_have_weight(totals: Numbers, l1: Numbers, lanes: int) -> npt.NDArray[np.bool_]:
    """False for keys whose gradient is never greater than l1: their weight is 0, and they are not sent.

    totals: their reach in all shards.
    """
    live: npt.NDArray[np.bool_] = totals * lanes > l1
    return live


def best_of(before: State, is_best: bool) -> Numbers:
    """The best theta until and with `before`; is_best: it is that of `before`."""
    return before.theta if is_best else before.best


def stepped_back(state: State) -> State:
    """The state with the best theta as the present one."""
    return state._replace(theta=state.best)


def moved(theta: Numbers, displacement: Numbers, step: Numbers, size: float, again: float) -> Numbers:
    """theta + size x displacement + again x step, as float32 has it; the same bits at workers and reducers."""
    return to_float32(theta + size * displacement + again * step)


def pull_after(
    rho: float, before: Numbers, away: Numbers, theta: Numbers, held: npt.NDArray[np.bool_]
) -> Numbers:
    """ADMM's dual variables: rho (w + pull / rho - theta), as float32 has it; away: w + pull / rho - theta before."""
    return to_float32(np.where(held, rho * (before + away - theta), 0.0))


def to_float32(numbers: Numbers) -> Numbers:
    """The numbers rounded to float32, as float64."""
    rounded: Numbers = numbers.astype(np.float32).astype(np.float64)
    return rounded
