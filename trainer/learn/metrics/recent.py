"""Recent: figures of the most recent examples, for the guard: sums over a window that moves by blocks of examples.

Blocks begin at fixed numbers of examples and are summed in order, so batch boundaries change no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import RecentFigures, RecentVariant
from trainer.learn.predictions_kernels import Predictions

MOST_BLOCKS = 64
LEAST_BLOCK = 256

ROWS, WEIGHT, SQUARED_WEIGHT, CLICKS = range(4)
COUNTS = 4
# After the counts, for each variant: sums of w l, w^2 l, w^2 l^2, w p and w^2 p, with loss l and prediction p.
# Of a weight that is a number of views, each an observation of its own, w is in the place of w^2.
LOSS, LOSS_2, SQUARED_LOSS_2, PREDICTED, PREDICTED_2 = range(5)
SUMS = 5

Floats = npt.NDArray[np.float64]


class Recent:
    """At least the last `examples` examples, and at most a block more: a 64th of them, in a small window up to 511.

    Memory: 65 blocks of 4 + 5 x variants sums.
    """

    def __init__(self, variants: Sequence[str], examples: int, of_views: bool = False) -> None:
        """of_views: see `weights_are_views`."""
        self.variants = tuple(variants)
        self._of_views = of_views
        self.rows = 0
        blocks = max(1, min(MOST_BLOCKS, examples // LEAST_BLOCK))
        self._block = -(-examples // blocks)
        self._sums = np.zeros((blocks + 1, COUNTS + SUMS * len(self.variants)))

    @classmethod
    def of(cls, spec: ModelSpec) -> Recent | None:
        """The window of a spec's [guard]; None without one."""
        if spec.guard is None:
            return None
        return cls(tuple(spec.variants), spec.guard.examples, weights_are_views(spec))

    def update(self, predictions: Predictions) -> None:
        """Add a batch of predictions, made before the examples were learned."""
        terms, begin = _terms(predictions, self._of_views), 0
        while begin < len(terms):
            end = min(len(terms), begin + self._block - self.rows % self._block)
            sums = self._open_block()
            # Row by row, so that the sums do not depend on the batches.
            sums[:] = np.add.accumulate(np.vstack([sums, terms[begin:end]]), axis=0)[-1]
            self.rows += end - begin
            if self.rows % self._block == 0:
                self._open_block()[:] = 0.0  # the oldest block leaves the window
            begin = end

    def figures(self, keys: int) -> RecentFigures:
        """The figures of the present window; `keys`: the model's number of keys."""
        return figures_of(self._sums.sum(axis=0), self.variants, keys)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as arrays, for a checkpoint."""
        return {"sums": self._sums.copy(), "rows": np.array([self.rows, self._block])}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a `state`; without one, or with one of another window length, the window starts empty."""
        if "sums" in state and state["sums"].shape == self._sums.shape and state["rows"][1] == self._block:
            self._sums[...] = state["sums"]
            self.rows = int(state["rows"][0])

    def _open_block(self) -> Floats:
        sums: Floats = self._sums[self.rows // self._block % len(self._sums)]
        return sums


def weights_are_views(spec: ModelSpec) -> bool:
    """Whether the weights of examples are numbers of views, without another factor in them."""
    return spec.input.views is not None and spec.input.weight is None and spec.learner.subsample is None


def sums_of(predictions: Predictions, of_views: bool) -> Floats:
    """The sums of all rows of a batch, for `figures_of`. of_views: see `weights_are_views`."""
    sums: Floats = _terms(predictions, of_views).sum(axis=0)
    return sums


def figures_of(sums: Floats, variants: Sequence[str], keys: int) -> RecentFigures:
    """The figures of rows with these sums; `keys`: the model's number of keys."""
    per_variant = sums[COUNTS:].reshape(len(variants), SUMS)
    return RecentFigures(
        examples=round(sums[ROWS]),
        weight=float(sums[WEIGHT]),
        clicks=float(sums[CLICKS]),
        keys=keys,
        variants={name: _variant(sums, own) for name, own in zip(variants, per_variant, strict=True)},
    )


def _terms(predictions: Predictions, of_views: bool) -> Floats:
    """float64[rows, COUNTS + SUMS * variants]: the terms that each row adds."""
    rows, variants = predictions.losses.shape
    weights = predictions.weights if predictions.weights.size else np.ones(rows)
    squares = weights if of_views else weights * weights
    terms = np.empty((rows, COUNTS + SUMS * variants))
    terms[:, ROWS], terms[:, WEIGHT], terms[:, SQUARED_WEIGHT] = 1.0, weights, squares
    terms[:, CLICKS] = weights * predictions.labels
    own = terms[:, COUNTS:].reshape(rows, variants, SUMS)
    for variant in range(variants):
        loss, predicted = predictions.losses[:, variant], predictions.probabilities[:, variant]
        own[:, variant, LOSS] = weights * loss
        own[:, variant, LOSS_2] = squares * loss
        own[:, variant, SQUARED_LOSS_2] = squares * loss * loss
        own[:, variant, PREDICTED] = weights * predicted
        own[:, variant, PREDICTED_2] = squares * predicted
    return terms


def _variant(sums: Floats, own: Floats) -> RecentVariant:
    """The standard error is that of a ratio of sums over independent rows, linearised (Cochran 1977, section 6.3)."""
    weight = float(sums[WEIGHT])
    mean = float(own[LOSS]) / weight if weight else 0.0
    squares = float(own[SQUARED_LOSS_2] - 2.0 * mean * own[LOSS_2] + mean * mean * sums[SQUARED_WEIGHT])
    return RecentVariant(
        logloss=mean,
        logloss_error=max(squares, 0.0) ** 0.5 / weight if weight else 0.0,
        predicted=float(own[PREDICTED]),
        predicted_variance=float(own[PREDICTED_2]),
    )
