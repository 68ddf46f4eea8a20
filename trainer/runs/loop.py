"""The learning loop of every run: batch after batch of examples is learned, counted, and saved between two of them.

What differs is where the examples come from, and so what else a checkpoint describes: `LogLoop` learns logs
(`ftrie train`, `ftrie replay`, a Learner), `trainer.runs.stream` has the loops over events and growing files,
`trainer.runs.rounds` that of one of several partitions. All start alike: empty, with the keys of a published model
(`--init-from`), or from a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.errors import (
    CheckpointError,
    FtrieError,
    InputError,
    SpecError,
    Stopped,
    UsageError,
    counted,
)
from model_store.model_files import read_named
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.versions.manifest import now
from model_store.waiting import StopRequest
from trainer.checkpoint import Checkpoint, Checkpoints, Description
from trainer.checkpoint.folder import Written
from trainer.examples.hashing import Examples
from trainer.examples.open_log import Log, OpenLog, RunStart
from trainer.formats.batch import Position, ReadFile, RowBatch
from trainer.formats.rejects import RejectLog, RowCounts, too_many_rejected
from trainer.formats.stored_rows import Blocks, shuffled
from trainer.learn.learners.registry import check_start
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import MetricsFile
from trainer.learn.metrics.warnings import LabelOrder
from trainer.learn.model import NO_FEATURE, LearningModel, features_of_keys
from trainer.learn.table import part_of
from trainer.output import Output
from trainer.publish.publisher import BatchPublisher, PublishCounts

Arrays = Mapping[str, npt.NDArray[Any]]
ACTIVE = "active"
BLOCKS_FILE = "blocks"
_INDEX, _METRICS = "passes.index", "passes.metrics."
_version = cache(version)  # it reads files, which a checkpoint every second need not


class LearningLoop:
    """A model, what it learns from, and the checkpoints of both. For one thread.

    initial: SHA-256 of the published model that the first run started from.
    """

    initial: str | None = None

    def __init__(
        self, model: LearningModel, spec: ModelSpec, checkpoints: Checkpoints | None, seconds: float = 0.0
    ) -> None:
        """spec: as given; seconds: duration of the runs that this one resumes."""
        self.model, self.checkpoints = model, checkpoints
        self._spec = spec
        self._began = time.perf_counter() - seconds

    def start(self, checkpoint: Checkpoint | None, initial: Artefact | None, output: Output) -> None:
        """Take the state of a checkpoint, else the keys of the published model `initial`, else start empty.

        Raises CheckpointError, SpecError.
        """
        if checkpoint is not None:
            self.initial = checkpoint.description.initial
            try:
                self.restore(checkpoint.arrays)
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise layout_error(checkpoint, error) from error
        elif initial is not None:
            _warm_start(self.model, initial, output)
            self.initial = initial.sha256

    @property
    def seconds(self) -> float:
        """Duration so far, including the runs that this one resumes."""
        return time.perf_counter() - self._began

    @property
    def resumable(self) -> bool:
        """True if a later run may resume from the present state."""
        return True

    def save_is_due(self) -> bool:
        """True if a checkpoint should be written now."""
        return self.resumable and self.checkpoints is not None and self.checkpoints.is_due(self.model.rows)

    def save(self) -> bool:
        """Write a checkpoint of this moment, if there may be one; True if it was written. A failure is reported."""
        if self.checkpoints is None or not self.resumable:
            return False
        return self.checkpoints.save(self.description(), self.state())

    def description(self) -> Description:
        """The description of a checkpoint of this moment."""
        return Description(
            ftrie=_version("ftrie"),
            created=now().isoformat(),
            spec=self._spec.to_json(),
            resolved=self.model.spec.to_json(),
            rows=self.model.rows,
            keys=self.model.table.count,
            seconds=self.seconds,
            initial=self.initial,
            **self._described(),
        )

    def _described(self) -> dict[str, Any]:
        """The members of `Description` that depend on what is learned from."""
        raise NotImplementedError

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays for a checkpoint."""
        return self.model.state()

    def restore(self, arrays: Arrays) -> None:
        """Restore `state`."""
        self.model.restore(arrays)


