"""One distributed training run: opens a crew, has every problem minimised, and makes the artefact to publish.

In: a spec, a log, and `DistributedOptions`. Out: a `DistributedRun` with the model, its report, and the error that
ended it early. Between two iterations the driver holds sums only; the keys with a weight pass through it at the end,
and one reducer's keys at a time for a checkpoint.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, FtrieError, Stopped, UsageError
from model_store.files import write_whole
from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import RecentFigures
from model_store.waiting import StopRequest
from trainer.distributed.checkpoint import (
    DistributedCheckpoints,
    EarlierRun,
    InputFile,
    ProblemResult,
    RunSettings,
    RunState,
)
from trainer.distributed.cluster import open_crew
from trainer.distributed.dealing import ShardPlan, plan_shards
from trainer.distributed.methods import (
    Crew,
    Iteration,
    MethodState,
    Minimiser,
    persist,
    register,
    solution,
)
from trainer.distributed.problem import Problem, problems_of
from trainer.distributed.shard import ShardSummary, collect_rejects
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log, default_threads
from trainer.formats.reader import expand
from trainer.formats.rejects import RejectLog, too_many_rejected
from trainer.learn.metrics.recent import figures_of, weights_are_views
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.metrics.warnings import is_one_class, leak_warnings, one_class_warnings
from trainer.output import SILENT, Output, Progress
from trainer.settings import DistributedOptions, HeldOutRows
from trainer.tune.choice import with_rates

HELD_OUT, FIRST_PASS = "held-out rows", "first pass"
_OVERFIT = 1e-3
"""A warning is given if the held-out log-loss rises by more than this share."""
_LARGEST = float(np.finfo(np.float32).max)

Numbers = npt.NDArray[np.float64]


CrewOpener = Callable[..., AbstractContextManager[Crew]]
"""Opens the workers and reducers of a run: `trainer.distributed.cluster.open_crew`."""


@dataclass(frozen=True)
class DistributedReport:
    """What a run did.

    rows: learned from; clicks: those with a click by the column `label`; held_out: rows that were not, by which the
    model is judged; judged: by which rows `variants` is; problems: the iterations of each, one problem for each variant
    with own values; workers: the shard of each; recoveries: iterations that were repeated since a member was lost.
    Otherwise as in `trainer.runs.train.Report`.
    """

    method: str
    rows: int = 0
    clicks: int = 0
    label: str = ""
    held_out: int = 0
    rejected: int = 0
    subsampled: int = 0
    seconds: float = 0.0
    keys: int = 0
    nonzero: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    judged: str = FIRST_PASS
    variants: dict[str, VariantMetrics] = field(default_factory=dict)
    problems: tuple[ProblemResult, ...] = ()
    workers: tuple[ShardSummary, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    recoveries: int = 0
    version: int | None = None
    failed_checkpoints: int = 0
    damaged_checkpoints: int = 0

    @property
    def iterations(self) -> int:
        """Iterations made, for all problems."""
        return sum(len(each.iterations) for each in self.problems)

    @property
    def bytes(self) -> int:
        """Bytes sent between workers and reducers."""
        return sum(each.bytes for problem in self.problems for each in problem.iterations)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should look into."""
        return (
            *one_class_warnings(self.rows, self.clicks, self.label),
            *leak_warnings(self.variants, self.clicks, self.rows - self.clicks),
            *filter(None, map(_overfit, self.problems)),
            *self.not_converged,
        )

    @property
    def of_one_class(self) -> bool:
        """See `is_one_class`."""
        return is_one_class(self.rows, self.clicks)

    @property
    def not_converged(self) -> tuple[str, ...]:
        """A warning for each problem that ended above its minimum, unless an earlier iteration is kept."""
        return tuple(
            f"{each.name} has not converged after {each.iterations[-1].number:,} iterations: its objective, "
            f"{each.objective:.5f}, may be well above the minimum; "
            + "raise --iterations"
            + (", or take the method surrogate" if self.method == "admm" else "")
            for each in self.problems
            if not each.converged and each.is_last
        )

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "method": self.method,
            "rows": self.rows,
            "clicks": self.clicks,
            "held_out": self.held_out,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "subsampled": self.subsampled,
            "seconds": round(self.seconds, 6),
            "keys": self.keys,
            "nonzero": self.nonzero,
            "bytes": self.bytes,
            "version": self.version,
            "recoveries": self.recoveries,
            "checkpoints": {"failed": self.failed_checkpoints, "damaged": self.damaged_checkpoints},
            "warnings": list(self.warnings),
            "judged": self.judged,
            "variants": {name: metrics.as_dict() for name, metrics in self.variants.items()},
            "problems": [
                {
                    "name": each.name,
                    "objective": each.objective if math.isfinite(each.objective) else None,
                    "converged": each.converged,
                    "kept": each.solution.number,
                    "iterations": [asdict(iteration) for iteration in each.iterations],
                }
                for each in self.problems
            ],
            "workers": [
                _worker(each, peak) for each, peak in zip(self.workers, self.peak_bytes, strict=True)
            ],
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON, atomically."""
        write_whole(path, (json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n").encode())


def _overfit(problem: ProblemResult) -> str:
    """A warning if the held-out rows were predicted clearly better by an earlier iteration; "" if not."""
    held = [(each.held_out, each.number) for each in problem.iterations if each.held_out is not None]
    if not held:
        return ""
    (best, number), (last, _) = min(held), held[-1]
    if last <= best * (1.0 + _OVERFIT):
        return ""
    strongest, kept = problem.iterations[0].l1, problem.solution.l1
    if kept is not None:
        text = (
            f"the best l1 of {problem.name}, {kept:g}, is the greatest tried: greater ones may predict better"
        )
        return text if kept == strongest else ""
    which = "the model is that one" if not problem.is_last else "the model is the last one, as --keep says"
    return (
        f"held-out log-loss of {problem.name} was {best:.5f} after iteration {number} and {last:.5f} at the end; "
        f"{which}: the minimum follows the learned rows too closely; a greater learner.l1 or l2 predicts better"
    )


def _worker(shard: ShardSummary, peak: int) -> dict[str, object]:
    """The JSON form of a worker's shard. peak_bytes: the largest resident size of its process."""
    return {
        "rows": shard.rows,
        "held_out": shard.held_rows,
        "keys": shard.keys,
        "rejected": shard.log.rejected + shard.held_files.rejected,
        "seconds": round(shard.seconds, 6),
        "shard_bytes": shard.memory_bytes,
        "disk_bytes": shard.disk_bytes,
        "peak_bytes": peak,
    }


