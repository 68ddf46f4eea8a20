"""Kernels over the rows of one shard: scores, losses, gradients, curvature, one FTRL pass, coordinate descent.

Rows are kept twice: row by row (`ShardRows`) and key by key (`ShardColumns`). Where V variants share values, each row
counts once for each variant, with the keys that the variant uses. A number per row and variant is a
float64[variants * rows] with the rows of a variant side by side; bits: uint32[keys], bit v set where variant v uses the
key, or empty if there is one variant, whose unused keys have the weight 0. Where a key occurs more than once in a row,
its occurrences follow one another in its column.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import sigmoid
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of, x_of
from trainer.learn.learners.operations import step, weight
from trainer.learn.learners.rates import r_of
from trainer.learn.metrics.metrics_kernels import log_loss

_SMALLEST_CURVATURE = 1e-12


class ShardRows(NamedTuple):
    """Rows: starts int64[rows + 1] into ids int32, key numbers, and x float64; labels float32; weights float64.

    x and weights are empty where all are 1. A key may occur more than once in a row.
    """

    starts: Any
    ids: Any
    x: Any
    labels: Any
    weights: Any

    @property
    def importance(self) -> float:
        """The sum of omega."""
        return float(self.weights.sum()) if self.weights.size else float(self.labels.size)

    def scaled(self, factor: float) -> ShardRows:
        """The rows with every omega multiplied."""
        weights = self.weights if self.weights.size else np.ones(self.labels.size)
        return self._replace(weights=factor * weights)


class ShardColumns(NamedTuple):
    """The same by key: starts int64[keys + 1] into rows int32, in order, and x float64, empty where all are 1."""

    starts: Any
    rows: Any
    x: Any


@bare_inline
def used_by(bits: Any, key: Any, variant: Any) -> Any:
    """True if the variant uses the key."""
    return not bits.size or (bits[key] >> np.uint32(variant)) & np.uint32(1)


@bare_inline
def loss_of(score: Any, label: Any) -> Any:
    """The log-loss of one row without its importance."""
    return log_loss(score if label > 0.5 else -score)


@bare_kernel
def scores_of(rows: Any, bits: Any, weights: Any, scores: Any) -> None:
    """The score of each row and variant under float64[keys] weights: out."""
    size = rows.labels.size
    for variant in range(scores.size // max(size, 1)):
        for row in range(size):
            score = 0.0
            for index in range(rows.starts[row], rows.starts[row + 1]):
                key = rows.ids[index]
                if used_by(bits, key, variant):
                    score += x_of(rows, index) * weights[key]
            scores[variant * size + row] = score


@bare_kernel
def losses_along(rows: Any, scores: Any, first: Any, second: Any, steps: Any, out: Any) -> None:
    """The summed loss at scores + steps[i, 0] first + steps[i, 1] second, for each i: float64[steps] out."""
    size = rows.labels.size
    for index in range(scores.size):
        label, importance = rows.labels[index % size], importance_of(rows, index % size)
        for each in range(steps.shape[0]):
            score = scores[index] + steps[each, 0] * first[index] + steps[each, 1] * second[index]
            out[each] += importance * loss_of(score, label)


@bare_kernel
def derivatives_of(rows: Any, scores: Any, errors: Any, curvature: Any) -> Any:
    """The first and second derivative of the loss by each score: out. Returns the summed loss."""
    size, loss = rows.labels.size, 0.0
    for index in range(scores.size):
        label, importance = rows.labels[index % size], importance_of(rows, index % size)
        p = sigmoid(scores[index])
        errors[index] = importance * (p - label)
        curvature[index] = importance * p * (1.0 - p)
        loss += importance * loss_of(scores[index], label)
    return loss


@bare_kernel
def gradient_of(
    columns: Any, size: Any, variants: Any, bits: Any, errors: Any, squared: Any, keys: Any, out: Any
) -> None:
    """The gradient by some keys' weights, from the errors of `size` rows: float64[keys] out.

    squared: instead the sum of the squared gradients of the single rows.
    """
    for number in range(keys.size):
        key, total = keys[number], 0.0
        for variant in range(variants):
            if used_by(bits, key, variant):
                for index in range(columns.starts[key], columns.starts[key + 1]):
                    g = x_of(columns, index) * errors[variant * size + columns.rows[index]]
                    total += g * g if squared else g
        out[number] = total


@bare_kernel
def reach_of(columns: Any, weights: Any, reach: Any) -> None:
    """The sum of importance x |x| of each key, the bound of its gradient: float64[keys] out. weights: of the rows."""
    for key in range(columns.starts.size - 1):
        total = 0.0
        for index in range(columns.starts[key], columns.starts[key + 1]):
            importance = weights[columns.rows[index]] if weights.size else 1.0
            total += importance * abs(x_of(columns, index))
        reach[key] = total


@bare_kernel
def curvature_of(
    columns: Any, size: Any, variants: Any, bits: Any, curvature: Any, keys: Any, out: Any
) -> None:
    """The diagonal of the Hessian at some keys, from the rows' second derivatives: float64[keys] out."""
    for number in range(keys.size):
        key, total = keys[number], 0.0
        for variant in range(variants):
            if used_by(bits, key, variant):
                index, end = columns.starts[key], columns.starts[key + 1]
                while index < end:
                    row, x = columns.rows[index], x_of(columns, index)
                    index += 1
                    while index < end and columns.rows[index] == row:
                        x += x_of(columns, index)
                        index += 1
                    total += x * x * curvature[variant * size + row]
        out[number] = total


