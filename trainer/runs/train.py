"""One training run over a log: `train` learns every variant of a spec, in one pass or several, and reports what it did.

In: a spec, a log, and optionally checkpoints, a published model to start from, and a publisher. Out: a `Run` with the
learned model and its report. `LearningLoop` is the loop over batches, which `ftrie replay` uses too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, FtrieError, InputError, Stopped, counted
from model_store.files import write_whole
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import now
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.description import Description, Written
from trainer.examples.hashing import Examples
from trainer.examples.open_log import ONLY_WHOLE, Log, OpenLog, RunStart, examples_of, open_log
from trainer.formats.batch import Position, ReadFile
from trainer.formats.rejects import RejectLog, too_many_rejected
from trainer.learn.calibration import CalibrationReport
from trainer.learn.collisions import Collisions
from trainer.learn.metrics.label_order import LabelOrder
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.records import (
    MetricsFile,
    Regret,
    SliceMetrics,
    VariantMetrics,
    is_one_class,
    leak_warnings,
    one_class_warnings,
)
from trainer.learn.model import LearningModel, Memory
from trainer.output import SILENT, Output, Progress
from trainer.publish.publisher import BatchPublisher, PublishCounts
from trainer.runs.passes import Passes, PassesReport, PassOptions, open_passes
from trainer.runs.resume import resumed_start, start_model
from trainer.runs.signals import StopSignals
from trainer.tune.rates import with_rates


@dataclass(frozen=True)
class Report:
    """What a run did.

    rows: learned from; rejected, reasons: bad rows, in all and by category, most frequent first; labels: rows learned
    from by their label in the log; subsampled: rows of requests without a click that subsampling dropped; evicted: keys
    whose time to live was over. version: the last one published, None if none was; published: counts of versions
    published while the run learned. resumed_requests, cut_requests: where requests are sampled, requests that were
    treated as several (see `WholeRequests`). warnings: what the user should look into. passes: of a run of several; the
    rows, metrics and warnings are those of the first one. regret: likewise, None without --regret.
    """

    rows: int
    rejected: int
    subsampled: int
    seconds: float
    keys: int
    nonzero: int
    evicted: int
    variants: dict[str, VariantMetrics]
    slices: dict[str, list[SliceMetrics]] = field(default_factory=dict)
    calibration: dict[str, CalibrationReport] = field(default_factory=dict)
    memory: Memory | None = None
    collisions: Collisions | None = None
    version: int | None = None
    published: PublishCounts = field(default_factory=PublishCounts)
    failed_checkpoints: int = 0
    damaged_checkpoints: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    resumed_requests: int = 0
    cut_requests: int = 0
    passes: PassesReport = field(default_factory=PassesReport)
    regret: Regret | None = None

    @property
    def of_one_class(self) -> bool:
        """See `is_one_class`."""
        return is_one_class(self.rows, self.labels.get("1", -1))

    @property
    def rows_per_second(self) -> float:
        """Rows learned per second, in all passes."""
        learned = sum(each.rows for each in self.passes.figures) or self.rows
        return learned / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "rows": self.rows,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "labels": dict(self.labels),
            "subsampled": self.subsampled,
            "resumed_requests": self.resumed_requests,
            "cut_requests": self.cut_requests,
            "seconds": round(self.seconds, 6),
            "rows_per_second": round(self.rows_per_second, 1),
            "keys": self.keys,
            "nonzero": self.nonzero,
            "evicted": self.evicted,
            "memory": self.memory.as_dict(self.keys) if self.memory else None,
            "collisions": self.collisions.model_dump() if self.collisions else None,
            "version": self.version,
            "published": self.published.as_dict(),
            "checkpoints": {"failed": self.failed_checkpoints, "damaged": self.damaged_checkpoints},
            "variants": {name: metrics.as_dict() for name, metrics in self.variants.items()},
            "slices": {name: [each.as_dict() for each in values] for name, values in self.slices.items()},
            "calibration": {name: each.as_dict() for name, each in self.calibration.items()},
            "warnings": list(self.warnings),
            **self.passes.as_dict(),
            **({"regret": self.regret.model_dump(exclude={"kind"})} if self.regret is not None else {}),
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON, atomically."""
        write_whole(path, (json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n").encode())


@dataclass
class Run:
    """A run that has ended.

    failure: the error that ended it early; absent: optional fields for which there was no column; withheld: why the
    model must not be published (too many rows were rejected, or all labels are one), "" if it may be; rejected: the
    first bad rows, in words.
    """

    model: LearningModel
    report: Report
    failure: FtrieError | None
    absent: tuple[str, ...]
    withheld: str = ""
    rejected: Sequence[str] = ()

    @property
    def lacks(self) -> str:
        """A note on the optional fields without a column, "" if there are none."""
        names = ", ".join(self.absent)
        return names and f"no column was found for the optional fields {names}; no row has a value of them"

    def set_version(self, version: int) -> None:
        """Report the version that was published."""
        self.report = replace(self.report, version=version)


def train(
    spec: ModelSpec,
    log: Log,
    *,
    rejects: RejectLog,
    threads: int | None = None,
    metrics: MetricsOptions | None = None,
    checkpoints: Checkpoints | None = None,
    initial: Artefact | None = None,
    publisher: BatchPublisher | None = None,
    force: bool = False,
    passes: PassOptions | None = None,
    output: Output = SILENT,
) -> Run:
    """Learn every variant of `spec` in one pass over the log, in order, and in more passes over its shuffled blocks.

    rejects: receives bad rows; threads: hashing threads, None for all cores but one; metrics: which metrics are
    computed and where they are written; checkpoints: saves the state, and has that of the run to resume; initial: the
    published model to start from if none is resumed; publisher: publishes while the run learns, but not at its end;
    force: publish however many rows are rejected; passes: one if None.

    The result depends on the rows alone, not on `threads` nor on the size of batches. If the log cannot be read to its
    end, the Run has what was learned until then, and the error as its `failure`. Raises SpecError, before anything is
    learned, if the spec does not fit the log.
    """
    for warning in spec.warnings():
        output.note(warning)
    checkpoint = checkpoints.take() if checkpoints is not None else None
    if checkpoint is not None and metrics is not None and metrics.regret:
        raise CheckpointError(
            f"--regret needs every example of the run, and {checkpoint.path} does not keep them; "
            "start a new run with another folder, or leave --regret out"
        )
    resumed = resumed_start(spec, checkpoint, log, output) if checkpoint else None
    folder = checkpoints.path if checkpoints is not None else None
    with (
        _opened(spec, log, resumed, checkpoints, initial, output) as opened,
        open_passes(passes or PassOptions(), opened.spec, folder, checkpoint) as several,
    ):
        model = LearningModel(opened.maker, metrics, keep_seen=publisher is not None)
        first = start_model(model, output, checkpoint=checkpoint, initial=initial)
        del checkpoint  # its arrays are in the model now
        if publisher is not None:
            publisher.begin(model)
        loop = LearningLoop(
            *(model, opened, rejects),
            start=replace(opened.start, initial=first),
            checkpoints=checkpoints,
            publisher=publisher,
            force=force,
            passes=several,
        )
        failure = _learn(loop, opened, several, threads, output)
        report = report_of(loop, publisher)
        if failure is None:
            report = replace(report, regret=_regret(model, output))
            model.metrics.finish(report.collisions, report.regret)
        for warning in (*opened.warnings(), *model.coordinates.admission.notes()):
            output.note(warning)
    withheld = loop.withheld
    if report.of_one_class and initial is None and not force:
        withheld = withheld or f"{report.warnings[0]}; nothing is published, unless with --force"
    return Run(model, report, failure, opened.absent_fields, withheld, rejects.reasons)


@contextmanager
def _opened(
    spec: ModelSpec,
    log: Log,
    resumed: RunStart | None,
    checkpoints: Checkpoints | None,
    initial: Artefact | None,
    output: Output,
) -> Iterator[OpenLog]:
    known = [initial.spec] if initial is not None else []
    if resumed is None:
        known = with_rates(spec, log, known, output)
    with open_log(log, spec, start=resumed, known=known) as opened:
        if checkpoints is not None and opened.is_of_events:
            raise InputError(f"--checkpoint: {log.inputs[0]} {ONLY_WHOLE}")
        yield opened


def _learn(
    loop: LearningLoop, opened: OpenLog, passes: Passes | None, threads: int | None, output: Output
) -> FtrieError | None:
    """Make all passes, or those that are left of a resumed run; returns the error that ends them early."""
    model, failure = loop.model, None
    if passes is None or not passes.again:
        title = "learning" if passes is None else f"learning, {passes.title}"
        blocks = passes.blocks if passes is not None else None
        with opened.examples(threads, blocks=blocks) as stream, output.progress(title) as bar:
            failure = loop.run(
                stream, lambda: _show(bar, model, model.metrics, opened.expected_rows(model.metrics.rows))
            )
    else:
        output.note("pass 1 has ended: the log is not read again, and rows added to it are not learned")
    while failure is None and passes is not None and passes.goes_on:
        again, rows = passes.metrics, model.metrics.rows
        with (
            examples_of(passes.batches(), opened.maker, threads) as stream,
            output.progress(f"learning, {passes.title}", rows) as bar,
        ):
            failure = loop.run(stream, partial(_show, bar, model, again, rows))
    return failure


def _regret(model: LearningModel, output: Output) -> Regret | None:
    if model.regret is None:
        return None
    with output.progress("regret", unit="minima") as bar:
        return model.regret.regret(lambda done, total: bar.update(done, total=total))


def _show(bar: Progress, model: LearningModel, metrics: ProgressiveMetrics, expected: int | None) -> None:
    logloss = metrics.recent_logloss()
    fields = {"recent log-loss": logloss} if logloss is not None else {}
    bar.update(metrics.rows, total=expected, **fields, keys=model.table.count)


def report_of(loop: LearningLoop, publisher: BatchPublisher | None) -> Report:
    """What the loop has done so far."""
    model, rejects, checkpoints = loop.model, loop.rejects, loop.checkpoints
    rows, clicked, minus = model.metrics.rows, model.metrics.clicked, loop.counts.minus_labels
    labels = {"1": clicked, "0": rows - clicked - minus, "-1": minus}
    variants = model.metrics.summary()
    return Report(
        rows=rows,
        rejected=rejects.count,
        reasons=dict(rejects.counts),
        labels=labels,
        warnings=(
            *_label_warnings(labels, model.spec.input),
            *(loop.order.warnings() if loop.opened is not None and not loop.opened.is_of_events else ()),
            *leak_warnings(variants, clicked, rows - clicked),
            *model.warnings.finish(),
        ),
        subsampled=loop.counts.subsampled,
        resumed_requests=loop.opened.requests.resumed if loop.opened is not None else 0,
        cut_requests=loop.opened.requests.cut if loop.opened is not None else 0,
        seconds=loop.seconds,
        keys=model.table.count,
        nonzero=model.nonzero(),
        evicted=model.evicted,
        variants=variants,
        slices=model.metrics.slices(),
        calibration=model.calibrator.report() if model.calibrator is not None else {},
        memory=model.memory(),
        collisions=model.table.collisions(),
        published=publisher.counts if publisher is not None else PublishCounts(),
        failed_checkpoints=checkpoints.failed if checkpoints else 0,
        damaged_checkpoints=checkpoints.damaged if checkpoints else 0,
        passes=loop.passes.report() if loop.passes is not None else PassesReport(),
    )


def _label_warnings(labels: Mapping[str, int], section: InputSection) -> tuple[str, ...]:
    if section.positive is not None and labels["0"] and not labels["1"]:
        return (
            f"no row is a click: input.positive = {section.positive!r} occurs in none of {labels['0']:,} rows of "
            f"column {section.label!r}",
        )
    if of_one := one_class_warnings(sum(labels.values()), labels["1"], section.label):
        return of_one
    if not (labels["-1"] and labels["0"]):
        return ()
    return (
        f"the label is 0 in {labels['0']:,} rows and -1 in {labels['-1']:,}: both are read as no click; if one of them "
        "means that the outcome is not known, leave those rows out of the log",
    )


class LearningLoop:
    """Learns from batch after batch. BatchPublisher and saves when due, and saves at the end or when a signal stops it.

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
        self.model, self.opened, self.rejects, self.checkpoints = model, opened, rejects, checkpoints
        self.passes = passes
        self.counts = start.counts
        self.order = LabelOrder()
        self._start = start
        self._publisher = publisher
        self._force = force
        self._began = time.perf_counter()
        self._stop: Position | None = None
        self._read = start.read if self._again else None  # once the log was read to its end
        self._resumable = True

    @property
    def seconds(self) -> float:
        """Duration so far, including the runs that this one resumes."""
        return self._start.seconds + time.perf_counter() - self._began

    @property
    def withheld(self) -> str:
        """Why nothing may be published: too many rows were rejected. "" if it may be."""
        if self._force:
            return ""
        remedy = "--rejects FILE lists the rows"
        share = self.counts.rejected_share(self.model.metrics.rows, self.rejects.count)
        return too_many_rejected(share, self.rejects.count, self.rejects.reasons, remedy)

    def run(self, stream: Iterator[Examples], on_batch: Callable[[], None]) -> FtrieError | None:
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
        with StopSignals() as signals:
            failure = self._run(signals.until_stopped(stream, lambda: self._resumable), on_batch)
        return self._explained(failure) if isinstance(failure, Stopped) else failure

    def _run(self, stream: Iterator[Examples], on_batch: Callable[[], None]) -> FtrieError | None:
        while True:
            try:
                examples = next(stream, None)
            except FtrieError as error:
                self._save()
                return error
            if examples is None:
                self._end_pass()
                return None
            if self._again:
                self._learn_again(examples)
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
            if self.checkpoints is not None and self.checkpoints.is_due(self.model.rows):
                self._save()

    @property
    def _again(self) -> bool:
        return self.passes is not None and self.passes.again

    def _learn_again(self, examples: Examples) -> None:
        assert self.passes is not None
        self.model.learn(examples, again=self.passes.metrics)
        self.passes.done += 1

    def _end_pass(self) -> None:
        """Save at the end of a pass: of the first one before it counts as ended, so that the log may still grow."""
        if self.passes is not None and self.passes.again:
            self.passes.finish(self.passes.metrics, self.seconds)
            self._save()
            return
        if self.opened is not None:
            self._read = self.opened.read_until(None)
        self._save()
        if self.passes is not None:
            self.passes.finish(self.model.metrics, self.seconds)

    def learn(self, examples: Examples) -> None:
        """Learn a batch, and count its rows."""
        self.model.learn(examples)
        self.order.add(examples.hashed.labels)
        self._stop, self._resumable = examples.stop, examples.resumable
        self.counts += examples.counts

    def _read_so_far(self) -> tuple[ReadFile, ...]:
        if self._read is not None:
            return self._read
        if self._stop is None or self.opened is None:
            return self._start.read
        return self.opened.read_until(self._stop)

    def state(self) -> RunStart:
        """Where a run would start that continues this one."""
        return replace(self._start, counts=self.counts, seconds=self.seconds)

    def description(self) -> Description:
        """The description of a checkpoint of this moment."""
        return Description(
            ftrie=version("ftrie"),
            created=now().isoformat(),
            spec=self._start.spec.to_json(),
            resolved=self._start.resolved.to_json(),
            columns=self._start.columns,
            rows=self.model.rows,
            keys=self.model.table.count,
            seconds=self.seconds,
            read=self._read_so_far(),
            **vars(self.counts),
            reject_counts=dict(self.rejects.counts_as_met),
            rejects=Written.to(self.rejects.path, self.rejects.sync()),
            metrics=self._metrics_written(),
            sides=self._start.sides,
            initial=self._start.initial,
            passes=self.passes.description() if self.passes is not None else None,
        )

    def _save(self) -> None:
        if self.checkpoints is None or not self._resumable:
            return
        state = self.passes.state(self.counts.rows_read) if self.passes is not None else {}
        self.checkpoints.save(self.description(), self.model.state() | state)

    def _metrics_written(self) -> Written:
        file = self.model.metrics.file
        if not isinstance(file, MetricsFile) or not file.path.is_file():
            return Written()
        file.sync()
        return Written.to(file.path, file.offset)

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
