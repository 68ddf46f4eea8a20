"""One pass over a log for many models: each batch is read and hashed once, and learned by every model in turn.

Models of one pass differ in the learner alone, so the hashed rows are the same for all of them. `Repeated.learn` takes
a pass from the search's state file where that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, open_log
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.metrics.requests import ProgressiveRequests, RequestMeasure
from trainer.learn.model import LearningModel
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.whole_requests import whole_requests
from trainer.tune.candidates import Group
from trainer.tune.paired import BlockSums, Floats
from trainer.tune.state import State

Column = Annotated[
    Floats,
    PlainValidator(lambda numbers: np.array(numbers, np.float64)),
    PlainSerializer(lambda array: array.tolist()),
]
"""Numbers that the state file keeps as a list, without a changed bit."""
Expected = Callable[[int], int | None]
"""An estimate of all rows, of how many were taken."""


@dataclass(frozen=True)
class Repeated:
    """A log that is learned several times. on_progress: receives the rows taken so far and the rows expected.

    state: keeps finished passes, so that they are not repeated.
    """

    log: Log
    threads: int | None = None
    on_progress: Callable[[int, int | None], None] = field(default=lambda rows, expected: None)
    state: State | None = None

    @contextmanager
    def examples(self, spec: ModelSpec) -> Iterator[tuple[ModelSpec, Expected, Iterator[Examples]]]:
        """Open the log and hash its rows by the spec; the spec, resolved, and how many rows to expect beside them."""
        with open_log(self.log, spec) as opened, opened.examples(self.threads) as stream:
            yield opened.spec, opened.expected_rows, stream

    def learn(
        self,
        groups: Sequence[Group],
        *,
        rows: int | None = None,
        compare_from: int = 0,
        measure: RequestMeasure | None = None,
        frozen: bool = False,
        ahead: int = 0,
    ) -> Pass:
        """Learn the first `rows` rows (None: all) with the model of each group; compare those from `compare_from` on.

        measure: compare by it instead of the log-loss. Raises SpecError if the log has no requests then. frozen: the
        rows compared by are predicted and not learned, as by a model that was published before them. ahead: every so
        many rows are predicted before any of them is learned, as by models that are made again and again; they are in
        memory. Nothing is learned where the state has this pass.
        """
        if self.state is None:
            return self._learned(groups, rows, compare_from, measure, frozen, ahead)
        identity = [group.identity for group in groups], rows, compare_from, str(measure), frozen, ahead
        key = self.state.key(*identity)
        if (kept := self.state.get(key)) is not None:
            return _KEPT.validate_python(kept)
        learned = self._learned(groups, rows, compare_from, measure, frozen, ahead)
        self.state.put(key, _KEPT.dump_python(learned, mode="json"))
        return learned

    def _learned(
        self,
        groups: Sequence[Group],
        rows: int | None,
        compare_from: int,
        measure: RequestMeasure | None,
        frozen: bool,
        ahead: int,
    ) -> Pass:
        models: list[LearningModel] = []
        held: list[Examples] = []
        learned = seen = 0
        rejects = RejectLog()
        with self.examples(groups[0].spec) as (resolved, expected_rows, stream):
            if measure is not None:
                measure.check(resolved.input.request)

            def taken() -> Iterator[Examples]:
                nonlocal learned
                for examples in stream:
                    rejects.add_all(examples.rejects)
                    size = int(examples.hashed.labels.size)
                    if rows is not None and learned + size > rows:
                        examples, size = examples.part(0, rows - learned), rows - learned
                    yield examples
                    learned += size
                    expected = expected_rows(learned)
                    self.on_progress(
                        learned, expected if rows is None or expected is None else min(rows, expected)
                    )
                    if learned == rows:
                        return

            def learn_held() -> None:
                for model in models:
                    for each in held:
                        model.judge(each)
                    for each in held:
                        model.learn_judged(each)
                held.clear()

            whole = measure is not None and not frozen
            pieces = cut(taken(), ahead) if ahead else taken()
            for parts in whole_requests(pieces) if whole else zip(pieces):
                models = models or [_model(group, resolved, compare_from, measure) for group in groups]
                if ahead:
                    held += parts
                    if sum(each.rows.size for each in held) >= ahead:
                        learn_held()
                    continue
                to_learn = max(compare_from - seen, 0) if frozen else None
                seen += parts[0].rows.size
                for model in models:
                    if whole:
                        model.learn_requests(parts)
                        continue
                    model.learn(parts[0] if to_learn is None else parts[0].part(0, to_learn))
                    if to_learn is not None:
                        model.judge(parts[0].part(to_learn))
            learn_held()
        outcomes = dict[int, Outcome]()
        for model, group in zip(models, groups, strict=False):
            outcomes |= _outcomes(model, group)
        weights = _late(models[0]).blocks.sums()[:, -1] if models else np.zeros(0)
        return Pass(learned, max(learned - compare_from, 0), rejects.count, weights, outcomes)


@dataclass(frozen=True)
class Outcome:
    """What a candidate did over the compared rows.

    sums: the sum of weight x log-loss of each block of rows, or of a measure of each block of judged requests; measure:
    its mean over them; nonzero: non-zero weights at the end of the pass; crosses, fields: keys of each in the table.
    """

    metrics: VariantMetrics
    nonzero: int
    sums: Column
    measure: float | None = None
    crosses: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, int] = field(default_factory=dict)

    def figures(self) -> dict[str, float | None]:
        """Log-loss, AUC, non-zero weights, and the measure if there is one, as JSON."""
        found = {"logloss": self.metrics.logloss, "auc": self.metrics.auc, "nonzero": self.nonzero}
        return found if self.measure is None else found | {"measure": self.measure}


@dataclass(frozen=True)
class Pass:
    """The result of a pass: rows learned, compared and rejected, and each candidate's outcome by its index.

    weights: the sum of the weights of each block of compared rows, or its judged requests.
    """

    rows: int
    judged_rows: int
    rejected: int
    weights: Column
    outcomes: dict[int, Outcome]


_KEPT = TypeAdapter(Pass)


def cut(stream: Iterable[Examples], size: int) -> Iterator[Examples]:
    """The same rows, in batches that end at each multiple of `size`."""
    seen = 0
    for examples in stream:
        rows = int(examples.hashed.labels.size)
        ends = [*range(size - seen % size, rows, size), rows]
        for begin, end in pairwise([0, *ends]):
            yield examples.part(begin, end)
        seen += rows


def _model(
    group: Group, resolved: ModelSpec, compare_from: int, measure: RequestMeasure | None
) -> LearningModel:
    """A model of the group's spec, with fields and input resolved against the log."""
    spec = group.spec.model_copy(update={"fields": resolved.fields, "input": resolved.input})
    return LearningModel(ExampleMaker(spec), LateMetricsOptions(begin=compare_from, measure=measure))


