"""How well the examples learned last were predicted: sums over a window that moves on by blocks of examples.

Blocks begin at fixed numbers of examples and each is summed in order, so that batches change no bit. Knows nothing of
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import RecentFigures, RecentVariant
from trainer.examples.hashing import Examples
from trainer.learn.metrics.metrics_kernels import SMALLEST_PROBABILITY, logarithms, probabilities

MOST_BLOCKS = 64
LEAST_BLOCK = 256

ROWS, WEIGHT, SQUARED_WEIGHT, CLICKS = range(4)
COUNTS = 4
# What stands behind the counts, for each variant: sums of w l, w^2 l, w^2 l^2, w p and w^2 p of loss l, prediction p.
LOSS, LOSS_2, SQUARED_LOSS_2, PREDICTED, PREDICTED_2 = range(5)
SUMS = 5

Floats = npt.NDArray[np.float64]


class Recent:
    """At least the last `examples` examples; at most a block more, one 64th of them, of a small window up to 511.

    Memory: 65 blocks of 4 + 5 x variants sums.
    """

    def __init__(self, variants: Sequence[str], examples: int) -> None:
        self.variants = tuple(variants)
        self.rows = 0
        blocks = max(1, min(MOST_BLOCKS, examples // LEAST_BLOCK))
        self._block = -(-examples // blocks)
        self._sums = np.zeros((blocks + 1, COUNTS + SUMS * len(self.variants)))

    @classmethod
    def of(cls, spec: ModelSpec) -> Recent | None:
        """What a spec asks for; None without [guard]."""
        return cls(tuple(spec.variants), spec.guard.examples) if spec.guard is not None else None

    def update(self, scores: Floats, examples: Examples) -> None:
        """Add a batch and its scores before it was learned, float64[rows, >= variants]."""
        hashed = examples.hashed
        total = int(hashed.labels.size)
        done = self._passed_over(total)
        if done:
            self.rows += done
            self._open_block()[:] = 0.0
        weights = hashed.weights[done:] if hashed.weights.size else np.ones(total - done)
        terms = _terms(scores[done:, : len(self.variants)], hashed.labels[done:], weights)
        begin = 0
        while begin < len(terms):
            end = min(len(terms), begin + self._block - self.rows % self._block)
            self._add(terms[begin:end])
            begin = end

    def figures(self, keys: int) -> RecentFigures:
        """Of the window as it stands; `keys`: how many the model has."""
        sums = self._sums.sum(axis=0)
        per_variant = sums[COUNTS:].reshape(len(self.variants), SUMS)
        return RecentFigures(
            examples=round(sums[ROWS]),
            weight=float(sums[WEIGHT]),
            clicks=float(sums[CLICKS]),
            keys=keys,
            variants={
                name: _variant(sums, own) for name, own in zip(self.variants, per_variant, strict=True)
            },
        )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as arrays, for a checkpoint."""
        return {"sums": self._sums.copy(), "rows": np.array([self.rows, self._block])}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave; a window of another length, or one that was not kept, begins anew."""
        if "sums" in state and state["sums"].shape == self._sums.shape and state["rows"][1] == self._block:
            self._sums[...] = state["sums"]
            self.rows = int(state["rows"][0])

    def _passed_over(self, total: int) -> int:
        """Rows at a long batch's beginning whose blocks will have left the window at its end."""
        first_kept = (self.rows + total) // self._block - len(self._sums) + 1
        return max(0, first_kept * self._block - self.rows)

    def _add(self, terms: Floats) -> None:
        """Add rows of one block. accumulate adds one after the other, whatever stands in one call."""
        sums = self._open_block()
        sums[:] = np.add.accumulate(np.vstack([sums, terms]), axis=0)[-1]
        self.rows += len(terms)
        if self.rows % self._block == 0:
            self._open_block()[:] = (
                0.0  # what stood there leaves the window, whether another row comes or not
            )

    def _open_block(self) -> Floats:
        sums: Floats = self._sums[self.rows // self._block % len(self._sums)]
        return sums


def _terms(scores: Floats, labels: Floats, weights: Floats) -> Floats:
    """float64[rows, COUNTS + SUMS * variants]: what each row adds."""
    rows, variants = scores.shape
    terms = np.empty((rows, COUNTS + SUMS * variants))
    terms[:, ROWS], terms[:, WEIGHT], terms[:, SQUARED_WEIGHT] = 1.0, weights, weights * weights
    terms[:, CLICKS] = weights * labels
    own = terms[:, COUNTS:].reshape(rows, variants, SUMS)
    for variant in range(variants):
        loss, predicted = _judged(np.ascontiguousarray(scores[:, variant]), labels)
        own[:, variant, LOSS] = weights * loss
        own[:, variant, LOSS_2] = weights * weights * loss
        own[:, variant, SQUARED_LOSS_2] = weights * weights * loss * loss
        own[:, variant, PREDICTED] = weights * predicted
        own[:, variant, PREDICTED_2] = weights * weights * predicted
    return terms


def _judged(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """Log-loss and p of each row, by the same arithmetic as the metrics: the same on every machine."""
    predicted, logs = np.empty(scores.size), np.empty(scores.size)
    probabilities(scores, predicted)
    of_label = np.where(labels > 0.5, predicted, 1.0 - predicted)
    logarithms(np.maximum(of_label, SMALLEST_PROBABILITY), logs)
    return -logs, predicted


def _variant(sums: Floats, own: Floats) -> RecentVariant:
    """The mean's error is that of a ratio of sums over independent rows, linearised (Cochran 1977, section 6.3)."""
    weight = float(sums[WEIGHT])
    mean = float(own[LOSS]) / weight if weight else 0.0
    squares = float(own[SQUARED_LOSS_2] - 2.0 * mean * own[LOSS_2] + mean * mean * sums[SQUARED_WEIGHT])
    return RecentVariant(
        logloss=mean,
        logloss_error=max(squares, 0.0) ** 0.5 / weight if weight else 0.0,
        predicted=float(own[PREDICTED]),
        predicted_variance=float(own[PREDICTED_2]),
    )
