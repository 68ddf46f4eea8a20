"""Worker: a shard of the rows, and its part of every iteration.

Each public method is a step: it takes `inbox`, what each reducer sent to this worker, and returns a summary for the
driver and what goes to each reducer, None if nothing does. Steps that say so commit the state of an iteration; the
others change nothing that the next iteration depends on. Vectors travel as float32, with indices where that is shorter,
and matrices as float16.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.distributed.problem import Indices, LocalProblem, Numbers, Problem, reach_of
from trainer.distributed.shard import Shard
from trainer.examples.examples_kernels import HashedRows
from trainer.learn.metrics.metrics import group_of
from trainer.learn.metrics.recent import sums_of
from trainer.learn.predictions_kernels import Predictions

Inbox = Sequence[Any]
Outbox = tuple[Any, list[Any] | None]
_RANGE = np.uint64(32)
FTRL_ITERATIONS = 5
"""ADMM's first iterations solve locally by an FTRL pass before the Newton steps; later a pass only adds noise."""
_LARGEST_HALF = 60_000.0


class Sparse(NamedTuple):
    """A float32 vector: `values` at `at` (uint32), 0 elsewhere; or all of it where `at` is None."""

    size: int
    at: npt.NDArray[np.uint32] | None
    values: npt.NDArray[np.float32]

    @property
    def where(self) -> Any:
        """What indexes the values in a vector of this size."""
        return slice(None) if self.at is None else self.at

    def dense(self) -> npt.NDArray[np.float64]:
        """All of it: float64[size]."""
        out = np.zeros(self.size)
        out[self.where] = self.values
        return out


def sparse(vector: npt.NDArray[np.float64]) -> Sparse:
    """The vector as it travels, rounded to float32: indices and values, or all values where that is no longer."""
    values = vector.astype(np.float32)
    index = np.flatnonzero(values)
    if 2 * index.size >= values.size:
        return Sparse(values.size, None, values)
    return Sparse(values.size, index.astype(np.uint32), values[index])


class Triangle(NamedTuple):
    """The upper triangle of a symmetric matrix: which entries are not 0, as bits, and these as scale x float16."""

    size: int
    bits: npt.NDArray[np.uint8]
    values: npt.NDArray[np.float16]
    scale: float

    def full(self) -> npt.NDArray[np.float64]:
        """The matrix: float64[size, size]."""
        rows, columns = np.triu_indices(self.size)
        where = np.unpackbits(self.bits, count=rows.size).view(bool)
        out = np.zeros((self.size, self.size))
        out[rows[where], columns[where]] = self.values.astype(np.float64) * self.scale
        return out + np.triu(out, 1).T


def triangle(matrix: npt.NDArray[np.float64]) -> Triangle:
    """A symmetric matrix as it travels, to three digits."""
    entries = matrix[np.triu_indices(len(matrix))]
    scale = float(np.abs(entries).max(initial=0.0)) / _LARGEST_HALF or 1.0
    values = (entries / scale).astype(np.float16)
    return Triangle(len(matrix), np.packbits(values != 0.0), values[values != 0.0], scale)


class KeyState(NamedTuple):
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

    @classmethod
    def at(cls, theta: Numbers) -> KeyState:
        """The state of iteration 0."""
        nothing = np.zeros(theta.size)
        return cls(0, theta, nothing, theta, nothing, nothing)

    def moved(
        self, displacement: Numbers, size: float, again: float, *, renewed: bool, is_best: bool
    ) -> KeyState:
        """The next state, at theta + size x displacement + again x the last step, as float32 has it.

        The same bits at workers and reducers. renewed: the head's Hessian is that at this theta; is_best: no theta
        before this one predicted the held-out rows better.
        """
        theta = to_float32(self.theta + size * displacement + again * self.step)
        anchor = self.theta if renewed else self.anchor
        best = self.theta if is_best else self.best
        return KeyState(self.iteration + 1, theta, theta - self.theta, anchor, self.pull, best)

    def agreed(self, change: Numbers, *, is_best: bool) -> KeyState:
        """ADMM: the next state, at theta + change, but for its dual variables. is_best: as in `moved`."""
        best = self.theta if is_best else self.best
        theta = to_float32(self.theta + change)
        return KeyState(self.iteration + 1, theta, change, self.anchor, self.pull, best)