def _outcomes(model: LearningModel, group: Group) -> dict[int, Outcome]:
    metrics, measures = list(model.metrics.summary().values()), _late(model).measures()
    sums = _late(model).blocks.sums()
    keys = model.table.keys()
    weights, masks = model.coordinates.weights(keys), model.coordinates.masks_of(keys)
    plan, owners = model.maker.plan, model.maker.feature_rules.owner[keys.features]
    found = {}
    for index, variant in zip(group.candidates, group.variants, strict=True):
        used = (masks >> np.uint32(variant) & np.uint32(1)) != 0
        own = weights[:, variant if weights.shape[1] > 1 else 0]
        by_owner = np.bincount(owners[used], minlength=1 + len(plan.fields) + len(plan.crosses))
        of_crosses = by_owner[1 + len(plan.fields) :].tolist()
        crosses = {cross.name: keys for cross, keys in zip(plan.crosses, of_crosses, strict=True) if keys}
        alone = metrics[variant].model_copy(update={"difference": None})
        nonzero = int(np.count_nonzero(own[used]))
        fields = dict(zip((each.name for each in plan.fields), by_owner[1:].tolist(), strict=False))
        found[index] = Outcome(alone, nonzero, sums[:, variant], measures[variant], crosses, fields)
    return found


def _late(model: LearningModel) -> LateMetrics:
    assert isinstance(model.metrics, LateMetrics)
    return model.metrics


@dataclass(frozen=True)
class LateMetricsOptions(MetricsOptions):
    """Options for metrics that skip the rows before `begin`, counted from 0, and take a measure of requests."""

    begin: int = 0
    measure: RequestMeasure | None = None

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Metrics of the rows from `begin` on."""
        return LateMetrics(plan.variants, self.begin, self.measure)


class LateMetrics(ProgressiveMetrics):
    """Progressive metrics without the first `begin` rows, which are learned all the same.

    blocks: the sums of weight x loss of every variant, and in the last column of the weights, by blocks of rows; with a
    measure, those of the measure, and the number of requests, by blocks of judged requests.
    """

    def __init__(self, variants: tuple[str, ...], begin: int, measure: RequestMeasure | None = None) -> None:
        super().__init__(variants)
        self._to_skip = begin
        self.blocks = BlockSums(len(variants) + 1)
        self._measure = measure
        self._requests = ProgressiveRequests(variants, measure.k, self._add_judged) if measure else None

    def update(self, predictions: Predictions, examples: Examples) -> None:
        """Add the rows of a batch after the skipped ones."""
        rows = int(predictions.labels.size)
        skipped = min(self._to_skip, rows)
        self._to_skip -= skipped
        if skipped < rows:
            late = predictions.after(skipped)
            super().update(late, examples.part(skipped))
            if self._requests is not None:
                self._requests.update(late, examples.stop.number)
                return
            weights = late.weights if late.weights.size else np.ones(late.labels.size)
            self.blocks.add(np.column_stack([late.losses * weights[:, None], weights]))

    def measures(self) -> list[float | None]:
        """The measure of every variant; None without one. Ends the open request."""
        if self._requests is None or self._measure is None:
            return [None] * len(self.variants)
        orders = self._requests.report().orders
        return [self._measure.of(orders[name]) for name in self.variants]

    def _add_judged(self, measures: Floats) -> None:
        assert self._measure is not None
        self.blocks.add(np.column_stack([measures[:, :, self._measure.index], np.ones(len(measures))]))