@dataclass(frozen=True)
class HeldOutFigures:
    """The held-out rows' predictions by the final model, as the sums that the guard takes."""

    sums: Numbers
    variants: tuple[str, ...]

    def figures(self, keys: int) -> RecentFigures:
        """The guard's figures."""
        return figures_of(self.sums, self.variants, keys)


@dataclass(frozen=True)
class DistributedModel:
    """The model of a run: what `finish_run` and the guard need of it. Without an artefact the run ended early."""

    spec: ModelSpec
    learned: Artefact | None = None
    recent: HeldOutFigures | None = None

    def artefact(self) -> Artefact:
        """The artefact to publish."""
        assert self.learned is not None
        return self.learned


@dataclass
class DistributedRun:
    """A run that has ended; see `trainer.runs.train.Run`."""

    model: DistributedModel
    report: DistributedReport
    failure: FtrieError | None = None
    withheld: str = ""
    rejected: Sequence[str] = ()

    def set_version(self, version: int) -> None:
        """Report the version that was published."""
        self.report = replace(self.report, version=version)


def train_distributed(
    spec: ModelSpec,
    log: Log,
    options: DistributedOptions,
    *,
    rejects: RejectLog,
    strict: bool = False,
    checkpoints: DistributedCheckpoints | None = None,
    force: bool = False,
    output: Output = SILENT,
    crew: CrewOpener = open_crew,
) -> DistributedRun:
    """Minimise the objective of every variant over all rows of the log, with workers and reducers on Ray.

    rejects: receives bad rows; strict: the first one is an error; checkpoints: saves the state, and has that of the run
    to resume; force: publish however many rows are rejected; crew: opens workers and reducers. With checkpoints, a
    signal ends the run after the iteration, and is its `failure`. Raises SpecError, InputError, CheckpointError,
    UsageError without Ray, and FtrieError where the crew cannot go on.
    """
    if spec.guard is not None and options.held_out == HeldOutRows():
        raise UsageError(
            "[guard] judges a model by rows that it has not learned: hold some out with --held-out 0.05, or leave "
            "[guard] out"
        )
    plans = plan_shards(
        spec,
        log,
        options.workers,
        held_out=options.held_out,
        known=with_rates(spec, log, (), output),
        memory_bytes=options.shard_bytes,
        strict=strict,
        threads=max(1, default_threads() // options.workers) if options.address is None else 1,
    )
    earlier = checkpoints.earlier if checkpoints is not None else None
    start = _start(spec, log, plans[0], options)
    if earlier is not None:
        for remark in earlier.state.check(spec, start.settings, start.inputs, earlier.path):
            output.note(remark)
        start = replace(earlier.state, created=start.created, ftrie=start.ftrie)
    with crew(
        plans, options.reducers, address=options.address, timeout_s=options.timeout_s, output=output
    ) as members:
        driver = _Driver(members, plans[0], options, start, checkpoints, rejects, output)
        return driver.run(earlier, force)


def _start(spec: ModelSpec, log: Log, plan: ShardPlan, options: DistributedOptions) -> RunState:
    """The state of a run before its first iteration."""
    held = options.held_out
    settings = RunSettings(
        workers=options.workers,
        reducers=options.reducers,
        method=options.method.method,
        rho=options.method.rho or 1.0,
        consensus=options.method.consensus,
        loss=options.method.loss,
        penalties=", ".join(map(str, options.penalties)) or None,
        held_out=str(held.share) if held.share else ", ".join(held.inputs) or None,
        format=log.format,
        sides={table.name: table.sha256 for table in log.tables},
    )
    inputs = tuple(InputFile.of(name) for name in expand([*log.inputs, *held.inputs]))
    return RunState(
        spec=spec.to_json(),
        resolved=plan.start.resolved.to_json(),
        settings=settings,
        inputs=inputs,
        problems=(),
        progress=MethodState(),
    )


class _Driver:
    """The run between opening the crew and closing it."""

    def __init__(
        self,
        crew: Crew,
        plan: ShardPlan,
        options: DistributedOptions,
        start: RunState,
        checkpoints: DistributedCheckpoints | None,
        rejects: RejectLog,
        output: Output,
    ) -> None:
        self._crew, self._plan, self._options = crew, plan, options
        self._spec = spec = plan.start.resolved
        self._checkpoints, self._rejects, self._output = checkpoints, rejects, output
        self._state, self._began = start, time.perf_counter()
        self._seconds_before, self._is_saved = start.seconds, True
        maker = ExampleMaker(spec)
        self._masks = maker.rules.masks
        # Each problem at every penalty, the strongest first.
        self._paths = [
            problems_of(spec, self._masks, maker.feature_rules, l1) for l1 in options.penalties or (None,)
        ]
        self._problems = self._paths[0]
        self._shards: Sequence[ShardSummary] = ()
        self._keys = 0

    def run(self, earlier: EarlierRun | None, force: bool) -> DistributedRun:
        """Make the shards, minimise every problem, collect the model."""
        with self._output.progress("reading", self._options.workers, "shards") as bar:
            self._shards, self._keys = persist(
                self._crew,
                lambda: register(self._crew, self._options.method.loss),
                on_lost=lambda: self._lost(0),
            )
            bar.update(len(self._shards), rows=sum(each.rows for each in self._shards), keys=self._keys)
        collect_rejects(self._shards, self._plan, self._rejects)
        for note in dict.fromkeys(note for each in self._shards for note in each.notes):
            self._output.note(note)
        if not sum(each.rows for each in self._shards):
            return DistributedRun(DistributedModel(self._spec), self._report())
        minimiser = None
        with StopRequest() as stop:
            for problem in self._problems[max(len(self._state.problems) - 1, 0) :]:
                minimiser = self._minimiser(problem, earlier, minimiser)
                earlier = None
                if self._minimise(minimiser, stop):
                    return DistributedRun(
                        DistributedModel(self._spec), self._report(), self._stopped(stop.number)
                    )
        assert minimiser is not None
        return self._finished(minimiser, force)

    def _minimiser(self, problem: Problem, earlier: EarlierRun | None, before: Minimiser | None) -> Minimiser:
        """Of a problem, from a checkpoint, or after the problem before it."""
        minimiser = Minimiser(
            self._crew,
            problem,
            self._options.method,
            on_lost=self._lost,
            then=[next(each for each in path if each.column == problem.column) for path in self._paths[1:]],
            saved=before.saved if before is not None else None,
        )
        if earlier is not None:
            minimiser.progress, minimiser.saved = earlier.state.progress, earlier.saved
            minimiser.resume()
        return minimiser

    def _minimise(self, minimiser: Minimiser, stop: StopRequest) -> bool:
        """Minimise one problem; True if a signal has come before its end."""
        title = f"{self._options.method.method}, {minimiser.problem.name}"
        with self._output.progress(title, self._options.method.iterations, "iterations") as bar:
            minimiser.on_iteration = lambda each: self._add(minimiser, each, bar)
            while not minimiser.ended:
                minimiser.iterate()
                self._save(minimiser, due=bool(stop))
                is_last = minimiser.problem is self._problems[-1]
                if stop and not (is_last and minimiser.ended):
                    return True
            last = replace(
                self._state.problems[-1],
                objective=minimiser.finish(),
                converged=minimiser.progress.converged,
                kept=minimiser.kept,
            )
        self._state = replace(self._state, problems=(*self._state.problems[:-1], last))
        return False

    def _add(self, minimiser: Minimiser, iteration: Iteration, bar: Progress) -> None:
        """Record an iteration that has ended, and show it."""
        problems = self._state.problems
        if self._options.penalties:
            iteration = replace(iteration, l1=self._options.penalties[minimiser.progress.penalty])
        if iteration.number == 0:
            problems = (*problems, ProblemResult(minimiser.problem.name))
        last = replace(problems[-1], iterations=(*problems[-1].iterations, iteration))
        self._state = replace(self._state, problems=(*problems[:-1], last), progress=minimiser.progress)
        fields: dict[str, float | str] = {
            "objective": iteration.objective,
            "primal": f"{iteration.primal:.2e}",
            "dual": f"{iteration.dual:.2e}",
            "non-zeros": iteration.nonzero,
            **({"l1": iteration.l1} if iteration.l1 is not None else {}),
            **({"held-out log-loss": iteration.held_out} if iteration.held_out is not None else {}),
            "sent": f"{sum(each.bytes for each in last.iterations) / 1e6:,.1f} MB",
        }
        bar.update(iteration.number, total=None, **fields)

    def _lost(self, number: int) -> None:
        self._state = replace(self._state, recoveries=self._state.recoveries + 1)
        self._output.warn(f"a worker or reducer was lost; iteration {number} is repeated once it is replaced")

    def _save(self, minimiser: Minimiser, *, due: bool) -> None:
        """Write a checkpoint if it is due."""
        if self._checkpoints is None or not (due or self._checkpoints.is_due(self._state.iterations)):
            return
        state, saved = replace(self._state, seconds=self._seconds), minimiser.saved
        assert saved is not None
        self._is_saved = self._checkpoints.save(
            state, lambda number: self._crew.fetch(saved.parts[0][number])
        )

    @property
    def _seconds(self) -> float:
        """Duration so far, including the runs that this one resumes."""
        return self._seconds_before + time.perf_counter() - self._began

    def _stopped(self, number: int) -> FtrieError:
        what = f"stopped by {signal.Signals(number).name} after iteration {self._state.progress.iteration}"
        if self._checkpoints is None:
            return Stopped(f"{what}; with --checkpoint it could be resumed", number)
        if not self._is_saved:
            return CheckpointError(
                f"{what}, which could not be saved; --resume continues from an earlier checkpoint"
            )
        return Stopped(f"{what}; --resume continues from the checkpoint in {self._checkpoints.path}", number)

    def _finished(self, minimiser: Minimiser, force: bool) -> DistributedRun:
        """Collect the keys with a weight, judge them by the held-out rows, and report."""
        names = tuple(self._spec.variants)
        of_views = weights_are_views(self._spec)
        keys, judged, peaks = minimiser.persist(
            lambda: (
                solution(self._crew, len(self._problems)),
                self._crew.ask_workers("judge", self._problems, of_views).summaries,
                self._crew.ask_workers("peak_bytes").summaries,
            )
        )
        held = [each for each in judged if each is not None]
        sums = [group for group, _ in held] or [each.progressive for each in self._shards]
        metrics = reduce(add, sums).metrics(names).variants
        recent = None
        if held and self._spec.guard is not None:
            recent = HeldOutFigures(sum(guard for _, guard in held), names)
        artefact = self._artefact(keys, metrics)
        report = replace(
            self._report(),
            nonzero=artefact.rows,
            judged=HELD_OUT if held else FIRST_PASS,
            variants=metrics,
            peak_bytes=tuple(peaks),
        )
        withheld = "" if force else self._withheld(report)
        return DistributedRun(
            DistributedModel(self._spec, artefact, recent),
            report,
            withheld=withheld,
            rejected=self._rejects.reasons,
        )

    def _artefact(self, keys: Sequence[Any], metrics: Mapping[str, VariantMetrics]) -> Artefact:
        """The artefact of the workers' keys, as `LearningModel.artefact` makes it."""
        data, offsets, own_features, own_numbers = zip(*keys, strict=True)
        numbers, features = np.concatenate(own_numbers), np.concatenate(own_features)
        columns = len(self._problems)
        rates = np.column_stack(
            [self._rates(each, numbers[:, columns + each.column], features) for each in self._problems]
        )
        shaped = slice(None) if columns > 1 else 0
        return Artefact.from_columns(
            key_data=np.concatenate(data),
            key_offsets=np.concatenate([[0], np.cumsum(np.concatenate([np.diff(each) for each in offsets]))]),
            weight=numbers[:, :columns][:, shaped],
            variants=self._masks[features],
            rate=rates[:, shaped],
            spec=self._spec,
            metrics={name: each.numbers() for name, each in metrics.items()},
        )

    def _rates(
        self, problem: Problem, squares: npt.NDArray[np.float32], features: npt.NDArray[np.uint16]
    ) -> npt.NDArray[np.float32]:
        """alpha / (beta + sqrt(n)), n the sum of squared gradients at the solution, where shared their mean."""
        variants = np.bitwise_count(problem.bits[features])
        n = (
            np.zeros(squares.size)
            if self._spec.learner.rate == "constant"
            else squares / np.maximum(variants, 1.0)
        )
        with np.errstate(divide="ignore"):
            rates = problem.alpha / (problem.beta + np.sqrt(n, dtype=np.float64))
        return np.minimum(rates, _LARGEST).astype(np.float32)

    def _report(self) -> DistributedReport:
        return DistributedReport(
            method=self._options.method.method,
            rows=sum(each.rows for each in self._shards),
            clicks=sum(each.clicks for each in self._shards),
            label=self._spec.input.label,
            held_out=sum(each.held_rows for each in self._shards),
            rejected=self._rejects.count,
            reasons=dict(self._rejects.counts),
            subsampled=sum(each.log.rows.subsampled for each in self._shards),
            seconds=self._seconds,
            keys=self._keys,
            problems=self._state.problems,
            workers=tuple(self._shards),
            peak_bytes=tuple(0 for _ in self._shards),
            recoveries=self._state.recoveries,
            failed_checkpoints=self._checkpoints.failed if self._checkpoints is not None else 0,
            damaged_checkpoints=self._checkpoints.damaged if self._checkpoints is not None else 0,
        )

    def _withheld(self, report: DistributedReport) -> str:
        """Why nothing may be published: too many rows were rejected, or all are of one class. "" if it may be."""
        if report.of_one_class:
            return f"{report.warnings[0]}; nothing is published, unless with --force"
        bad = self._rejects.count
        read = bad + sum(each.rows + each.held_rows + each.log.rows.subsampled for each in self._shards)
        read -= sum(each.log.rows.doubled + each.held_files.rows.doubled for each in self._shards)
        share = bad / read if read else 0.0
        return too_many_rejected(share, bad, self._rejects.reasons, "--rejects FILE lists the rows")