@dataclass(frozen=True)
class PassOptions:
    """most: the number of passes; tolerance: stop after a pass that lowers no variant's log-loss by this share."""

    most: int = 1
    tolerance: float = 1e-4

    def check(self, spec: ModelSpec) -> None:
        """Raise SpecError where the spec cannot be learned in several passes."""
        if self.most > 1 and spec.learner.ttl_seconds is not None:
            raise SpecError(
                f"learner.ttl: got {spec.learner.ttl!r}, with --passes {self.most}; later passes learn the log out of "
                "the order of time, so keys cannot expire by time: expected a number of rows, or --passes 1"
            )


@dataclass(frozen=True)
class PassFigures:
    """A pass that has ended. logloss: by variant, the mean of its examples, each predicted before it is learned."""

    rows: int
    seconds: float
    logloss: dict[str, float | None]

    @classmethod
    def of(cls, metrics: ProgressiveMetrics, seconds: float) -> Self:
        """The figures of a pass with these metrics."""
        logloss = {name: metrics.logloss(index) for index, name in enumerate(metrics.variants)}
        return cls(metrics.rows, seconds, logloss)

    def change(self, before: PassFigures | None) -> dict[str, float | None]:
        """The log-loss of each variant relative to that of the pass before, minus 1; None where there is none."""
        if before is None:
            return dict.fromkeys(self.logloss)
        pairs = {name: (loss, before.logloss[name]) for name, loss in self.logloss.items()}
        return {
            name: loss / old - 1.0 if loss is not None and old else None
            for name, (loss, old) in pairs.items()
        }


@dataclass(frozen=True)
class PassesReport:
    """The passes of a run that has ended. converged: the last one changed too little for another."""

    figures: tuple[PassFigures, ...] = ()
    converged: bool = False

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        before = (None, *self.figures)
        return {
            "converged": self.converged,
            "passes": [
                {"pass": number, **asdict(each), "change": each.change(last)}
                for number, (each, last) in enumerate(zip(self.figures, before, strict=False), 1)
            ],
        }


