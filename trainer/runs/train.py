"""One training run: from log files to a learned model, its rejects and its report. Publishing is the command's.

The files beside it do one part each: `sources` reads, `examples` hashes, `pipeline` runs the two ahead, `model` learns,
`learning` is the loop over batches, `checkpoint` keeps its state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from model_store.artefact.artefact import Artefact
from model_store.errors import FtrieError, Stopped
from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import now
from model_store.whole_file import write_whole
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.description import Description, Written
from trainer.examples.hashing import Examples
from trainer.examples.open_log import Log, OpenLog, RunStart, open_log
from trainer.learn.calibration import CalibrationReport
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.metrics.records import SliceMetrics, VariantMetrics
from trainer.learn.model import LearningModel, Memory
from trainer.logs.batch import Position, ReadFile
from trainer.logs.rejects import RejectLog, too_many_rejected
from trainer.publish.publisher import BatchPublisher, PublishCounts
from trainer.runs.resume import begin_with, go_on, restore
from trainer.runs.signals import StopSignals


@dataclass(frozen=True)
class Progress:
    """How far a run has come; `expected_rows` is an estimate from the bytes read, None for standard input.

    logloss is the first variant's in the last whole window.
    """

    rows: int
    expected_rows: int | None
    logloss: float | None
    keys: int


@dataclass(frozen=True)
class Report:
    """What a run did.

    `version` is the last one published, None until one is; `published` counts those that go out while a run learns.
    `rows` counts the rows learned from, `subsampled` those of requests without a click that were not drawn; `evicted`
    counts keys dropped because their time to live was over. Where requests are sampled, `resumed_requests` and
    `cut_requests` count what this run took as several (see WholeRequests). `reasons` counts the rejected rows by
    category, most first; `labels` those learned from by their label as the log has it. `warnings`: what somebody should
    look at.
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
    version: int | None = None
    published: PublishCounts = field(default_factory=PublishCounts)
    failed_checkpoints: int = 0
    damaged_checkpoints: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    resumed_requests: int = 0
    cut_requests: int = 0

    def as_dict(self) -> dict[str, object]:
        """The report's JSON form."""
        return {
            "rows": self.rows,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "labels": dict(self.labels),
            "subsampled": self.subsampled,
            "resumed_requests": self.resumed_requests,
            "cut_requests": self.cut_requests,
            "seconds": round(self.seconds, 6),
            "rows_per_second": round(self.rows / self.seconds, 1) if self.seconds else 0.0,
            "keys": self.keys,
            "nonzero": self.nonzero,
            "evicted": self.evicted,
            "memory": self.memory.as_dict(self.keys) if self.memory else None,
            "version": self.version,
            "published": self.published.as_dict(),
            "checkpoints": {"failed": self.failed_checkpoints, "damaged": self.damaged_checkpoints},
            "variants": {name: metrics.as_dict() for name, metrics in self.variants.items()},
            "slices": {name: [each.as_dict() for each in values] for name, values in self.slices.items()},
            "calibration": {name: each.as_dict() for name, each in self.calibration.items()},
            "warnings": list(self.warnings),
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        write_whole(path, (json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n").encode())


@dataclass
class Run:
    """A run that has ended: its model, its report, the error that ended it early, if one did.

    `absent` are the optional fields that no column was found for. `withheld`: why the model may not be published, since
    too many rows were rejected; empty if it may.
    """

    model: LearningModel
    report: Report
    failure: FtrieError | None
    absent: tuple[str, ...]
    withheld: str = ""


def train(
    spec: ModelSpec,
    log: Log,
    *,
    rejects: RejectLog,
    threads: int | None = None,
    metrics: MetricsOptions | None = None,
    keeper: Checkpoints | None = None,
    initial: Artefact | None = None,
    publisher: BatchPublisher | None = None,
    force: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_warning: Callable[[str], None] = lambda text: None,
) -> Run:
    """Learn every variant of `spec` in one pass over the log, in order.

    The result depends on the rows alone, not on `threads` (hashing threads; default: the cores less one) nor on the
    size of batches. A bad row goes to `rejects`. A log that cannot be read
    to its end stops the run: what was learned so far is in the Run, with the error as its `failure`. `metrics` says
    which metrics are written where while it learns. `keeper` saves the state, and brings that of an earlier run to go
    on from; a run that begins may begin with the model `initial` instead of with none. `publisher` publishes while it
    learns, but not at the end; with `force` however many rows were rejected. Raises SpecError before anything is
    learned where the spec does not fit the log.
    """
    for doubt in spec.warnings():
        log.on_note(doubt)
    earlier = keeper.take() if keeper is not None else None
    resumed = go_on(spec, earlier, log) if earlier else None
    with open_log(log, spec, start=resumed) as opened:
        start = opened.start
        model = LearningModel(opened.maker, metrics, keep_seen=publisher is not None)
        if earlier is not None:
            restore(model, earlier)
        elif initial is not None:
            start = replace(start, initial=begin_with(initial, model, log.on_note, on_warning))
        del earlier  # its arrays are in the model now
        if publisher is not None:
            publisher.begin(model)
        learning = Learning(model, opened, rejects, keeper, start, publisher, force=force)
        with opened.examples(threads) as stream:
            failure = learning.learn_all(stream, lambda: on_progress(_progress(model, opened)))
        if failure is None:
            model.metrics.finish()
        for warning in (*opened.requests.warnings(), *model.coordinates.admission.notes()):
            log.on_note(warning)
    report = replace(
        _report(learning, rejects, keeper),
        resumed_requests=opened.requests.resumed,
        cut_requests=opened.requests.cut,
    )
    if publisher is not None:
        report = replace(report, published=publisher.counts)
    return Run(model, report, failure, opened.absent_fields, learning.withheld)


def _progress(model: LearningModel, opened: OpenLog) -> Progress:
    expected = opened.expected_rows(model.rows)
    return Progress(model.rows, expected, model.metrics.recent_logloss(), model.table.used)


def _label_warnings(labels: Mapping[str, int]) -> tuple[str, ...]:
    if not (labels["-1"] and labels["0"]):
        return ()
    return (
        f"the label is 0 in {labels['0']:,} rows and -1 in {labels['-1']:,}: both are read as no click; where one of "
        "them means that the outcome is not known, leave those rows out of the log",
    )


def _report(learning: Learning, rejects: RejectLog, keeper: Checkpoints | None) -> Report:
    model = learning.model
    clicked, minus = model.metrics.clicked, learning.minus_labels
    labels = {"1": clicked, "0": model.rows - clicked - minus, "-1": minus}
    return Report(
        rows=model.rows,
        rejected=rejects.count,
        reasons=dict(rejects.counts),
        labels=labels,
        warnings=(*_label_warnings(labels), *model.warnings.finish()),
        subsampled=learning.subsampled,
        seconds=learning.seconds,
        keys=model.table.used,
        nonzero=model.nonzero(),
        evicted=model.evicted,
        variants=model.metrics.summary(),
        slices=model.metrics.slices(),
        calibration=model.calibrator.report() if model.calibrator is not None else {},
        memory=model.memory(),
        failed_checkpoints=keeper.failed if keeper else 0,
        damaged_checkpoints=keeper.damaged if keeper else 0,
    )


# --- The loop of a training run: learn batch after batch, and keep what a later run needs to go on from any
# of them ---
#
# The state between two batches is a model, a place in the logs, and what was written so far; a checkpoint is
# these three.


class Learning:
    """Feeds a model; publishes and saves it when that is due, saves it at the end and when a signal asks to stop."""

    def __init__(
        self,
        model: LearningModel,
        opened: OpenLog,
        rejects: RejectLog,
        keeper: Checkpoints | None,
        start: RunStart,
        publisher: BatchPublisher | None = None,
        *,
        force: bool = False,
    ) -> None:
        """`force`: publish however many rows were rejected."""
        self.model = model
        self.subsampled = start.subsampled
        self.minus_labels = start.minus_labels
        self._rows_read = start.rows_read
        self._opened = opened
        self._rejects = rejects
        self._keeper = keeper
        self._start = start
        self._publisher = publisher
        self._force = force
        self._began = time.perf_counter()
        self._stop: Position | None = None
        self._resumable = True

    @property
    def seconds(self) -> float:
        """Spent so far, by the runs before this one too."""
        return self._start.seconds + time.perf_counter() - self._began

    @property
    def rejected_share(self) -> float:
        """The part of the rows so far that was rejected: unreadable ones of all, bad ones of those that were drawn."""
        bad = self._rows_read - self.subsampled - self.model.rows
        unreadable = self._rejects.count - bad
        readable, good = _share(self._rows_read, unreadable), _share(self.model.rows, bad)
        return 1.0 - readable * good

    @property
    def withheld(self) -> str:
        """Why nothing may be published: too many rows were rejected. Empty if it may be."""
        if self._force:
            return ""
        reasons = [str(each) for each in self._rejects.first] or list(self._rejects.counts)
        remedy = "--rejects FILE lists the rows"
        return too_many_rejected(self.rejected_share, self._rejects.count, reasons, remedy)

    def learn_all(self, stream: Iterator[Examples], on_batch: Callable[[], None]) -> FtrieError | None:
        """Learn from the stream to its end, or to the error that ends it, which is returned.

        What was learned before a log breaks off, or a signal comes, is saved; before a bad row with --strict it is not.
        """
        if self._keeper is None:
            return self._learn(stream, on_batch)
        with StopSignals() as signals:
            failure = self._learn(signals.until_stopped(stream, lambda: self._resumable), on_batch)
        return _explained(failure, self.model.rows) if isinstance(failure, Stopped) else failure

    def _learn(self, stream: Iterator[Examples], on_batch: Callable[[], None]) -> FtrieError | None:
        while True:
            try:
                examples = next(stream, None)
            except FtrieError as error:
                self._save(self._read_so_far())
                return error
            if examples is None:
                self._save(self._opened.read_until(None))
                return None
            try:
                # Rejects first: with --strict nothing is learned from a batch that holds a bad row, nor after it.
                self._rejects.add_all(examples.rejects)
            except FtrieError as error:
                return error
            self._learn_batch(examples)
            on_batch()
            if self._publisher is not None:
                self._publisher.withheld = self.withheld
                self._publisher.after_batch(self.model)
            if self._keeper is not None and self._keeper.is_due(self.model.rows):
                self._save(self._read_so_far())

    def _learn_batch(self, examples: Examples) -> None:
        self.model.learn(examples)
        self._stop, self._resumable = examples.stop, examples.resumable
        self._rows_read += examples.rows_read
        self.subsampled += examples.subsampled
        self.minus_labels += examples.minus_labels

    def _read_so_far(self) -> tuple[ReadFile, ...]:
        if self._stop is None:
            return self._start.read
        return self._opened.read_until(self._stop)

    def _save(self, read: tuple[ReadFile, ...]) -> None:
        if self._keeper is None or not self._resumable:
            return
        description = Description(
            ftrie=version("ftrie"),
            created=now().isoformat(),
            spec=self._start.spec.to_json(),
            resolved=self._start.resolved.to_json(),
            columns=self._start.columns,
            rows=self.model.rows,
            keys=self.model.table.used,
            seconds=self.seconds,
            read=read,
            rows_read=self._rows_read,
            subsampled=self.subsampled,
            minus_labels=self.minus_labels,
            reject_counts=dict(self._rejects.counts_as_met),
            rejects=Written.to(self._rejects.path, self._rejects.sync()),
            metrics=self._metrics_written(),
            sides=self._start.sides,
            initial=self._start.initial,
        )
        self._keeper.save(description, self.model.state())

    def _metrics_written(self) -> Written:
        file = self.model.metrics.file
        if file is None or not file.path.is_file():
            return Written()
        file.sync()
        return Written.to(file.path, file.offset)


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 1.0


def _explained(stopped: Stopped, rows: int) -> Stopped:
    message = f"{stopped} when {rows:,} rows were learned; --resume goes on from there"
    return Stopped(message, stopped.exit_code - 128)
