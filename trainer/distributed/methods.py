"""The methods: how a crew of workers and reducers minimises a problem, iteration by iteration.

Both start at the mean of the workers' FTRL passes, each key weighted by its reach, the sum of omega |x|. With l_t the
loss of shard t, g the gradient of all shards' loss, c_ti the reach of key i in shard t and c_i that in all shards:

- `admm`: Boyd et al. 2011, sections 7.2 and 8.2.
- `surrogate`: two rounds an iteration, after communication-efficient surrogate likelihoods (Jordan, Lee and Yang 2019)
  and their sparse forms. Round 1 sums the gradient and finds the active keys. In round 2 each worker minimises

      l_t'' + (g - grad l_t) d + sum of damping h_ti (c_i - c_ti) / c_ti d_i^2 / 2 + d' H d / 2 + penalty

  where l_t'' is the quadratic model of its own loss, h_t the diagonal of its Hessian, and H the Hessian of the other
  shards among the head, the active keys of greatest reach. The displacements are averaged per key, weighted by c_ti;
  then the losses of a few steps along the mean and the step before are compared, and the best is taken. So the
  objective never rises. H is renewed when the objective has fallen by RENEWAL since.

The driver sees sums and the head's names only. An iteration is a transaction: after each one the reducers' state is
kept outside of them. If a member is lost, the crew starts another, all members take the state of the last iteration,
and the next one is repeated with the same result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from model_store.errors import ClusterError
from trainer.distributed.problem import Problem
from trainer.distributed.reducer import ScreenResult
from trainer.distributed.shard import ShardSummary
from trainer.settings import MethodOptions

STEPS = np.array([(1.0, 0.0), (1.0, 0.5), (0.5, 0.0), (0.25, 0.0), (0.1, 0.0), (0.02, 0.0)])
"""The steps that are compared: along the mean displacement, and along the step before."""
HEAD = 512
DAMPING = 4.0
"""At the start, with five workers or more; with T workers T - 1: each of them knows 1 / T of the curvature itself."""
RENEWAL = 0.02
Done = TypeVar("Done")
_MOST_FAILURES = 5
_MOST_LOSSES = 3
_RESIDUALS = 1e-3
_QUIET, _QUIET_RESIDUALS = 5, 1e-2
"""ADMM has also converged after so many iterations that hardly change the objective, if its residuals are no larger:
the objective alone also stays constant while the common weights stay at 0 and the duals grow."""


class MemberLost(Exception):
    """A worker or reducer has ended, or takes too long, or what it sent is gone; the message names it."""


@dataclass(frozen=True)
class Replies:
    """What all workers, or all reducers, answered to a step.

    summaries: one for each; parts: what they sent, opaque; bytes: of the parts.
    """

    summaries: Sequence[Any]
    parts: Any
    bytes: int


def nbytes(part: Any) -> int:
    """The bytes of the arrays in a part."""
    if isinstance(part, np.ndarray):
        return int(part.nbytes)
    if isinstance(part, Mapping):
        part = part.values()
    return sum(map(nbytes, part)) if isinstance(part, Iterable) and not isinstance(part, str) else 0


class Crew(Protocol):
    """Workers and reducers, wherever they are. Their steps raise MemberLost, or the member's own error."""

    workers: int
    reducers: int

    def ask_workers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        """All workers do a step; each finds in its inbox what the reducers sent to it in `inbox`."""

    def ask_reducers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        """All reducers do a step, with what the workers sent to them."""

    def fetch(self, part: Any) -> Any:
        """A part that a member sent, here. Raises MemberLost if it is gone."""

    def replace_lost(self) -> None:
        """Wait until lost members have started again, empty. Raises FtrieError if that is hopeless."""


@dataclass(frozen=True)
class Iteration:
    """An iteration that has ended. objective: F (see `problem.py`); bytes: sent by all members; seconds: it took.

    primal: how far the workers' solutions are from the common one; dual: ADMM: how far the common one has moved, times
    rho; else the norm of the objective's least subgradient where the iteration began. Both per row. step: the one that
    surrogate took; rho: of ADMM; l1: of the penalty on the path, if there is one.
    """

    number: int
    objective: float
    primal: float
    dual: float
    nonzero: int
    held_out: float | None
    bytes: int
    seconds: float
    step: float | None = None
    rho: float | None = None
    l1: float | None = None


