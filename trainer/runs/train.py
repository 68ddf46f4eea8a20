"""One training run: from log files to a learned model, its rejects and its report. Publishing is the command's.

The files beside it do one part each: `sources` reads, `examples` hashes, `pipeline` runs the two ahead, `model` learns,
`learning` is the loop over batches, `checkpoint` keeps its state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Beginning, begin, default_threads, examples_of
from trainer.examples.requests import WholeRequests
from trainer.examples.side_tables import SideTable, joined
from trainer.learn.calibration import CalibrationReport
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.metrics.records import SliceMetrics, VariantMetrics
from trainer.learn.model import LearningModel, Memory
from trainer.logs.positions import Position, ReadFile
from trainer.logs.reader import BATCH_BYTES, LogReader
from trainer.logs.rejects import RejectLog, too_many_rejected
from trainer.publish.publisher import Published, Publishes
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
    published: Published = field(default_factory=Published)
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
    inputs: Sequence[str],
    *,
    rejects: RejectLog,
    tables: Sequence[SideTable] = (),
    format: str | None = None,
    threads: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    metrics: MetricsOptions | None = None,
    keeper: Checkpoints | None = None,
    initial: Artefact | None = None,
    publisher: Publishes | None = None,
    force: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_note: Callable[[str], None] = lambda text: None,
    on_warning: Callable[[str], None] = lambda text: None,
) -> Run:
    """Learn every variant of `spec` in one pass over `inputs`, in order.

    A column that the log lacks is taken from `tables`. The result depends on the rows alone, not on `threads` (hashing
    threads; default: the cores less one) nor on `batch_bytes`. A bad row goes to `rejects`. A log that cannot be read
    to its end stops the run: what was learned so far is in the Run, with the error as its `failure`. `metrics` says
    which metrics are written where while it learns. `keeper` saves the state, and brings that of an earlier run to go
    on from; a run that begins may begin with the model `initial` instead of with none. `publisher` publishes while it
    learns, but not at the end; with `force` however many rows were rejected. Raises SpecError before anything is
    learned where the spec does not fit the log.
    """
    for doubt in spec.doubts():
        on_note(doubt)
    earlier = keeper.take() if keeper is not None else None
    read = earlier.description.read if earlier else ()
    with LogReader(inputs, format=format, batch_bytes=batch_bytes, read=read, on_note=on_note) as reader:
        beginning = go_on(spec, earlier, tables, on_note) if earlier else begin(spec, reader, tables, on_note)
        maker = ExampleMaker(beginning.resolved)
        model = LearningModel(maker, metrics, keep_seen=publisher is not None)
        if earlier is not None:
            restore(model, earlier)
        elif initial is not None:
            beginning = replace(beginning, initial=begin_with(initial, model, on_note, on_warning))
        del earlier  # its arrays are in the model now
        if publisher is not None:
            publisher.begin(model)
        learning = Learning(model, reader, rejects, keeper, beginning, publisher, force=force)
        batches = joined(reader.batches(beginning.columns), tables, maker.spec.wanted_columns())
        requests = WholeRequests(maker.spec, beginning.rows_read)
        with examples_of(requests.of(batches), maker, threads or default_threads()) as stream:
            failure = learning.learn_all(stream, lambda: on_progress(_progress(model, reader)))
        if failure is None:
            model.metrics.finish()
        for warning in (*requests.warnings(), *model.coordinates.admission.notes()):
            on_note(warning)
    found = {*beginning.columns, *(name for table in tables for name in table.columns)}
    absent = tuple(each.name for each in maker.plan.fields if each.column not in found)
    report = replace(
        _report(learning, rejects, keeper), resumed_requests=requests.resumed, cut_requests=requests.cut
    )
    if publisher is not None:
        report = replace(report, published=publisher.counts)
    return Run(model, report, failure, absent, learning.withheld)


def _progress(model: LearningModel, reader: LogReader) -> Progress:
    total, read = reader.total_bytes, reader.bytes_read()
    expected = int(model.rows * total / read) if total and read else None
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
        reader: LogReader,
        rejects: RejectLog,
        keeper: Checkpoints | None,
        beginning: Beginning,
        publisher: Publishes | None = None,
        *,
        force: bool = False,
    ) -> None:
        """`force`: publish however many rows were rejected."""
        self.model = model
        self.subsampled = beginning.subsampled
        self.minus_labels = beginning.minus_labels
        self._rows_read = beginning.rows_read
        self._reader = reader
        self._rejects = rejects
        self._keeper = keeper
        self._beginning = beginning
        self._publisher = publisher
        self._force = force
        self._began = time.perf_counter()
        self._stop: Position | None = None
        self._resumable = True

    @property
    def seconds(self) -> float:
        """Spent so far, by the runs before this one too."""
        return self._beginning.seconds + time.perf_counter() - self._began

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
                self._save(self._reader.bookmarks.until(None))
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
            return self._beginning.read
        return self._reader.bookmarks.until(self._stop)

    def _save(self, read: tuple[ReadFile, ...]) -> None:
        if self._keeper is None or not self._resumable:
            return
        description = Description(
            ftrie=version("ftrie"),
            created=now().isoformat(),
            spec=self._beginning.spec.to_json(),
            resolved=self._beginning.resolved.to_json(),
            columns=self._beginning.columns,
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
            sides=self._beginning.sides,
            initial=self._beginning.initial,
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
