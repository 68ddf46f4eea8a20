"""The loop of a training run: learn batch after batch, and keep what a later run needs to go on from any of them.

The state between two batches is a model, a place in the logs, and what was written so far; a checkpoint is these three.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

from model_store.errors import FtrieError, Stopped
from model_store.manifest import now
from trainer.beginning import Beginning
from trainer.checkpoint.description import Description, Written
from trainer.checkpoint.keeper import Keeper
from trainer.hashing.examples import Examples
from trainer.model import LearningModel
from trainer.publishing.publisher import Publishes
from trainer.rejects import RejectLog, too_many_rejected
from trainer.sources import LogReader, Position, ReadFile
from trainer.stopping import StopSignals


class Learning:
    """Feeds a model; publishes and saves it when that is due, saves it at the end and when a signal asks to stop."""

    def __init__(
        self,
        model: LearningModel,
        reader: LogReader,
        rejects: RejectLog,
        keeper: Keeper | None,
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
