"""A model that learns batch after batch as they come, and predicts in between.

In: tables or logs, one after another, or single rows. Out: after any of them, the model of all rows so far, bit for bit
that of one training run over them; its state as one file, from which another process continues.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, InputError, SpecError
from model_store.files import whole_file
from model_store.spec.spec import ModelSpec, spec_from_json
from trainer.checkpoint import file
from trainer.checkpoint.folder import Checkpoint, description_from_json
from trainer.examples.derived import DerivedColumns
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.one_row import OneRowMaker
from trainer.examples.open_log import Log, OpenLog, open_log
from trainer.examples.requests import WholeRequests
from trainer.formats.batch import NotPlain, Position, RowBatch, plain
from trainer.formats.rejects import RejectLog
from trainer.formats.tables import python_array, table_of
from trainer.learn.model import LearningModel
from trainer.learn.scorer import PredictingMaker, Scores, live_scores, scoring_spec
from trainer.output import SILENT
from trainer.runs.loop import LogLoop, start_of
from trainer.runs.train import Report, report_of

_AT_ONCE = 20_000
"""Tables of at most this many rows are hashed in the caller's thread, which is faster than to start others."""
ROW = "row"


class OnlineModel:
    """A model of a spec that learns row by row. Thread-safe: one call at a time. rejects: the bad rows so far."""

    def __init__(self, spec: ModelSpec, initial: Artefact | None = None) -> None:
        """initial: the published model to start from. Raises SpecError for a spec that needs the whole log."""
        _check_can_learn_online(spec)
        self._spec, self._initial = spec, initial
        self._lock = threading.RLock()
        self.rejects = RejectLog()
        self._loop: LogLoop | None = None
        self._row_learner: OneRowMaker | None = None
        self._row_scorer: OneRowMaker | None = None
        if spec.fields:
            # Every column is known, so that single rows can be learned before any table.
            names = dict.fromkeys([*spec.wanted_columns(), *spec.input.named_columns])
            with open_log(Log((), table=table_of(dict.fromkeys(names, pa.nulls(0)))), spec) as opened:
                self._begin(opened)

    @property
    def spec(self) -> ModelSpec:
        """The spec, resolved once a table was learned."""
        return self._loop.model.spec if self._loop is not None else self._spec

    @property
    def rows(self) -> int:
        """Rows learned so far."""
        return self._loop.model.metrics.rows if self._loop is not None else 0

    def learn(self, log: Log, threads: int | None = None) -> None:
        """Learn the rows of a log, in order; the rows of a request must not be in two of them.

        A bad row is counted in the report and skipped. Raises SpecError for a missing column, InputError if the log
        cannot be read to its end: what was learned until then stays.
        """
        with self._lock:
            start = self._loop.run_start() if self._loop is not None else None
            with open_log(log, self._spec, start=start) as opened:
                loop = self._loop if self._loop is not None else self._begin(opened)
                loop.opened = opened
                if log.table is not None and log.table.rows is not None and log.table.rows <= _AT_ONCE:
                    failure = loop.run(map(loop.model.maker.make, opened.rows()))
                else:
                    with opened.examples(threads, maker=loop.model.maker) as stream:
                        failure = loop.run(stream)
            loop.model.table.settle()  # what was given may change from here on
            if failure is not None:
                raise failure

    def learn_one(self, row: Mapping[str, Any], label: float, weight: float) -> None:
        """Learn one row. Raises FieldValueError or InputError for a bad value; then nothing is learned."""
        with self._lock:
            loop = self._ready()
            given = loop.model.spec.input
            if given.weight is None and weight != 1.0:
                raise SpecError("weight: the spec names no input.weight; add one to give rows weights")
            fast = self._row_learner
            if fast is None:
                fast = self._row_learner = OneRowMaker(loop.model.maker)
            examples = None
            if fast.usable:
                own = weight if given.weight is not None else None
                examples = fast.make(row, _after(loop.counts.rows_read), label, own)
            if examples is None:
                values = {**row, given.label: label}
                if given.weight is not None:
                    values[given.weight] = weight
                examples = _accepted(fast.maker.make(self._batch(values, loop)))
            loop.learn(examples)

    def predict(self, log: Log) -> list[tuple[int, Scores, Examples]]:
        """The scores of a log's rows, batch by batch: rows of the batch, scores, examples. O(features)."""
        with self._lock:
            loop = self._ready()
            maker = PredictingMaker(scoring_spec(loop.model.spec))
            with open_log(replace(log, unlabelled=True), maker.spec) as opened:
                found = []
                for batch in opened.rows():
                    examples = maker.make(batch)
                    found.append((batch.rows, live_scores(loop.model, maker, examples), examples))
            return found

    def predict_one(self, row: Mapping[str, Any]) -> Scores:
        """The scores of one row. Raises InputError for a bad value. O(features)."""
        with self._lock:
            loop = self._ready()
            fast = self._row_scorer
            if fast is None:
                fast = self._row_scorer = OneRowMaker(PredictingMaker(scoring_spec(loop.model.spec)))
            examples = fast.make(row, _after(0)) if fast.usable else None
            if examples is None:
                examples = _accepted(fast.maker.make(self._batch(row, loop)))
            return live_scores(loop.model, fast.maker, examples)

    def artefact(self) -> Artefact:
        """The model of this moment, as training would publish it. O(keys)."""
        with self._lock:
            return self._ready().model.artefact()

    @property
    def withheld(self) -> str:
        """Why the model should not be published, "" if it may be."""
        with self._lock:
            loop = self._ready()
            return loop.withheld or ("" if loop.model.rows else "no row could be learned from")

    def report(self) -> Report:
        """What was learned so far. Raises InputError before the first table."""
        with self._lock:
            return report_of(self._ready(), None)

    def save(self, path: Path) -> None:
        """Write the whole state to one file, atomically. Raises OSError."""
        with self._lock:
            loop = self._ready()
            with whole_file(path, path.with_name(f".{path.name}.writing")) as out:
                file.write(out, loop.description().to_json(), loop.model.state())

    @classmethod
    def load(cls, path: Path) -> OnlineModel:
        """Go on from a saved state. Raises CheckpointError for a damaged file, or one of another version."""
        written, arrays = file.read(path)
        description = description_from_json(written, str(path))
        if description.stream is not None or description.passes is not None:
            raise CheckpointError(
                f"{path} is a checkpoint of `ftrie trainer` or of several passes, not of a Learner"
            )
        model = cls.__new__(cls)
        model._spec, model._initial = spec_from_json(description.spec, str(path)), None
        model._lock = threading.RLock()
        model._row_learner = model._row_scorer = None
        model.rejects = RejectLog(counts=description.reject_counts)
        resolved = spec_from_json(description.resolved, str(path))
        start = start_of(description, model._spec, resolved, description.sides)
        model._loop = LogLoop(LearningModel(ExampleMaker(resolved)), None, model.rejects, start=start)
        model._loop.start(Checkpoint(path, description, arrays), None, SILENT)
        return model

    def _begin(self, opened: OpenLog) -> LogLoop:
        """The loop of the first table, whose columns resolve the spec."""
        loop = LogLoop(LearningModel(opened.maker), opened, self.rejects)
        loop.start(None, self._initial, SILENT)
        self._initial, self._loop = None, loop
        return loop

    @cached_property
    def _derived(self) -> DerivedColumns:
        return DerivedColumns(self.spec)

    def _ready(self) -> LogLoop:
        if self._loop is None:
            raise InputError(
                "nothing was learned yet, and the spec names no fields: call learn with a table first"
            )
        return self._loop

    def _batch(self, row: Mapping[str, Any], loop: LogLoop) -> RowBatch:
        """One row as a batch; a column that it lacks is null."""
        number = loop.counts.rows_read
        spec = loop.model.spec
        columns = {}
        for name in spec.wanted_columns():
            try:
                columns[name] = plain(python_array([row.get(name)]))
            except (NotPlain, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InputError(f"{name}: got {row.get(name)!r}: {error}") from error
        lines = np.array([number + 1], np.int64)
        batch = RowBatch(columns, lines, ROW, (), 1, _after(number), first_row=number)
        if spec.learner.subsample is not None:
            (batch,) = WholeRequests(spec, number).of([batch])
        (filled,) = self._derived.of([batch])
        return filled


def _check_can_learn_online(spec: ModelSpec) -> None:
    """Raise SpecError for fields and sections that need more than the rows so far."""
    for name, field in spec.fields.items():
        if field.history is not None:
            raise SpecError(
                f"fields.{name}: histories of users need one run over the log: use ftrie.train or `ftrie trainer`"
            )
    if spec.has_to_learn:
        names = ", ".join(name for name, field in spec.fields.items() if field.has_to_learn)
        raise SpecError(
            f"fields {names} learn their buckets or scales from a log's first rows: train on some rows first, and "
            "make the learner of that model's spec, which has what they learned: Learner(run.model.spec)"
        )


def _accepted(examples: Examples) -> Examples:
    """The examples of one row. Raises InputError if it was rejected."""
    if examples.rejects:
        raise InputError(examples.rejects[0].reason)
    return examples


def _after(rows: int) -> Position:
    """The position after a row that follows `rows` others."""
    return Position(ROW, rows + 1, rows + 2)
