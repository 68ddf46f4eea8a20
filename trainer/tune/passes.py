"""One reading of a log for many models: each batch is read and hashed once, and learned by every model in turn.

Candidates differ in the learner alone, so the hashed rows are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import begin, default_threads, examples_of
from trainer.examples.requests import WholeRequests
from trainer.examples.side_tables import SideTable, joined
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.model import LearningModel
from trainer.learn.predictions_kernels import Predictions
from trainer.logs.reader import LogReader
from trainer.logs.rejects import RejectLog
from trainer.tune.candidates import Group


@dataclass(frozen=True)
class Log:
    """The log that is learned, again and again: inputs, side tables and format as `ftrie train` takes them."""

    inputs: Sequence[str]
    tables: Sequence[SideTable] = ()
    format: str | None = None
    threads: int | None = None
    on_progress: Callable[[int, int | None], None] = field(default=lambda rows, expected: None)
    on_note: Callable[[str], None] = field(default=lambda text: None)


@dataclass(frozen=True)
class Outcome:
    """How a candidate did: its metrics over the judged rows, and its weights that are not zero."""

    metrics: VariantMetrics
    nonzero: int


@dataclass(frozen=True)
class Pass:
    """What a pass has learned: rows, rows that judge, rejected rows, and each candidate's outcome by its place."""

    rows: int
    judged_rows: int
    rejected: int
    outcomes: dict[int, Outcome]


def count_rows(log: Log, spec: ModelSpec) -> int:
    """How many rows of the log would be learned from."""
    rows = 0
    with _examples(log, spec) as (stream, show):
        for examples, _ in stream:
            rows += int(examples.hashed.labels.size)
            show(rows)
    return rows


def learn_together(
    log: Log, groups: Sequence[Group], *, rows: int | None = None, judge_from: int = 0
) -> Pass:
    """Learn the first `rows` rows (None: all) by the model of every group; judge by those from `judge_from` on."""
    models: list[LearningModel] = []
    learned = 0
    rejects = RejectLog()
    with _examples(log, groups[0].spec) as (stream, show):
        for examples, maker in stream:
            models = models or [_model(group, maker, judge_from) for group in groups]
            rejects.add_all(examples.rejects)
            size = int(examples.hashed.labels.size)
            if rows is not None and learned + size > rows:
                examples, size = first_rows(examples, rows - learned), rows - learned
            for model in models:
                model.learn(examples)
            learned += size
            show(learned)
            if learned == rows:
                break
    outcomes = (
        [_outcomes(model, group) for model, group in zip(models, groups, strict=True)] if models else []
    )
    found = {place: outcome for each in outcomes for place, outcome in each.items()}
    return Pass(learned, max(learned - judge_from, 0), rejects.count, found)


def _model(group: Group, maker: ExampleMaker, judge_from: int) -> LearningModel:
    """A model of the group's spec, with the fields that the log has given."""
    spec = group.spec.model_copy(update={"fields": maker.spec.fields})
    return LearningModel(ExampleMaker(spec), Judging(begin=judge_from))


def _outcomes(model: LearningModel, group: Group) -> dict[int, Outcome]:
    metrics = list(model.metrics.summary().values())
    keys = model.table.keys()
    weights, masks = model.coordinates.weights(keys), model.coordinates.masks_of(keys)
    found = {}
    for place, variant in zip(group.candidates, group.variants, strict=True):
        used = (masks >> np.uint32(variant) & np.uint32(1)) != 0
        own = weights[:, variant if weights.shape[1] > 1 else 0]
        found[place] = Outcome(metrics[variant], int(np.count_nonzero(own[used])))
    return found


@contextmanager
def _examples(
    log: Log, spec: ModelSpec
) -> Iterator[tuple[Iterator[tuple[Examples, ExampleMaker]], Callable[[int], None]]]:
    """Open the log: its examples with their maker, and a function to be told how many rows were taken."""
    with LogReader(log.inputs, format=log.format) as reader:
        beginning = begin(spec, reader, log.tables, log.on_note)
        maker = ExampleMaker(beginning.resolved)
        batches = joined(reader.batches(beginning.columns), log.tables, maker.spec.wanted_columns())
        batches = WholeRequests(maker.spec).of(batches)

        def show(rows: int) -> None:
            total, read = reader.total_bytes, reader.bytes_read()
            log.on_progress(rows, int(rows * total / read) if total and read else None)

        with examples_of(batches, maker, log.threads or default_threads()) as stream:
            yield ((examples, maker) for examples in stream), show


# --- Metrics of a part of the log: from some row on. The rows before it are learned from, and judge nothing
# ---


@dataclass(frozen=True)
class Judging(MetricsOptions):
    """What `MetricsOptions` is to a run: here the rows before `begin` (counted from 0) are passed over."""

    begin: int = 0

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Metrics of the rows from `begin` on."""
        return JudgedPart(plan.variants, self.begin)


class JudgedPart(ProgressiveMetrics):
    """Progressive metrics that begin late."""

    def __init__(self, variants: tuple[str, ...], begin: int) -> None:
        super().__init__(variants)
        self._to_skip = begin

    def update(self, predictions: Predictions, examples: Examples) -> None:
        """Add the rows of a batch after the skipped ones."""
        rows = int(predictions.labels.size)
        skipped = min(self._to_skip, rows)
        self._to_skip -= skipped
        if skipped < rows:
            super().update(predictions.after(skipped), _outcomes_judged(examples, slice(skipped, None)))


def first_rows(examples: Examples, rows: int) -> Examples:
    """The first `rows` examples of a batch, to learn from and to judge by."""
    hashed = examples.hashed
    end = int(hashed.starts[rows])
    kept = hashed._replace(
        starts=hashed.starts[: rows + 1],
        hashes=hashed.hashes[:end],
        features=hashed.features[:end],
        x=hashed.x[:end],
    )
    return _outcomes_judged(replace(examples, hashed=kept, rows=examples.rows[:rows]), slice(rows))


def _outcomes_judged(examples: Examples, part: slice) -> Examples:
    """The examples with the labels, weights, requests and times of a part of the rows; empty stays empty."""
    hashed = examples.hashed._replace(
        labels=examples.hashed.labels[part], weights=examples.hashed.weights[part]
    )
    return replace(examples, hashed=hashed, requests=examples.requests[part], times=examples.times[part])
