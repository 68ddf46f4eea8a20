"""Regret: how much more a learner lost, example by example, than the best fixed weights would have.

After t examples a variant's regret is

    sum over s <= t of l_s(w_s)  -  min over w of the sum over s <= t of l_s(w),

l_s the log-loss of example s times its importance, w_s the weights just before it was learned. The minimum is over all
weights of all keys that the variant uses, without a penalty, whichever of them the model admits; each key has a weight
of its own, with `hash_bits` too. Where a key separates clicks from the rest, the loss falls as its weight grows, and
only comes near its infimum.

In: the first pass of a run, batch by batch. Out: a `Regret` record, with each variant's curve at about 20 rows. Every
minimum is found over the examples so far, from the weights of the minimum before, by L-BFGS (Liu and Nocedal, 1989) in
coordinates scaled by their curvature, with a line search that reads no key. It ends when the gradient's 1-norm is at
most a thousandth of the learner's own loss: as the loss is convex, no weights within 1 of those found, key by key, lose
less by more than that norm. The record has the norm that was reached.

All examples are kept in memory: 20 bytes for each key of each example, up to MOST_KEYS of them, and 200 for each
distinct key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import HashedRows
from trainer.learn.metrics.metrics_kernels import add_curvature, add_gradient, along, losses_to, scores_of
from trainer.learn.metrics.records import Regret, RegretPoint
from trainer.learn.predictions_kernels import Predictions

MOST_KEYS = 25_000_000
TOLERANCE = 1e-3
POINTS = 20
FIRST_POINT = 10
_PAIRS = 8
_MOST_STEPS = 1000
_MOST_TRIALS = 30
_FLAT = 0.1

Numbers = npt.NDArray[np.float64]


class Minimum(NamedTuple):
    """Weights that nearly minimise a loss: float64[keys]; the loss, its gradient's 1-norm, and the steps taken."""

    weights: Numbers
    loss: float
    gradient: float
    steps: int


class RegretRecorder:
    """Keeps a run's examples, and the scores they had before they were learned from. Not thread-safe."""

    def __init__(self, spec: ModelSpec, masks: npt.NDArray[np.uint32]) -> None:
        """masks: uint32[features], the variants that use a feature. Raises InputError unless the link is the logit."""
        if spec.learner.link != "logit":
            raise InputError(
                f'--regret compares with the best logistic model, and algorithm = "{spec.learner.algorithm}" is '
                "not one; leave --regret out, or take another algorithm"
            )
        for name, field in spec.fields.items():
            if field.fixed_weight is not None:
                raise InputError(
                    f"--regret compares with weights that are all learned, and fields.{name} has a fixed_weight; leave "
                    "one of them out"
                )
        self._variants = tuple(spec.variants)
        self._uses = [(masks >> np.uint32(v) & 1).astype(np.float64) for v in range(len(self._variants))]
        self._parts: list[HashedRows] = []
        self._scores: list[Numbers] = [np.empty((0, len(self._variants)))]
        self._keys = 0

    def update(self, predictions: Predictions, rows: HashedRows) -> None:
        """Add a batch. Raises InputError beyond MOST_KEYS keys of examples."""
        size = int(rows.starts[-1])
        self._keys += size
        if self._keys > MOST_KEYS:
            raise InputError(
                f"--regret keeps every example in memory, up to {MOST_KEYS:,} keys of examples (a million rows of "
                f"{MOST_KEYS // 10**6} keys each), and this log has more; take its first rows, or leave --regret out"
            )
        hashes, features, x = (each[:size].copy() for each in (rows.hashes, rows.features, rows.x))
        outcomes = rows.labels.copy(), rows.weights.copy()
        self._parts.append(HashedRows(rows.starts.copy(), hashes, features, x, *outcomes))
        self._scores.append(predictions.scores[:, : len(self._variants)].copy())

    def regret(self, on_minimum: Callable[[int, int], None]) -> Regret:
        """The curves of all variants; on_minimum is called with how many minima are found, and of how many.

        Variants that use the same keys are compared with the same minima. Drops the examples.
        """
        rows, scores = _joined(self._parts), np.concatenate(self._scores)
        self._parts, self._scores = [], []
        ends = points(int(rows.labels.size))
        alike = {uses.tobytes(): uses for uses in self._uses}
        total = len(alike) * ends.size
        own = [_losses(rows, scores[:, v], ends) for v in range(len(self._variants))]
        found: dict[bytes, list[Minimum]] = {}
        for number, (key, uses) in enumerate(alike.items()):
            least = [own[v] for v, each in enumerate(self._uses) if each.tobytes() == key]
            found[key] = _minima(
                *(rows, uses, ends, TOLERANCE * np.min(least, axis=0)),
                lambda done, before=number * ends.size: on_minimum(before + done, total),  # type: ignore[misc]
            )
        weight = np.cumsum(rows.weights)[ends - 1] if rows.weights.size else ends.astype(np.float64)
        curves = zip(self._variants, own, (found[uses.tobytes()] for uses in self._uses), strict=True)
        return Regret(
            tolerance=TOLERANCE,
            variants={name: _curve(ends, weight, losses, minima) for name, losses, minima in curves},
        )


def points(rows: int) -> npt.NDArray[np.int64]:
    """The numbers of examples at which a curve of so many has points, geometrically spaced: int64[<= POINTS]."""
    if not rows:
        return np.empty(0, np.int64)
    return np.unique(np.round(np.geomspace(min(FIRST_POINT, rows), rows, POINTS)).astype(np.int64))