@dataclass(frozen=True)
class MethodState:
    """What a driver knows between two iterations, and a checkpoint keeps beside the members' states.

    penalty: the number of the present one on the path, began: the iteration that it began with.
    """

    iteration: int = 0
    objective: float = math.inf
    quiet: int = 0
    failures: int = 0
    damping: float = DAMPING
    head: tuple[int, ...] = ()
    anchored: float = math.inf
    converged: bool = False
    least: float = math.inf
    best: int = -1
    best_penalty: int = 0
    penalty: int = 0
    began: int = 0

    def judged(self, held_out: float | None) -> MethodState:
        """With the iteration that predicts the held-out rows best so far: `best`, and `least`, its log-loss."""
        if held_out is None or held_out >= self.least:
            return self
        return replace(self, least=held_out, best=self.iteration, best_penalty=self.penalty)

    def weakened(self, damping: float) -> MethodState:
        """At the next, weaker penalty, before its first iteration."""
        return replace(
            self,
            penalty=self.penalty + 1,
            began=self.iteration,
            quiet=0,
            failures=0,
            damping=damping,
            head=(),
            anchored=math.inf,
            converged=False,
        )


@dataclass
class Minimiser:
    """Minimises one problem with a crew whose shards are built and registered.

    then: the problem with weaker penalties, weaker from one to the next: each is begun at the minimum before it. The
    keys that may have a weight are among those of the next, so the best weights of all stay known to every member.
    on_iteration is called after each iteration; on_lost with the number of the iteration that is repeated. saved: the
    state of `progress.iteration`, one part for each reducer, or that with which the problem before this one has ended.
    """

    crew: Crew
    problem: Problem
    options: MethodOptions
    on_iteration: Callable[[Iteration], None] = lambda each: None
    on_lost: Callable[[int], None] = lambda number: None
    progress: MethodState = field(default_factory=MethodState)
    then: Sequence[Problem] = ()
    saved: Replies | None = None
    _has_heads: bool = False
    _bytes: int = 0

    def run(self) -> MethodState:
        """Start, or go on from `progress`, until it has converged or made its iterations. Raises FtrieError."""
        while not self.ended:
            self.iterate()
        return self.progress

    @property
    def ended(self) -> bool:
        """True once there is no iteration to make."""
        return self._has_ended and self.progress.penalty == len(self.then)

    @property
    def _has_ended(self) -> bool:
        """True once there is no iteration to make at the present penalty."""
        progress = self.progress
        stuck = progress.failures >= _MOST_FAILURES
        made = progress.iteration - progress.began
        return progress.objective < math.inf and (
            progress.converged or stuck or made >= self.options.iterations
        )

    def iterate(self) -> None:
        """Make the start or one iteration."""
        self.persist(self._iterate)

    def _iterate(self) -> None:
        began, self._bytes = time.perf_counter(), 0
        if self._has_ended:
            self.progress = self.progress.weakened(self._first_damping)
            self._begin()
        step = self._surrogate if self.options.method == "surrogate" else self._admm
        progress, figures = step() if self.progress.objective < math.inf else self._start()
        figures |= {"bytes": self._bytes, "seconds": time.perf_counter() - began}
        iteration = Iteration(progress.iteration, progress.objective, **figures)
        self._save()
        self.progress = progress.judged(iteration.held_out)
        self.on_iteration(iteration)

    def finish(self) -> float:
        """Keep the solution as the problem's result, at reducers and workers; returns the objective there."""
        return self.persist(self._finish)

    def _finish(self) -> float:
        if self.kept != self.progress.iteration:
            if self.progress.best_penalty != self.progress.penalty:
                self.progress = replace(self.progress, penalty=self.progress.best_penalty)
                self._begin()
            self._reducers("step_back")
            self._workers("step_back")
        self._reducers("squares", inbox=self._workers("squares"))
        losses = self._workers("gradient")
        objective = self._objective(losses, self._reducers("screen", 0, inbox=losses))
        self._save()
        return objective

    def _save(self) -> None:
        """Keep the reducers' state: one part of each, as if one sender had sent them all."""
        dumped = self.crew.ask_reducers("dump")
        self.saved = Replies((), [[parts[0] for parts in dumped.parts]], dumped.bytes)

    def persist(self, do: Callable[[], Done]) -> Done:
        """Do something with the crew, with the state of the last iteration, until no member is lost meanwhile."""
        return persist(self.crew, do, self._recover, lambda: self.on_lost(self.progress.iteration + 1))

    def resume(self) -> None:
        """Take over `progress` and `saved` of an earlier run. Raises CheckpointError if they do not fit the log."""
        self.persist(self._restore)

    def _recover(self) -> None:
        register(self.crew, self.options.loss)
        self._restore()

    def _restore(self) -> None:
        """Give all members the problem, and the state that is saved."""
        self._begin()
        if self.saved is not None:
            loaded = self._reducers("load", self.progress.iteration, inbox=self.saved)
            self._workers("restore", self.progress.iteration, inbox=loaded)

    @property
    def kept(self) -> int:
        """The number of the iteration that is the solution."""
        best, last = self.progress.best, self.progress.iteration
        return best if best >= 0 and self.options.keep == "best" else last

    @property
    def _is_best(self) -> bool:
        return self.progress.best == self.progress.iteration

    def _begin(self) -> None:
        """Give the problem to the members."""
        problem = (self.problem, *self.then)[self.progress.penalty]
        totals = self._reducers("begin", problem)
        weights = self._workers("begin", problem, inbox=totals).summaries
        self._weight, self._held = (float(sum(each)) for each in zip(*weights, strict=True))
        self._has_heads = False

    def _start(self) -> tuple[MethodState, dict[str, Any]]:
        self._begin()
        first = self._workers("first_weights")
        mean = self._reducers("average", inbox=first)
        held = self._workers("start", inbox=mean)
        losses = self._workers("gradient")
        active = self._reducers("screen", 0, inbox=losses)
        screened = active.summaries
        objective = self._objective(losses, active)
        return replace(self.progress, objective=objective, damping=self._first_damping), {
            "primal": 0.0,
            "dual": self._per_row(math.sqrt(sum(each.optimality for each in screened))),
            "nonzero": sum(each.nonzero for each in screened),
            "held_out": self._held_out(sum(held.summaries)),
        }

    @property
    def _first_damping(self) -> float:
        return min(DAMPING, max(self.crew.workers - 1.0, 1.0))

    def _surrogate(self) -> tuple[MethodState, dict[str, Any]]:
        before = self.progress
        gradient = self._workers("gradient")
        active = self._reducers("screen", HEAD, inbox=gradient)
        screened = active.summaries
        objective = self._objective(gradient, active)
        renewed = not before.head or before.anchored > objective * (1.0 + RENEWAL)
        head = _head(screened) if renewed else before.head
        if renewed or not self._has_heads:
            hashes = np.array(head, np.uint64)
            hessians = self._workers("head", hashes, renewed)
            self._workers("others", inbox=self._reducers("sum_heads", inbox=hessians))
            self._has_heads = True
        # Where the loss is nearly flat, as of separable rows, every quadratic model overshoots, also a worker's own and
        # the head's: damping beyond that of the start bounds all steps, until they are those of gradient descent.
        caution = max(before.damping - self._first_damping, 0.0)
        proposed = self._workers("propose", before.damping, caution, inbox=active)
        mean = self._reducers("combine", inbox=proposed)
        values = sum(self._workers("losses", STEPS, inbox=mean).summaries)
        values = values + sum(self._reducers("penalties", STEPS).summaries)
        best = int(np.argmin(values))
        lower = self._per_row(float(values[best]))
        improves = lower < objective
        size, again = (float(each) for each in STEPS[best]) if improves else (0.0, 0.0)
        figures = self._reducers("accept", size, again, renewed, self._is_best).summaries
        held = self._workers("accept", size, again, renewed, self._is_best)
        if not improves:
            damping, lower = before.damping * 4.0, objective
        else:
            damping = before.damping * 2.0 if size < 0.5 else before.damping
            damping = max(damping / 1.5, 1.0) if size >= 1.0 else damping
        failures = 0 if improves else before.failures + 1
        optimality = self._per_row(math.sqrt(sum(each.optimality for each in screened)))
        quiet = before.quiet + 1 if improves and objective - lower < self.options.tolerance * lower else 0
        progress = replace(
            before,
            iteration=before.iteration + 1,
            objective=lower,
            quiet=quiet,
            failures=failures,
            damping=damping,
            head=head,
            anchored=objective if renewed else before.anchored,
            converged=quiet >= 2 or (failures >= _MOST_FAILURES and optimality <= _RESIDUALS * lower),
        )
        return progress, {
            "primal": self._per_row(math.sqrt(sum(mean.summaries))),
            "dual": optimality,
            "nonzero": sum(nonzero for _, nonzero in figures),
            "held_out": self._held_out(sum(held.summaries)),
            "step": size,
        }

    def _admm(self) -> tuple[MethodState, dict[str, Any]]:
        before, rho, plain = self.progress, self.options.rho or 1.0, self.options.consensus == "plain"
        solved = self._workers("solve", rho)
        agreed = self._reducers("agree", rho, plain, self._is_best, inbox=solved)
        answers = self._workers("agree", rho, self._is_best, inbox=agreed)
        penalties, nonzeros, residuals = zip(*agreed.summaries, strict=True)
        primal, dual, weights, forces = (math.sqrt(sum(each)) for each in zip(*residuals, strict=True))
        objective = self._per_row(sum(loss for loss, _ in answers.summaries) + sum(penalties))
        residual = max(primal / max(weights, 1e-300), dual / max(forces, 1e-300))
        still = abs(before.objective - objective) < self.options.tolerance * objective
        quiet = before.quiet + 1 if still else 0
        progress = replace(
            before,
            iteration=before.iteration + 1,
            objective=objective,
            quiet=quiet,
            converged=residual <= _RESIDUALS or (quiet >= _QUIET and residual <= _QUIET_RESIDUALS),
        )
        return progress, {
            "primal": self._per_row(primal),
            "dual": self._per_row(dual),
            "nonzero": sum(nonzeros),
            "held_out": self._held_out(sum(held for _, held in answers.summaries)),
            "rho": rho,
        }

    def _workers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        replies = self.crew.ask_workers(step, *arguments, inbox=inbox)
        self._bytes += replies.bytes
        return replies

    def _reducers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        replies = self.crew.ask_reducers(step, *arguments, inbox=inbox)
        self._bytes += replies.bytes
        return replies

    def _objective(self, losses: Replies, screened: Replies) -> float:
        return self._per_row(sum(losses.summaries) + sum(each.penalty for each in screened.summaries))

    def _per_row(self, value: float) -> float:
        return float(value) / max(self._weight, 1.0)

    def _held_out(self, loss: float) -> float | None:
        return loss / self._held if self._held else None