def reducer_of(hashes: npt.NDArray[np.uint64], reducers: int) -> npt.NDArray[np.uint64]:
    """The reducer of each key: ranges of hashes of equal size."""
    found: npt.NDArray[np.uint64] = (hashes >> _RANGE) * np.uint64(reducers) >> _RANGE
    return found


class Worker:
    """Worker number `index`. make: makes its shard, always the same one."""

    def __init__(self, index: int, reducers: int, make: Callable[[], Shard]) -> None:
        self._index, self._reducers, self._make = index, reducers, make
        self._kept: dict[int, Numbers] = {}
        self._scale = 1.0
        self._is_built = False

    def build(self, *, inbox: Inbox = ()) -> Outbox:
        """Make the shard, unless it is there. Returns its summary."""
        if not self._is_built:
            self._shard = self._make()
            self._weigh(1.0)
            hashes = self._shard.keys.hashes
            order = np.argsort(hashes)
            ends = np.searchsorted(
                reducer_of(hashes[order], self._reducers), np.arange(self._reducers + 1, dtype=np.uint64)
            )
            self._mine = [order[first:end] for first, end in pairwise(ends)]
            self._is_built = True
        return self._shard.summary, None

    def register(self, scales: Sequence[float], *, inbox: Inbox = ()) -> Outbox:
        """Tell each reducer its keys: hashes in order, features, reach.

        scales: what the importances of each worker's rows are multiplied by.
        """
        if scales[self._index] != self._scale:
            self._weigh(scales[self._index] / self._scale)
        keys = self._shard.keys
        return None, [(keys.hashes[mine], keys.features[mine], self._reach[mine]) for mine in self._mine]

    def begin(self, problem: Problem, *, inbox: Inbox) -> Outbox:
        """Take a problem. inbox: the reach of each key in all shards.

        Returns the importance of the shard's rows, and of its held-out rows.
        """
        self._problem = LocalProblem(self._shard, problem)
        self._totals = self._gathered(inbox, self._mine)
        live = self._problem.used & can_have_weight(self._totals, self._problem.l1, problem.variants)
        self._problem.used = live
        self._live = [mine[live[mine]] for mine in self._mine]
        return (self._problem.weight, self._problem.held_weight), None

    def first_weights(self, *, inbox: Inbox = ()) -> Outbox:
        """The weights of the FTRL pass that made the shard."""
        first = self._shard.first[:, self._problem.problem.column] * self._problem.used
        return None, [sparse(first[mine]) for mine in self._live]

    def start(self, *, inbox: Inbox) -> Outbox:
        """Commit iteration 0 at the reducers' common weights. Returns the loss of the held-out rows."""
        self._state = KeyState.at(self._scattered(inbox))
        return self._problem.held_loss(self._state.theta), None

    def gradient(self, *, inbox: Inbox = ()) -> Outbox:
        """The gradient of the shard's loss at theta. Returns the loss."""
        self._point = self._problem.at(self._state.theta)
        self._gradient = self._problem.gradient(self._point)
        return self._point.loss, [self._gradient[mine].astype(np.float32) for mine in self._live]

    def head(self, hashes: npt.NDArray[np.uint64], renew: bool, *, inbox: Inbox = ()) -> Outbox:
        """The shard's Hessian among the head keys, at theta if it is renewed, else at the anchor; to reducer 0."""
        order = np.concatenate(self._live)
        self._head = np.full(hashes.size, -1, np.int64)
        known = self._shard.keys.hashes[order]
        at = np.searchsorted(known, hashes)
        found = np.flatnonzero(at < known.size)
        found = found[known[at[found]] == hashes[found]]
        self._head[found] = order[at[found]]
        point = self._point if renew else self._problem.at(self._state.anchor)
        self._own_head = self._problem.head_hessian(point, self._head)
        return None, [triangle(self._own_head), *[None] * (self._reducers - 1)]

    def others(self, *, inbox: Inbox) -> Outbox:
        """Take the Hessian of all shards among the head keys, from reducer 0; keep that of the others."""
        self._other = inbox[0].full() - self._own_head
        return None, None

    def propose(self, damping: float, caution: float, *, inbox: Inbox) -> Outbox:
        """A displacement of the active keys, whose global gradient is in `inbox`."""
        keys = np.concatenate([mine[part.where] for mine, part in zip(self._live, inbox, strict=True)])
        gradient = np.concatenate([part.values for part in inbox]).astype(np.float64)
        holds = self._reach[keys] > 0.0
        keys, gradient = keys[holds], gradient[holds]
        displacement = np.zeros(self._problem.keys)
        displacement[keys] = self._problem.descend(
            self._point, self._state.theta, keys, gradient, self._gradient[keys], self._totals[keys],
            self._reach[keys], damping, caution, self._head, self._other, self._seed,
        )  # fmt: skip
        return None, [sparse(displacement[mine]) for mine in self._live]

    def losses(self, steps: Numbers, *, inbox: Inbox) -> Outbox:
        """The loss at theta + steps[i, 0] x the common displacement, in `inbox`, + steps[i, 1] x the last step."""
        self._displacement = self._scattered(inbox)
        first = self._problem.scores(self._displacement)
        second = self._problem.scores(self._state.step)
        return self._problem.losses(self._point, first, second, steps), None

    def accept(self, size: float, again: float, renewed: bool, is_best: bool, *, inbox: Inbox = ()) -> Outbox:
        """Commit the next state: see `KeyState.moved`. Returns the loss of the held-out rows."""
        self._state = self._state.moved(self._displacement, size, again, renewed=renewed, is_best=is_best)
        return self._problem.held_loss(self._state.theta), None

    def solve(self, rho: float, *, inbox: Inbox = ()) -> Outbox:
        """ADMM: the local solution w, sent as w + pull / rho - theta."""
        state, problem = self._state, self._problem
        by_ftrl = state.iteration < FTRL_ITERATIONS
        w = problem.solve_admm(state.theta, state.pull, rho, self._seed, by_ftrl=by_ftrl)
        away = np.where(self._reach > 0.0, w + state.pull / rho - state.theta, 0.0)
        self._away = to_float32(away)
        return None, [sparse(away[mine]) for mine in self._live]

    def agree(self, rho: float, is_best: bool, *, inbox: Inbox) -> Outbox:
        """ADMM: commit the common weights, whose change is in `inbox`, and the dual variables.

        Returns the loss of the shard and that of the held-out rows.
        """
        before, held = self._state, self._problem.used & (self._reach > 0.0)
        after = before.agreed(self._scattered(inbox), is_best=is_best)
        pull = pull_after(rho, before.theta, self._away, after.theta, held)
        self._state = after._replace(pull=pull)
        return (self._problem.at(after.theta).loss, self._problem.held_loss(after.theta)), None

    def step_back(self, *, inbox: Inbox = ()) -> Outbox:
        """Make the best theta the present one."""
        self._state = self._state._replace(theta=self._state.best)
        return None, None

    def squares(self, *, inbox: Inbox = ()) -> Outbox:
        """Keep theta as the problem's result; send the sum of the squared gradients at it by each key with a weight."""
        theta = self._kept[self._problem.problem.column] = self._state.theta
        keys = np.flatnonzero(theta)
        squares = np.zeros(self._problem.keys)
        squares[keys] = self._problem.squares(self._problem.at(theta), keys)
        return None, [sparse(squares[mine]) for mine in self._live]

    def published(self, *, inbox: Inbox) -> Outbox:
        """The keys that the reducers ask for: (data, offsets, features, numbers), numbers float32[keys, columns]."""
        keys = self._shard.keys
        chosen = np.concatenate([mine[index] for mine, (index, _) in zip(self._mine, inbox, strict=True)])
        numbers = np.concatenate([numbers for _, numbers in inbox])
        data, offsets = keys.texts(chosen)
        return (data, offsets, keys.features[chosen], numbers), None

    def judge(self, problems: Sequence[Problem], of_views: bool, *, inbox: Inbox = ()) -> Outbox:
        """Predict the held-out rows by the results of all problems. Returns the sums of the metrics, and the guard's.

        None where the worker has no such rows. of_views: see `metrics.recent.weights_are_views`.
        """
        held = self._shard.held
        rows = int(held.labels.size)
        if not rows:
            return None, None
        columns = []
        for problem in problems:
            scores = LocalProblem(self._shard, problem).scores(self._kept[problem.column], held)
            columns += list(scores.reshape(problem.variants, rows))
        none = np.empty(0)
        labelled = HashedRows(held.starts, none, none, none, held.labels.astype(np.float64), held.weights)
        scores = np.ascontiguousarray(np.column_stack(columns))
        predictions = Predictions.of_scores(scores, labelled, np.empty(0, np.uint64), len(columns))
        return (group_of(predictions, len(columns)), sums_of(predictions, of_views)), None

    def restore(self, iteration: int, *, inbox: Inbox) -> Outbox:
        """Take the state of this iteration, and the results of the problems before, from the reducers."""
        states, kept = zip(*inbox, strict=True)
        self._state = KeyState(
            iteration, *(self._gathered(each, self._live) for each in zip(*states, strict=True))
        )
        self._kept = {
            column: self._gathered([part[column] for part in kept], self._mine) for column in kept[0]
        }
        return None, None

    def peak_bytes(self, *, inbox: Inbox = ()) -> Outbox:
        """The largest resident size of the process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None

    def _weigh(self, scale: float) -> None:
        """Multiply the rows' importances, and find the keys' reach."""
        if scale != 1.0:
            self._shard = replace(self._shard, rows=self._shard.rows.scaled(scale))
        self._scale, self._reach = self._scale * scale, reach_of(self._shard)

    @property
    def _seed(self) -> list[int]:
        return [self._problem.problem.column, self._state.iteration, self._index]

    def _gathered(self, parts: Sequence[Any], keys: Sequence[Indices]) -> Numbers:
        """One number for each key, from those of each reducer's `keys`: float64[keys]."""
        out = np.zeros(self._shard.keys.hashes.size)
        for mine, part in zip(keys, parts, strict=True):
            out[mine] = part
        return out

    def _scattered(self, parts: Sequence[Sparse]) -> Numbers:
        return self._gathered([part.dense() for part in parts], self._live)


def can_have_weight(totals: Numbers, l1: Numbers, variants: int) -> npt.NDArray[np.bool_]:
    """False for keys whose gradient is never greater than l1: their weight is 0, and they are not sent.

    totals: their reach in all shards.
    """
    live: npt.NDArray[np.bool_] = totals * variants > l1
    return live


def pull_after(
    rho: float, before: Numbers, away: Numbers, theta: Numbers, held: npt.NDArray[np.bool_]
) -> Numbers:
    """ADMM's dual variables: rho (w + pull / rho - theta), as float32 has it; away: w + pull / rho - theta before."""
    return to_float32(np.where(held, rho * (before + away - theta), 0.0))


def to_float32(numbers: Numbers) -> Numbers:
    """The numbers rounded to float32, as float64."""
    rounded: Numbers = numbers.astype(np.float32).astype(np.float64)
    return rounded
