"""One training run: from log files to a learned model, its rejects and its report. Publishing is the command's.

The files beside it do one part each: `sources` reads, `examples` hashes, `pipeline` runs the two ahead, `model` learns.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_store.errors import FtrieError, SpecError
from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.spec import ModelSpec, parse_spec
from model_store.whole_file import write_whole
from trainer.hashing.examples import ExampleMaker, Examples
from trainer.model import LearningModel, check_learner
from trainer.pipeline import default_threads, examples_of
from trainer.rejects import RejectLog
from trainer.side_tables import SideTable, joined
from trainer.sources import LogReader, RowBatch
from trainer.watching.metrics import VariantMetrics

_PART = "train"


@dataclass(frozen=True)
class Progress:
    """How far a run has come; `expected_rows` is an estimate from the bytes read, None for standard input."""

    rows: int
    expected_rows: int | None
    logloss: float | None
    keys: int


@dataclass(frozen=True)
class Report:
    """What a run did. `rows` counts the rows learned from; `version` is None until the model is published."""

    rows: int
    rejected: int
    seconds: float
    keys: int
    nonzero: int
    variants: dict[str, VariantMetrics]
    version: int | None = None

    def as_dict(self) -> dict[str, object]:
        """The report's JSON form."""
        return {
            "rows": self.rows,
            "rejected": self.rejected,
            "seconds": round(self.seconds, 6),
            "rows_per_second": round(self.rows / self.seconds, 1) if self.seconds else 0.0,
            "keys": self.keys,
            "nonzero": self.nonzero,
            "version": self.version,
            "variants": {name: metrics.as_dict() for name, metrics in self.variants.items()},
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        write_whole(path, (json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n").encode())


@dataclass
class Run:
    """A run that has ended: its model, its report, the error that ended it early, if one did.

    `absent` are the optional fields that no column was found for.
    """

    model: LearningModel
    report: Report
    failure: FtrieError | None
    absent: tuple[str, ...]


def train(
    spec: ModelSpec,
    inputs: Sequence[str],
    *,
    rejects: RejectLog,
    tables: Sequence[SideTable] = (),
    format: str | None = None,
    threads: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """Learn every variant of `spec` in one pass over `inputs`, in order.

    A column that the log lacks is taken from `tables`. The result depends on the rows alone, not on `threads` (hashing
    threads; default: the cores less one). A bad row goes to `rejects`. A log that cannot be read to its end stops the
    run: what was learned so far is in the Run, with the error as its `failure`. Raises SpecError before anything is
    learned where the spec does not fit the log.
    """
    check_learner(spec.learner)
    began = time.perf_counter()
    with LogReader(inputs, format=format) as reader:
        columns = _columns(reader, tables)
        maker = ExampleMaker(spec.resolve(columns))
        model = LearningModel(maker)
        failure = None
        batches = _batches(reader, tables, maker.spec.wanted_columns())
        with examples_of(batches, maker, threads or default_threads()) as stream:
            try:
                for examples in stream:
                    _learn(model, examples, rejects)
                    on_progress(_progress(model, reader))
            except FtrieError as error:
                failure = error
    seconds = time.perf_counter() - began
    absent = tuple(field.name for field in maker.plan.fields if field.column not in columns)
    return Run(model, _report(model, rejects, seconds), failure, absent)


def compile_kernels() -> None:
    """Compile every kernel of the trainer by learning two rows, with one variant and with two."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, RejectLog() as rejects:
        log = Path(folder) / "log.csv"
        log.write_text('y,f\n1,a\n0,"b"\n', encoding="utf-8")
        for variants in ("", "[variants]\na = {}\nb = { without = ['f'] }\n"):
            spec = parse_spec(f'[model]\nname = "x"\n[input]\nlabel = "y"\n[fields]\nf = {{}}\n{variants}')
            run = train(spec, [str(log)], rejects=rejects)
            run.model.table.grow()
            run.model.artefact()
    mark_kernels_cached(_PART)


def kernels_are_ready() -> bool:
    """True if the trainer's kernels were compiled on this machine before."""
    return kernels_are_cached(_PART)


def _columns(reader: LogReader, tables: Sequence[SideTable]) -> tuple[str, ...]:
    """The log's columns, then those that only a table has."""
    names = dict.fromkeys(reader.columns())
    for table in tables:
        if table.key not in names:
            raise SpecError(f"input: no column {table.key!r} in the log; it has: {', '.join(names)}")
        names |= dict.fromkeys(table.columns)
    return tuple(names)


def _batches(reader: LogReader, tables: Sequence[SideTable], wanted: Sequence[str]) -> Iterable[RowBatch]:
    in_log = set(reader.columns())
    read = dict.fromkeys(name for name in (*wanted, *(table.key for table in tables)) if name in in_log)
    return joined(reader.batches(tuple(read)), tables, wanted)


def _learn(model: LearningModel, examples: Examples, rejects: RejectLog) -> None:
    """Rejects first: with --strict nothing is learned from a batch that holds a bad row, nor after it."""
    rejects.add_all(examples.rejects)
    model.learn(examples)


def _progress(model: LearningModel, reader: LogReader) -> Progress:
    total, read = reader.total_bytes, reader.bytes_read()
    expected = int(model.rows * total / read) if total and read else None
    return Progress(model.rows, expected, model.metrics.logloss(), model.table.used)


def _report(model: LearningModel, rejects: RejectLog, seconds: float) -> Report:
    nonzero = int(np.count_nonzero(model.weights()[model.table.slots["key"] != 0]))
    return Report(model.rows, rejects.count, seconds, model.table.used, nonzero, model.metrics.summary())