@bare_kernel
def add_head_hessian(
    rows: Any, variants: Any, bits: Any, curvature: Any, head_of: Any, hessian: Any, heads: Any, values: Any
) -> None:
    """Add the Hessian of the head keys to the upper triangle of float64[head, head].

    head_of: int32[keys], a key's index in the head or -1; heads, values: room for the head keys of one row.
    """
    size = rows.labels.size
    for variant in range(variants):
        for row in range(size):
            count = 0
            for index in range(rows.starts[row], rows.starts[row + 1]):
                key = rows.ids[index]
                if head_of[key] >= 0 and used_by(bits, key, variant):
                    heads[count], values[count] = head_of[key], x_of(rows, index)
                    count += 1
            bend = curvature[variant * size + row]
            for i in range(count):
                for j in range(count):
                    if heads[i] <= heads[j]:
                        hessian[heads[i], heads[j]] += bend * values[i] * values[j]


class Quadratic(NamedTuple):
    """A model of the objective around the weights w, for a displacement d that is 0 except at some keys:

        sum over rows of  errors (X d) + curvature (X d)^2 / 2   +   linear d + diagonal d^2 / 2 + head: d' other d / 2
        + sum of l1 |w + d|

    Arrays by number of the key among `keys` int64[k]: linear, diagonal, own (the shard's own second derivatives), l1,
    weights (w), head_of (its index in the head, or -1). other: float64[head, head], symmetric: the curvature of other
    shards.
    """

    keys: Any
    linear: Any
    diagonal: Any
    own: Any
    l1: Any
    weights: Any
    head_of: Any
    other: Any


@bare_inline
def shrunk(value: Any, by: Any) -> Any:
    """The soft threshold: value moved towards 0 by `by`, at most to 0."""
    return math.copysign(max(abs(value) - by, 0.0), value)


@bare_kernel
def descend(
    columns: Any, variants: Any, bits: Any, errors: Any, curvature: Any, model: Any, order: Any, most: Any,
    enough: Any, moved: Any, change: Any, pull: Any,
) -> Any:  # fmt: skip
    """Minimise a `Quadratic` by coordinate descent over `order`, up to `most` times (Friedman et al. 2010).

    moved: float64[k], change: float64[variants * rows] (X d) and pull: float64[head] (other times d) are updated. Ends
    after a round whose steps, times their curvature, are `enough` of the first round's. Returns the rounds.
    """
    size = errors.size // variants
    first, rounds = 0.0, 0
    while rounds < most:
        total = 0.0
        for number in order:
            key, head = model.keys[number], model.head_of[number]
            slope = model.linear[number] + model.diagonal[number] * moved[number]
            bend = model.own[number] + model.diagonal[number]
            if head >= 0:
                slope += pull[head]
                bend += model.other[head, head]
            for variant in range(variants):
                if used_by(bits, key, variant):
                    base = variant * size
                    for index in range(columns.starts[key], columns.starts[key + 1]):
                        row = base + columns.rows[index]
                        slope += x_of(columns, index) * (errors[row] + curvature[row] * change[row])
            bend = max(bend, _SMALLEST_CURVATURE)
            before = model.weights[number] + moved[number]
            by = shrunk(before - slope / bend, model.l1[number] / bend) - before
            if by == 0.0:
                continue
            moved[number] += by
            if head >= 0:
                for other in range(pull.size):
                    pull[other] += model.other[head, other] * by
            for variant in range(variants):
                if used_by(bits, key, variant):
                    base = variant * size
                    for index in range(columns.starts[key], columns.starts[key + 1]):
                        change[base + columns.rows[index]] += x_of(columns, index) * by
            total += abs(by) * bend
        rounds += 1
        if rounds == 1:
            first = total
        if total <= enough * first:
            break
    return rounds


@bare_kernel
def ftrl_pass(
    rows: Any, variants: Any, bits: Any, learner: Any, lazy: Any, pull: Any, rho: Any, center: Any, counts: Any,
    a: Any, n: Any, w: Any,
) -> None:  # fmt: skip
    """One pass of FTRL-Proximal over the rows for  loss + pull (w - center) + rho/2 (w - center)^2.

    A key's part of the proximal term is spread evenly over its `counts` occurrences. a, n, w: float64[keys], the
    learner's state and weights, updated; without l1.
    """
    for row in range(rows.labels.size):
        label, importance = rows.labels[row], importance_of(rows, row)
        for variant in range(variants):
            score = 0.0
            for index in range(rows.starts[row], rows.starts[row + 1]):
                key = rows.ids[index]
                if used_by(bits, key, variant):
                    score += x_of(rows, index) * w[key]
            error = importance * (sigmoid(score) - label)
            for index in range(rows.starts[row], rows.starts[row + 1]):
                key = rows.ids[index]
                if not used_by(bits, key, variant):
                    continue
                g = error * x_of(rows, index) + (pull[key] + rho * (w[key] - center[key])) / counts[key]
                r = r_of(learner.rate, n[key])
                n[key] += g * g
                new_r = r_of(learner.rate, n[key])
                a[key] = step(learner, 0.0, a[key], w[key], g, r, new_r, 1, lazy, 0)
                w[key] = weight(learner, 0.0, a[key], new_r, 0, 1, lazy, 0)


@bare_kernel
def transpose(
    rows: Any, begin: Any, end: Any, first: Any, last: Any, cursor: Any, of_rows: Any, x: Any
) -> None:
    """Write the entries of rows `begin` to `end` whose keys are `first` to `last`, key by key, rows in order.

    cursor: int64[last - first], where each key's next entry goes, changed in place; of_rows int32,
    x float64: out.
    """
    for row in range(begin, end):
        for position in range(rows.starts[row], rows.starts[row + 1]):
            key = rows.ids[position]
            if first <= key < last:
                at = cursor[key - first]
                cursor[key - first] = at + 1
                of_rows[at] = row
                if rows.x.size:
                    x[at] = rows.x[position]
