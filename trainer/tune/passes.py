"""One pass over a log for many models: each batch is read and hashed once, and learned by every model in turn.

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
from trainer.examples.open_log import Log, OpenLog, open_log
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.model import LearningModel
from trainer.learn.predictions_kernels import Predictions
from trainer.logs.rejects import RejectLog
from trainer.tune.candidates import Group


@dataclass(frozen=True)
class Repeated:
    """A log that is learned several times. on_progress: receives the rows taken so far and the rows expected."""

    log: Log
    threads: int | None = None
    on_progress: Callable[[int, int | None], None] = field(default=lambda rows, expected: None)

    @contextmanager
    def examples(self, spec: ModelSpec) -> Iterator[tuple[OpenLog, Iterator[Examples]]]:
        """Open the log and hash its rows by the spec."""
        with open_log(self.log, spec) as opened, opened.examples(self.threads) as stream:
            yield opened, stream


@dataclass(frozen=True)
class Outcome:
    """A candidate's metrics over the compared rows, and its number of non-zero weights."""

    metrics: VariantMetrics
    nonzero: int


@dataclass(frozen=True)
class Pass:
    """The result of a pass: rows learned, compared and rejected, and each candidate's outcome by its index."""

    rows: int
    judged_rows: int
    rejected: int
    outcomes: dict[int, Outcome]


def count_rows(log: Repeated, spec: ModelSpec) -> int:
    """The number of rows of the log that would be learned."""
    rows = 0
    with log.examples(spec) as (opened, stream):
        for examples in stream:
            rows += int(examples.hashed.labels.size)
            log.on_progress(rows, opened.expected_rows(rows))
    return rows


def learn_together(
    log: Repeated, groups: Sequence[Group], *, rows: int | None = None, compare_from: int = 0
) -> Pass:
    """Learn the first `rows` rows (None: all) with the model of every group; compare by rows from `compare_from` on."""
    models: list[LearningModel] = []
    learned = 0
    rejects = RejectLog()
    with log.examples(groups[0].spec) as (opened, stream):
        for examples in stream:
            models = models or [_model(group, opened.spec, compare_from) for group in groups]
            rejects.add_all(examples.rejects)
            size = int(examples.hashed.labels.size)
            if rows is not None and learned + size > rows:
                examples, size = first_rows(examples, rows - learned), rows - learned
            for model in models:
                model.learn(examples)
            learned += size
            log.on_progress(learned, opened.expected_rows(learned))
            if learned == rows:
                break
    outcomes = (
        [_outcomes(model, group) for model, group in zip(models, groups, strict=True)] if models else []
    )
    found = {index: outcome for each in outcomes for index, outcome in each.items()}
    return Pass(learned, max(learned - compare_from, 0), rejects.count, found)


def _model(group: Group, resolved: ModelSpec, compare_from: int) -> LearningModel:
    """A model of the group's spec, with the fields resolved against the log."""
    spec = group.spec.model_copy(update={"fields": resolved.fields})
    return LearningModel(ExampleMaker(spec), LateMetricsOptions(begin=compare_from))


def _outcomes(model: LearningModel, group: Group) -> dict[int, Outcome]:
    metrics = list(model.metrics.summary().values())
    keys = model.table.keys()
    weights, masks = model.coordinates.weights(keys), model.coordinates.masks_of(keys)
    found = {}
    for index, variant in zip(group.candidates, group.variants, strict=True):
        used = (masks >> np.uint32(variant) & np.uint32(1)) != 0
        own = weights[:, variant if weights.shape[1] > 1 else 0]
        found[index] = Outcome(metrics[variant], int(np.count_nonzero(own[used])))
    return found


@dataclass(frozen=True)
class LateMetricsOptions(MetricsOptions):
    """Options for metrics that skip the rows before `begin`, counted from 0."""

    begin: int = 0

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Metrics of the rows from `begin` on."""
        return LateMetrics(plan.variants, self.begin)


class LateMetrics(ProgressiveMetrics):
    """Progressive metrics without the first `begin` rows, which are learned all the same."""

    def __init__(self, variants: tuple[str, ...], begin: int) -> None:
        super().__init__(variants)
        self._to_skip = begin

    def update(self, predictions: Predictions, examples: Examples) -> None:
        """Add the rows of a batch after the skipped ones."""
        rows = int(predictions.labels.size)
        skipped = min(self._to_skip, rows)
        self._to_skip -= skipped
        if skipped < rows:
            super().update(predictions.after(skipped), _with_outcomes(examples, slice(skipped, None)))


def first_rows(examples: Examples, rows: int) -> Examples:
    """The first `rows` examples of a batch."""
    hashed = examples.hashed
    end = int(hashed.starts[rows])
    kept = hashed._replace(
        starts=hashed.starts[: rows + 1],
        hashes=hashed.hashes[:end],
        features=hashed.features[:end],
        x=hashed.x[:end],
    )
    return _with_outcomes(replace(examples, hashed=kept, rows=examples.rows[:rows]), slice(rows))


def _with_outcomes(examples: Examples, part: slice) -> Examples:
    """The examples with the labels, weights, requests and times of a part of the rows; empty arrays stay empty."""
    hashed = examples.hashed._replace(
        labels=examples.hashed.labels[part], weights=examples.hashed.weights[part]
    )
    return replace(examples, hashed=hashed, requests=examples.requests[part], times=examples.times[part])
