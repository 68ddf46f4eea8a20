"""One training run over a log: `train` learns every variant of a spec, in one pass or several, and reports what it did.

In: a spec, a log, and optionally checkpoints, a published model to start from, and a publisher. Out: a `Run` with the
learned model and its report, which `finish_run` saves, publishes, or withholds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.artefact.artefact import Artefact
from model_store.errors import (
    CheckpointError,
    FtrieError,
    InputError,
    LeaseHeld,
    NotActivated,
    StaleEpoch,
    Stopped,
    StoreError,
)
from model_store.files import write_whole
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from trainer.checkpoint import Checkpoints
from trainer.examples.open_log import ONLY_WHOLE, Log, OpenLog, examples_of, open_log
from trainer.formats.rejects import RejectLog, no_usable_row
from trainer.learn.buckets import Collisions
from trainer.learn.calibration import CalibrationReport
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.records import Regret, SliceMetrics, VariantMetrics
from trainer.learn.metrics.warnings import is_one_class, leak_warnings, one_class_warnings
from trainer.learn.model import LearningModel, ModelMemory
from trainer.output import SILENT, Output, Progress
from trainer.publish.guard import Guard
from trainer.publish.publisher import BatchPublisher, PublishCounts, Publisher
from trainer.runs.loop import LogLoop, Passes, PassesReport, PassOptions, open_passes, resumed_start
from trainer.tune.choice import with_rates

if TYPE_CHECKING:
    from trainer.runs.train_distributed import DistributedRun


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
    memory: ModelMemory | None = None
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
    known = [initial.spec] if initial is not None else []
    if resumed is None:
        known = with_rates(spec, log, known, output)
    with ExitStack() as stack:
        opened = stack.enter_context(open_log(log, spec, start=resumed, known=known))
        if checkpoints is not None and opened.is_of_events:
            raise InputError(f"--checkpoint: {log.inputs[0]} {ONLY_WHOLE}")
        several = stack.enter_context(open_passes(passes or PassOptions(), opened.spec, folder, checkpoint))
        model = LearningModel(opened.maker, metrics, keep_seen=publisher is not None)
        loop = LogLoop(
            *(model, opened, rejects),
            checkpoints=checkpoints,
            publisher=publisher,
            force=force,
            passes=several,
        )
        loop.start(checkpoint, initial, output)
        del checkpoint  # its arrays are in the model now
        if publisher is not None:
            publisher.begin(model)
        failure = _learn(loop, opened, several, threads, output)
        report = report_of(loop, publisher)
        if failure is None:
            if model.regret is not None:
                with output.progress("regret", unit="minima") as bar:
                    regret = model.regret.regret(lambda done, total: bar.update(done, total=total))
                report = replace(report, regret=regret)
            model.metrics.finish(report.collisions, report.regret)
        for warning in (*opened.warnings(), *model.coordinates.admission.notes()):
            output.note(warning)
    withheld = loop.withheld
    if report.of_one_class and initial is None and not force:
        withheld = withheld or f"{report.warnings[0]}; nothing is published, unless with --force"
    return Run(model, report, failure, opened.absent_fields, withheld, rejects.reasons)


def _learn(
    loop: LogLoop, opened: OpenLog, passes: Passes | None, threads: int | None, output: Output
) -> FtrieError | None:
    """Make all passes, or those that are left of a resumed run; returns the error that ends them early."""
    model, failure = loop.model, None
    if passes is None or not passes.again:
        title = "learning" if passes is None else f"learning, {passes.title}"
        blocks = passes.blocks if passes is not None else None
        with opened.examples(threads, blocks=blocks) as stream, output.progress(title) as bar:
            failure = loop.run(stream, lambda: show(bar, model, opened.expected_rows(model.metrics.rows)))
    else:
        output.note("pass 1 has ended: the log is not read again, and rows added to it are not learned")
    while failure is None and passes is not None and passes.has_more:
        again, rows = passes.metrics, model.metrics.rows
        with (
            examples_of(passes.batches(), opened.maker, threads) as stream,
            output.progress(f"learning, {passes.title}", rows) as bar,
        ):
            failure = loop.run(stream, partial(show, bar, model, rows, again))
    return failure


def show(
    bar: Progress, model: LearningModel, expected: int | None, metrics: ProgressiveMetrics | None = None
) -> None:
    """Report how far a run has come. metrics: of a later pass."""
    metrics = metrics or model.metrics
    logloss = metrics.recent_logloss()
    fields = {"recent log-loss": logloss} if logloss is not None else {}
    bar.update(metrics.rows, total=expected, **fields, keys=model.table.count)


def report_of(loop: LogLoop, publisher: BatchPublisher | None) -> Report:
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


def finish_run(
    run: Run | DistributedRun,
    save: Path | None,
    store: Store | None,
    activate: bool,
    publisher: Publisher | None,
    output: Output,
) -> None:
    """Save the model to `save`, and publish it to `store`; what fails becomes the run's `failure`.

    If a signal stopped the run, nothing is done: its checkpoint has the state, to be resumed. With a `publisher`, which
    has published while the run learned, only the last changes are published. A run that learned from no row, or from
    rows of one label, has failed. Nothing is published if too many rows were rejected. A model that could not be
    published and is not saved is kept in a file in the working directory.
    """
    if isinstance(run.failure, Stopped):
        return
    if not run.report.rows:
        run.failure = run.failure or InputError(nothing_learned(run))
        return
    if run.report.of_one_class and run.withheld:
        run.failure = run.failure or InputError(run.withheld)
    artefact = cache(run.model.artefact)
    if save is not None:
        artefact().write(save)
    if store is None or run.failure is not None:
        return
    if run.withheld:
        run.failure = InputError(run.withheld)
        return
    versions = store.model(run.model.spec.model.name)
    try:
        if publisher is not None and isinstance(run, Run):
            run.set_version(publisher.finish(run.model))
            publisher.check_activated()
        else:
            _publish(run, versions, artefact(), activate, output)
    except StoreError as error:
        run.failure = error
        if save is None and run.report.version is None:
            name = versions.model
            kept = Path(f"{name}.unpublished.arrow")
            artefact().write(kept)
            output.note(
                f"the learned model is kept in {kept}; publish it with: ftrie store import {name} {kept}"
            )


def nothing_learned(run: Run | DistributedRun) -> str:
    """Why a run of no row has failed."""
    subsampled = (
        f", {run.report.subsampled:,} not drawn by learner.subsample" if run.report.subsampled else ""
    )
    said = no_usable_row("learned from", run.report.rejected, run.rejected, subsampled)
    return f"{said}; nothing is saved or published"


def _publish(
    run: Run | DistributedRun, versions: ModelVersions, artefact: Artefact, activate: bool, output: Output
) -> None:
    guard = Guard(versions, output.warn)
    verdict = guard.judge(run.model, artefact.rows)
    epoch = versions.begin() if activate else 0
    version = versions.publish(artefact, epoch=epoch, recent=verdict.recent, refused=verdict.refused)
    run.set_version(version)
    try:
        guard.report(version, verdict)
        if activate and verdict.may_be_served:
            versions.activate(version, epoch=epoch)
    except (LeaseHeld, StaleEpoch):
        raise
    except StoreError as error:
        raise NotActivated(versions.model, version, error) from error
    if activate:
        guard.check(version, verdict)