def persist(
    crew: Crew,
    do: Callable[[], Done],
    recover: Callable[[], None] = lambda: None,
    on_lost: Callable[[], None] = lambda: None,
) -> Done:
    """What `do` returns, again from the state that `recover` restores if members are lost meanwhile.

    Raises ClusterError where that happens _MOST_LOSSES times: it could never end, perhaps for lack of memory.
    """
    losses: list[MemberLost] = []
    while len(losses) < _MOST_LOSSES:
        try:
            if losses:
                on_lost()
                crew.replace_lost()
                recover()
            return do()
        except MemberLost as error:
            losses.append(error)
    raise ClusterError(
        f"members were lost {_MOST_LOSSES} times in one iteration, which never ended; the last time {losses[-1]}; "
        "--resume goes on from the last checkpoint, perhaps with hosts of more memory"
    )


def register(crew: Crew, loss: str = "rows") -> tuple[Sequence[ShardSummary], int]:
    """Make the shards that are not there, and tell the reducers their keys; returns summaries and how many keys.

    loss: see `MethodOptions`.
    """
    summaries: Sequence[ShardSummary] = crew.ask_workers("build").summaries
    scales = [1.0] * len(summaries)
    if loss == "workers":
        parts = [each.importance for each in summaries]
        mean = sum(parts) / max(sum(part > 0.0 for part in parts), 1)
        scales = [mean / part if part else 1.0 for part in parts]
    keys = crew.ask_reducers("register", inbox=crew.ask_workers("register", scales)).summaries
    return summaries, sum(keys)


def solution(crew: Crew, columns: int) -> Sequence[Any]:
    """The keys with a weight: from each worker (data, offsets, features, numbers), as `Worker.published` returns them.

    numbers: float32[keys, 2 x columns], the weights of each problem, then the sums of squared gradients.
    """
    return crew.ask_workers("published", inbox=crew.ask_reducers("published", columns)).summaries


def _head(screened: Sequence[ScreenResult]) -> tuple[int, ...]:
    """The hashes of the HEAD active keys of greatest reach, of all reducers."""
    counts = np.concatenate([each.counts for each in screened])
    hashes = np.concatenate([each.hashes for each in screened])
    chosen = np.lexsort((hashes, -counts))[:HEAD]
    return tuple(int(each) for each in hashes[chosen])
