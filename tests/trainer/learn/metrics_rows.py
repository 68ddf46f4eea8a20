"""Rows of the generated shop with made-up scores, as the metrics take them and as their oracle does."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from model_store.features.features import FeaturePlan
from tests.trainer.learn.metrics_oracle import Row
from tests.worlds import batch_of, shop_rows, shop_spec
from trainer.examples.hashing import ExampleMaker
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.tally import Slice
from trainer.learn.predictions_kernels import Predictions


class Log(NamedTuple):
    maker: ExampleMaker
    cells: Sequence[Mapping[str, bytes]]
    rows: Sequence[Row]

    @property
    def plan(self) -> FeaturePlan:
        return self.maker.plan

    def slice(self, name: str) -> Slice:
        return Slice.of(name, self.plan)


@functools.cache
def made_up(size: int, variants: int = 3, seed: int = 1, rows_per_request: int = 3) -> Log:
    """A log of `size` rows in requests of one to `rows_per_request` rows."""
    random = np.random.default_rng(seed)
    cells = shop_rows(size, seed)
    scores = random.normal(-1.0, 1.5, (size, 1)) + random.normal(0.0, 0.3, (size, variants))
    requests = np.repeat(np.arange(size), random.integers(1, rows_per_request + 1, size))[:size] + 7
    rows = []
    for cell, score, request in zip(cells, scores, requests, strict=True):
        clicked = random.random() < 1 / (1 + np.exp(-score[0]))
        cell["click"] = b"1" if clicked else b"0"
        rows.append(Row(tuple(score.tolist()), float(clicked), float(cell["importance"]), int(request)))
    return Log(ExampleMaker(shop_spec(variants).resolve(list(cells[0]))), cells, rows)


def add_rows(metrics: ProgressiveMetrics, log: Log, first: int, last: int, *, requests: bool = True) -> None:
    """Add rows `first` to `last` (exclusive) to the metrics as one batch."""
    if first == last:
        return
    examples = log.maker.make(batch_of(log.cells[first:last]))
    ids = np.array([row.request for row in log.rows[first:last]] if requests else [], np.uint64)
    examples = replace(examples, requests=ids, times=(np.arange(first, last) + 1) * 1_000_000)
    lanes = len(log.plan.variants) + 5
    scores = np.full((last - first, lanes), 99.0)
    scores[:, : lanes - 5] = [row.scores for row in log.rows[first:last]]
    variants = len(log.plan.variants)
    metrics.update(Predictions.of_scores(scores, examples.hashed, examples.requests, variants), examples)


def add_log(metrics: ProgressiveMetrics, log: Log, size: int = 10**9, *, requests: bool = True) -> None:
    for first in range(0, len(log.rows), size):
        add_rows(metrics, log, first, min(first + size, len(log.rows)), requests=requests)