class Passes:
    """Several passes over one log: which is next, how far it is, when to stop. `figures`: of those that have ended.

    The first pass learns the log in order; its metrics are the run's, as each row is predicted before it is learned for
    the first time. Later passes learn the same examples again, block by block, in an order shuffled by the spec's seed
    and the pass's number. Their log-loss is a training loss: it tells whether another pass still changes the model.

    `metrics`: of the present pass, from the second on; `done`: how many pieces of its blocks were learned.
    """

    def __init__(self, options: PassOptions, spec: ModelSpec, blocks: Blocks) -> None:
        self.blocks = blocks
        self.figures: list[PassFigures] = []
        self.done = 0
        self._options, self._seed, self._variants = options, spec.learner.seed, tuple(spec.variants)
        self.metrics = ProgressiveMetrics(self._variants)

    @property
    def number(self) -> int:
        """The number of the present pass, from 1."""
        return len(self.figures) + 1

    @property
    def again(self) -> bool:
        """True in later passes than the first."""
        return bool(self.figures)

    @property
    def title(self) -> str:
        """The present pass and their number, such as "pass 2/5"."""
        return f"pass {self.number}/{self._options.most}"

    @property
    def has_more(self) -> bool:
        """True if there is a pass to begin, or to resume, after the first."""
        left = len(self.figures) < self._options.most and not self.converged
        return self.again and (left or self.done > 0)

    @property
    def converged(self) -> bool:
        """True if the last pass that ended has lowered no variant's log-loss by the tolerance."""
        if len(self.figures) < 2:
            return False
        changes = self.figures[-1].change(self.figures[-2]).values()
        return all(change is None or change > -self._options.tolerance for change in changes)

    def batches(self) -> Iterator[RowBatch]:
        """The rows that the present pass, not the first, has still to learn."""
        return self.blocks.read(shuffled(len(self.blocks), self._seed, self.number), self.done)

    def finish(self, metrics: ProgressiveMetrics, seconds: float) -> None:
        """The present pass has ended, with these metrics, when all of the run had taken `seconds`."""
        before = sum(each.seconds for each in self.figures)
        self.figures.append(PassFigures.of(metrics, seconds - before))
        self.metrics, self.done = ProgressiveMetrics(self._variants), 0

    def report(self) -> PassesReport:
        """What the passes did."""
        return PassesReport(tuple(self.figures), self.converged)

    def description(self) -> dict[str, Any]:
        """The part of a checkpoint's description, as JSON."""
        return {"ended": [asdict(each) for each in self.figures], "done": self.done}

    def state(self, rows_read: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a checkpoint: the pieces of the log's first `rows_read` rows, and this pass's metrics."""
        metrics = self.metrics.state() if self.again else {}
        return {_INDEX: self.blocks.index(rows_read)} | {
            _METRICS + name: array for name, array in metrics.items()
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint. Raises CheckpointError if its run has begun more passes than there shall be."""
        written = checkpoint.description.passes or {}
        self.figures = [PassFigures(**each) for each in written["ended"]]
        self.done = written["done"]
        if self.again:
            self.metrics.restore(part_of(checkpoint.arrays, _METRICS))
        begun = self.number if self.done else len(self.figures)
        if begun > self._options.most:
            raise CheckpointError(
                f"{checkpoint.path} is of a run in pass {begun}, but --passes is {self._options.most}; "
                f"expected {begun} or more"
            )


@contextmanager
def open_passes(
    options: PassOptions, spec: ModelSpec, folder: Path | None, checkpoint: Checkpoint | None
) -> Iterator[Passes | None]:
    """The passes of a run, None if it makes only one. folder: the checkpoints', None without.

    Raises SpecError as `PassOptions.check` does, CheckpointError where the checkpoint's run was started without them
    or this one is.
    """
    if checkpoint is not None and (checkpoint.description.passes is None) == (options.most > 1):
        before, now = ("without", "with") if options.most > 1 else ("with", "without")
        raise CheckpointError(
            f"{checkpoint.path} is of a run {before} --passes, which is resumed {now} it; pass the same flags, or "
            "start a new run with another folder"
        )
    if options.most == 1:
        yield None
        return
    options.check(spec)
    path = folder / BLOCKS_FILE if folder is not None else None
    index = checkpoint.arrays[_INDEX] if checkpoint is not None else None
    with Blocks(path, index) as blocks:
        passes = Passes(options, spec, blocks)
        if checkpoint is not None:
            passes.restore(checkpoint)
        yield passes


class LogLoop(LearningLoop):
    """Learns a log, in one pass or several. Publishes and saves when due; saves at the end, and when a signal stops it.

    The state between two batches is the model, the position in the log or in a later pass, and what was written so far;
    a checkpoint stores these three.
    """

    def __init__(
        self,
        model: LearningModel,
        opened: OpenLog | None,
        rejects: RejectLog,
        *,
        start: RunStart | None = None,
        checkpoints: Checkpoints | None = None,
        publisher: BatchPublisher | None = None,
        force: bool = False,
        passes: Passes | None = None,
    ) -> None:
        """`opened`: None between the tables of an online model, which has a `start`.

        `start`: where the run starts, by default where the log does; `force`: publish despite many rejects; `passes`:
        of a run of several.
        """
        if start is None:
            assert opened is not None
            start = opened.start
        super().__init__(model, start.spec, checkpoints, start.seconds)
        self.opened, self.rejects, self.passes, self.initial = opened, rejects, passes, start.initial
        self.counts: RowCounts = start.counts
        self.order = LabelOrder()
        self._start = start
        self._publisher = publisher
        self._force = force
        self._stop: Position | None = None
        # Once the log was read to its end.
        self._read = start.read if passes is not None and passes.again else None
        self._resumable = True

    @property
    def resumable(self) -> bool:
        """True if the log can be read again from where the last batch ended."""
        return self._resumable

    @property
    def withheld(self) -> str:
        """Why nothing may be published: too many rows were rejected. "" if it may be."""
        if self._force:
            return ""
        remedy = "--rejects FILE lists the rows"
        share = self.counts.rejected_share(self.model.metrics.rows, self.rejects.count)
        return too_many_rejected(share, self.rejects.count, self.rejects.reasons, remedy)

    def run(
        self, stream: Iterator[Examples], on_batch: Callable[[], None] = lambda: None
    ) -> FtrieError | None:
        """Learn from the stream of one pass to its end, or to the error that ends it, which is returned.

        What was learned before the log fails or a signal comes is saved; what was learned before a bad row with
        --strict is not.
        """
        if self.checkpoints is None:
            try:
                return self._run(stream, on_batch)
            except KeyboardInterrupt:
                where = f"stopped by Ctrl-C after {self.model.rows:,} rows were learned"
                raise KeyboardInterrupt(f"{where}; {self._published()}") from None
        with StopRequest() as stop:
            failure = self._run(stop.until_stopped(stream, lambda: self._resumable), on_batch)
        return self._explained(failure) if isinstance(failure, Stopped) else failure

    def _run(self, stream: Iterator[Examples], on_batch: Callable[[], None]) -> FtrieError | None:
        passes = self.passes
        while True:
            try:
                examples = next(stream, None)
            except FtrieError as error:
                self.save()
                return error
            if examples is None:
                self._end_pass()
                return None
            if passes is not None and passes.again:
                self.model.learn(examples, again=passes.metrics)
                passes.done += 1
            else:
                try:
                    # Rejects first: with --strict nothing is learned from a batch with a bad row, nor after it.
                    self.rejects.add_all(examples.rejects)
                except FtrieError as error:
                    return error
                self.learn(examples)
            on_batch()
            if self._publisher is not None:
                self._publisher.withheld = self.withheld
                self._publisher.after_batch(self.model)
            if self.save_is_due():
                self.save()

    def _end_pass(self) -> None:
        """Save at the end of a pass: of the first one before it counts as ended, so that the log may still grow."""
        if self.passes is not None and self.passes.again:
            self.passes.finish(self.passes.metrics, self.seconds)
            self.save()
            return
        if self.opened is not None:
            self._read = self.opened.read_until(None)
        self.save()
        if self.passes is not None:
            self.passes.finish(self.model.metrics, self.seconds)

    def learn(self, examples: Examples) -> None:
        """Learn a batch, and count its rows."""
        self.model.learn(examples)
        self.order.add(examples.hashed.labels)
        self._stop, self._resumable = examples.stop, examples.resumable
        self.counts += examples.counts

    def run_start(self) -> RunStart:
        """Where a run would start that continues this one."""
        return replace(self._start, initial=self.initial, counts=self.counts, seconds=self.seconds)

    def _read_so_far(self) -> tuple[ReadFile, ...]:
        if self._read is not None:
            return self._read
        if self._stop is None or self.opened is None:
            return self._start.read
        return self.opened.read_until(self._stop)

    def _described(self) -> dict[str, Any]:
        metrics = self.model.metrics.file
        if isinstance(metrics, MetricsFile) and metrics.path.is_file():
            metrics.sync()
            metrics_written = Written.to(metrics.path, metrics.offset)
        else:
            metrics_written = Written()
        return {
            "columns": self._start.columns,
            "read": self._read_so_far(),
            **vars(self.counts),
            "reject_counts": dict(self.rejects.counts_as_met),
            "rejects": Written.to(self.rejects.path, self.rejects.sync()),
            "metrics": metrics_written,
            "sides": self._start.sides,
            "passes": self.passes.description() if self.passes is not None else None,
        }

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, and of several passes."""
        passes = self.passes.state(self.counts.rows_read) if self.passes is not None else {}
        return self.model.state() | passes

    def _published(self) -> str:
        counts = self._publisher.counts if self._publisher is not None else PublishCounts()
        versions = counts.snapshots + counts.deltas
        return f"{counted(versions, 'version')} had been published" if versions else "nothing was published"

    def _explained(self, stopped: Stopped) -> FtrieError:
        learned = f"{stopped} after {self.model.rows:,} rows were learned"
        if self.checkpoints is not None and self.checkpoints.unsaved:
            return CheckpointError(
                f"{learned}, which could not be saved; --resume continues from an earlier checkpoint"
            )
        return Stopped(
            f"{learned}; --resume continues from there; {self._published()}", stopped.exit_code - 128
        )


def initial_model(spec: ModelSpec, init_from: str | None, store: str) -> Artefact | None:
    """The model that `--init-from` names: a file, a version of this model in the store, or its active version.

    Raises SpecError where no model can start the spec's learner.
    """
    if init_from is None:
        return None
    check_start(spec.learner)
    if init_from.endswith(".arrow"):
        return read_named(init_from, store).artefact
    if init_from == ACTIVE:
        return read_named(spec.model.name, store).artefact
    if init_from.isascii() and init_from.isdigit():
        return read_named(f"{spec.model.name}:{init_from}", store).artefact
    raise UsageError(
        f"--init-from {init_from!r}: expected a version of {spec.model.name!r} in the store such as 7, "
        f"{ACTIVE!r}, or a file ending in .arrow"
    )


def resumed_start(spec: ModelSpec, checkpoint: Checkpoint, log: Log, output: Output) -> RunStart:
    """Where a run over logs resumes: columns and kinds as the first run resolved them. Raises InputError."""
    before = checkpoint.description
    sides = {table.name: table.sha256 for table in log.tables}
    for name in ("items", "users"):
        if (name in before.sides) != (name in sides):
            how = "with" if name in before.sides else "without"
            raise InputError(f"the run to resume was started {how} --{name}; give the same")
    for name in (name for name in sides if sides[name] != before.sides[name]):
        output.note(
            f"the file of {name} has changed since the checkpoint; from here on, rows are joined with the new one"
        )
    return start_of(before, spec, resumed_spec(spec, checkpoint), sides)


def start_of(before: Description, spec: ModelSpec, resolved: ModelSpec, sides: dict[str, str]) -> RunStart:
    """Where a run starts that continues the one described; spec: as given, resolved: by the first run."""
    return RunStart(
        spec=spec,
        resolved=resolved,
        columns=before.columns,
        sides=sides,
        initial=before.initial,
        read=before.read,
        seconds=before.seconds,
        counts=RowCounts(before.rows_read, before.subsampled, before.minus_labels, before.doubled),
    )


def resumed_spec(spec: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """The spec as the first run resolved it, with this run's [guard]."""
    resolved = spec_from_json(checkpoint.description.resolved, str(checkpoint.path))
    return resolved.model_copy(update={"guard": spec.guard})


def layout_error(checkpoint: Checkpoint, error: Exception) -> CheckpointError:
    """The error for an undamaged checkpoint that lacks state which this version needs."""
    missing = f"no {error}" if isinstance(error, KeyError) else str(error)
    return CheckpointError(
        f"{checkpoint.path} does not hold the state of this ftrie's learners ({missing}); it was written by ftrie "
        f"{checkpoint.description.ftrie}: resume with that version, or start again with another folder"
    )


def _warm_start(model: LearningModel, initial: Artefact, output: Output) -> None:
    """Give a new model the keys of a published one.

    Raises SpecError if the spec has none of the keys' fields, or its learner cannot be warm-started. If most keys are
    of fields or crosses that the spec lacks, that is a warning.
    """
    taken = model.warm_start(initial)
    features = features_of_keys(initial, model.maker)
    if (features == NO_FEATURE).any() and not (features > 0).any():  # 0 is the bias, a key of every model
        raise SpecError(
            "no key of the model to start from is of a field or cross of this spec: it was learned from the fields "
            f"{', '.join(initial.spec.fields)}; this spec has {', '.join(model.spec.fields)}"
        )
    started = (
        f"starting with {taken:,} of the {initial.rows:,} keys of the model of {initial.spec.model.name!r}"
    )
    if 2 * int((features == NO_FEATURE).sum()) > initial.rows:
        output.warn(
            f"{started}: most are of fields or crosses that this spec does not have. That model was learned from "
            f"{_fields_and_crosses(initial.spec)}; this spec has {_fields_and_crosses(model.spec)}"
        )
    else:
        output.note(started)


def _fields_and_crosses(spec: ModelSpec) -> str:
    return ", ".join([*spec.fields, *("*".join(cross.fields) for cross in spec.crosses)])
