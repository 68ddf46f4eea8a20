"""Metrics of a part of the log: from some row on. The rows before it are learned from, and judge nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from model_store.features import FeaturePlan
from model_store.spec import ModelSpec
from trainer.hashing.examples import Examples
from trainer.watching.metrics import ProgressiveMetrics, Watching


@dataclass(frozen=True)
class Judging(Watching):
    """What `Watching` is to a run: here the rows before `begin` (counted from 0) are passed over."""

    begin: int = 0

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Metrics of the rows from `begin` on."""
        return JudgedPart(plan.variants, self.begin)


class JudgedPart(ProgressiveMetrics):
    """Progressive metrics that begin late."""

    def __init__(self, variants: tuple[str, ...], begin: int) -> None:
        super().__init__(variants)
        self._to_skip = begin

    def update(self, scores: npt.NDArray[np.float64], examples: Examples) -> None:
        """Add what of a batch lies behind the beginning."""
        skipped = min(self._to_skip, scores.shape[0])
        self._to_skip -= skipped
        if skipped < scores.shape[0]:
            super().update(scores[skipped:], _outcomes(examples, slice(skipped, None)))


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
    return _outcomes(replace(examples, hashed=kept, rows=examples.rows[:rows]), slice(rows))


def _outcomes(examples: Examples, part: slice) -> Examples:
    """The examples with the labels, weights, requests and times of a part of the rows; empty stays empty."""
    hashed = examples.hashed._replace(
        labels=examples.hashed.labels[part], weights=examples.hashed.weights[part]
    )
    return replace(examples, hashed=hashed, requests=examples.requests[part], times=examples.times[part])