def minimum(rows: HashedRows, uses: Numbers, end: int, weights: Numbers, enough: float) -> Minimum:
    """Minimise the summed loss of the first `end` rows from these weights, until the gradient's 1-norm is `enough`.

    rows: their hashes are numbers of keys; uses: as in `metrics_kernels.py`. It may end earlier, where float64 knows no
    lower loss or after 1,000 steps.
    """
    scale = np.zeros(weights.size)
    add_curvature(rows, uses, end, scale)
    scale = 1.0 / np.where(scale > 0.0, scale, 1.0)
    scores, change = np.zeros(end), np.zeros(end)
    scores_of(rows, uses, end, weights, scores)
    loss = along(rows, end, scores, change, 0.0)[0]
    gradient = _gradient(rows, uses, end, scores, weights.size)
    pairs: deque[tuple[Numbers, Numbers, float]] = deque(maxlen=_PAIRS)
    steps = 0
    while np.abs(gradient).sum() > enough and steps < _MOST_STEPS:
        direction = _direction(gradient, scale, pairs)
        scores_of(rows, uses, end, direction, change)
        size, lower = _line_search(rows, end, scores, change)
        if not lower < loss:
            break
        move = size * direction
        weights, scores, loss = weights + move, scores + size * change, lower
        before, gradient = gradient, _gradient(rows, uses, end, scores, weights.size)
        turn = gradient - before
        if (product := float(move @ turn)) > 0.0:
            pairs.append((move, turn, product))
        steps += 1
    return Minimum(weights, loss, float(np.abs(gradient).sum()), steps)


def _gradient(rows: HashedRows, uses: Numbers, end: int, scores: Numbers, keys: int) -> Numbers:
    gradient = np.zeros(keys)
    add_gradient(rows, uses, end, scores, gradient)
    return gradient


def _direction(gradient: Numbers, scale: Numbers, pairs: Sequence[tuple[Numbers, Numbers, float]]) -> Numbers:
    """The two-loop recursion: the gradient times the inverse curvature that `scale` and the last moves suggest."""
    direction, factors = -gradient, []
    for move, turn, product in reversed(pairs):
        factors.append(float(move @ direction) / product)
        direction = direction - factors[-1] * turn
    size = pairs[-1][2] / float((pairs[-1][1] * scale) @ pairs[-1][1]) if pairs else 1.0
    direction = direction * scale * size
    for move, turn, product in pairs:
        direction = direction + (factors.pop() - float(turn @ direction) / product) * move
    return direction


def _line_search(rows: HashedRows, end: int, scores: Numbers, change: Numbers) -> tuple[float, float]:
    """A size near the minimum along a direction, and the loss there: Newton's method within a bracket."""
    steep = _FLAT * abs(along(rows, end, scores, change, 0.0)[1])
    low, high, size = 0.0, np.inf, 1.0
    for _ in range(_MOST_TRIALS):
        loss, slope, bend = along(rows, end, scores, change, size)
        if abs(slope) <= steep:
            break
        low, high = (size, high) if slope < 0.0 else (low, size)
        wanted = size - slope / bend if bend > 0.0 else np.inf
        if not low < wanted < high:
            wanted = 0.5 * (low + high)
        size = min(wanted, 4.0 * size)
    return size, loss


def _minima(
    rows: HashedRows,
    uses: Numbers,
    ends: npt.NDArray[np.int64],
    enough: Numbers,
    on_minimum: Callable[[int], None],
) -> list[Minimum]:
    """The minimum over the first examples up to each end, each found from the one before."""
    found: list[Minimum] = []
    weights = np.empty(0)
    for end, tolerance in zip(ends.tolist(), enough.tolist(), strict=True):
        on_minimum(len(found))
        keys = int(rows.hashes[: rows.starts[end]].max(initial=-1)) + 1
        weights = np.concatenate([weights, np.zeros(keys - weights.size)])
        found.append(minimum(rows, uses, end, weights, tolerance))
        weights = found[-1].weights
        found[-1] = found[-1]._replace(weights=np.empty(0))
    on_minimum(len(found))
    return found


def _losses(rows: HashedRows, scores: Numbers, ends: npt.NDArray[np.int64]) -> Numbers:
    """The summed loss of the scores of the first examples up to each end."""
    out = np.empty(ends.size)
    losses_to(rows, np.ascontiguousarray(scores), ends, out)
    return out


def _curve(
    ends: npt.NDArray[np.int64], weight: Numbers, losses: Numbers, minima: Sequence[Minimum]
) -> list[RegretPoint]:
    return [
        RegretPoint(
            rows=end,
            loss=loss,
            least=each.loss,
            regret=loss - each.loss,
            mean=(loss - each.loss) / of if of else 0.0,
            gradient=each.gradient,
            steps=each.steps,
        )
        for end, of, loss, each in zip(ends.tolist(), weight.tolist(), losses.tolist(), minima, strict=True)
    ]


def _joined(parts: Sequence[HashedRows]) -> HashedRows:
    """All examples; in place of hashes int32 numbers of keys, in the order in which they first occur."""
    sizes = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.starts) for part in parts)])
    hashes = pa.chunked_array([part.hashes for part in parts], pa.uint64()).combine_chunks()
    return HashedRows(
        np.cumsum(sizes),
        hashes.dictionary_encode().indices.to_numpy().astype(np.int32, copy=False),
        np.concatenate([np.empty(0, np.uint16), *(part.features for part in parts)]),
        _filled([(part.x, part.hashes.size) for part in parts]),
        np.concatenate([np.empty(0), *(part.labels for part in parts)]),
        _filled([(part.weights, part.labels.size) for part in parts]),
    )


def _filled(parts: Sequence[tuple[Numbers, int]]) -> Numbers:
    """The numbers of all batches, 1 for those of a batch that has none; empty if none has any."""
    if not any(numbers.size for numbers, _ in parts):
        return np.empty(0)
    return np.concatenate([numbers if numbers.size else np.ones(size) for numbers, size in parts])
