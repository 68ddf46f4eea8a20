"""FTRL-Proximal: McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), algorithm 1.

A coordinate keeps z and n = sum of g^2. With p = sigmoid(w x) and g = omega (p - y) x, one example does

    w     = 0                                                          where |z| <= l1
          = -(z - sgn(z) l1) / ((beta + sqrt(n)) / alpha + l2)         elsewhere
    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha
    z     = z + g - sigma w
    n     = n + g^2

Single value structure (section 4.4): several variants share each key's z and n. Each variant that uses the key
predicts with its own keys and computes the new (z, n) as if it were alone; the means of those new values are stored.
Since z and n before the step are common to all, that is z + mean g - w mean sigma_v and n + mean g^2.

`tests/trainer/ftrl_oracle.py` is the same in plain Python; the two agree to 1e-12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.jit import bare_inline, bare_kernel
from model_store.kernels import sigmoid
from model_store.learner_section import LearnerSection
from trainer.kernels import claim_slots, importance_of, prefetch_ahead, x_of
from trainer.learners.lanes import LANES, add_scaled, dot, dot_of_roots


class Parameters(NamedTuple):
    """The four parameters of the paper, as kernels take them."""

    alpha: float
    beta: float
    l1: float
    l2: float


class Work(NamedTuple):
    """Room for one row's numbers: found int64, w and root float64, one a feature; the others one a lane or class."""

    found: npt.NDArray[np.int64]
    w: npt.NDArray[np.float64]
    root: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    squared: npt.NDArray[np.float64]
    mean_error: npt.NDArray[np.float64]
    mean_squared: npt.NDArray[np.float64]

    @classmethod
    def room(cls, features: int, lanes: int, classes: int) -> Work:
        """Room for rows of up to `features` features."""
        a_row = (np.empty(features, np.int64), np.empty(features), np.empty(features))
        return cls(*a_row, np.empty(lanes), np.empty(lanes), np.empty(classes), np.empty(classes))


@bare_inline
def weight(z: Any, sqrt_n: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    """The weight that (z, n) stands for."""
    if abs(z) <= l1:
        return 0.0
    return -(z - math.copysign(l1, z)) / ((beta + sqrt_n) / alpha + l2)


@bare_kernel
def weights(slots: Any, alpha: float, beta: float, l1: float, l2: float, out: Any) -> None:
    """The weight of every slot: float64[slots]."""
    for slot in range(slots.size):
        out[slot] = weight(slots[slot].z, math.sqrt(slots[slot].n), alpha, beta, l1, l2)


@bare_kernel
def learn_one(
    slots: Any,
    room: Any,
    row: Any,
    rows: Any,
    masks: Any,
    parameters: Any,
    scores: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """Predict and learn rows in order, for a single variant, from `row` until the end or until the table needs room.

    room: keys the table may still take; rows: `HashedRows`; parameters: `Parameters`; work: `Work`;
    scores: float64[rows, 1] out, each row's score before it is learned from; added: int64[features] out, positions of
    new keys, `count` of them so far. Returns (next row, count).
    """
    alpha, beta, l1, l2 = parameters
    full = count + room
    while row < rows.labels.size and count + rows.starts[row + 1] - rows.starts[row] <= full:
        first, size = rows.starts[row], rows.starts[row + 1] - rows.starts[row]
        prefetch_ahead(slots, rows, row)
        count = claim_slots(slots, rows, masks, first, size, work.found, added, count)
        score = 0.0
        for i in range(size):
            slot = work.found[i]
            work.root[i] = math.sqrt(slots[slot].n)
            work.w[i] = weight(slots[slot].z, work.root[i], alpha, beta, l1, l2)
            score += work.w[i] * x_of(rows, first + i)
        scores[row, 0] = score
        error = importance_of(rows, row) * (sigmoid(score) - rows.labels[row])
        for i in range(size):
            slot = work.found[i]
            g = error * x_of(rows, first + i)
            n = slots[slot].n + g * g
            sigma = (math.sqrt(n) - work.root[i]) / alpha
            slots[slot].z += g - sigma * work.w[i]
            slots[slot].n = n
        row += 1
    return row, count


@bare_kernel
def learn_many(
    slots: Any,
    room: Any,
    row: Any,
    rows: Any,
    masks: Any,
    parameters: Any,
    scores: Any,
    added: Any,
    count: Any,
    work: Any,
    class_of: Any,
    uses: Any,
    users: Any,
) -> Any:
    """`learn_one` for several variants at once, in the single value structure.

    class_of: int64[features], features that the same variants use form a class; uses: float64[classes, lanes], 1.0
    where the variant uses the class; users: float64[classes], how many do. scores: float64[rows, lanes] out.
    """
    alpha, beta, l1, l2 = parameters
    classes, lanes = uses.shape
    full = count + room
    while row < rows.labels.size and count + rows.starts[row + 1] - rows.starts[row] <= full:
        first, size = rows.starts[row], rows.starts[row + 1] - rows.starts[row]
        prefetch_ahead(slots, rows, row)
        count = claim_slots(slots, rows, masks, first, size, work.found, added, count)
        for v in range(lanes):
            work.error[v] = 0.0
        for i in range(size):
            slot = work.found[i]
            work.root[i] = math.sqrt(slots[slot].n)
            work.w[i] = weight(slots[slot].z, work.root[i], alpha, beta, l1, l2)
            if work.w[i] != 0.0:
                add_to_users(
                    work.error, work.w[i] * x_of(rows, first + i), uses, class_of[rows.features[first + i]]
                )
        importance = importance_of(rows, row)
        for v in range(lanes):
            scores[row, v] = work.error[v]
            work.error[v] = importance * (sigmoid(work.error[v]) - rows.labels[row])
            work.squared[v] = work.error[v] * work.error[v]
        for c in range(classes):
            work.mean_error[c] = sum_over_users(work.error, uses, c) / users[c]
            work.mean_squared[c] = sum_over_users(work.squared, uses, c) / users[c]
        for i in range(size):
            slot, c = work.found[i], class_of[rows.features[first + i]]
            x, n = x_of(rows, first + i), slots[slot].n
            pull = 0.0
            if work.w[i] != 0.0:
                mean_root = sum_of_roots(n, x * x, work.squared, uses, c) / users[c]
                pull = work.w[i] * (mean_root - work.root[i]) / alpha
            slots[slot].z += x * work.mean_error[c] - pull
            slots[slot].n = n + x * x * work.mean_squared[c]
        row += 1
    return row, count


@bare_inline
def add_to_users(sums: Any, share: Any, uses: Any, c: Any) -> None:
    """Add `share` to the sum of every variant that uses class c."""
    for lane in range(0, sums.size, LANES):
        add_scaled(address(sums, lane), share, address(uses, c * sums.size + lane))


@bare_inline
def sum_over_users(numbers: Any, uses: Any, c: Any) -> Any:
    """The sum of numbers[v] over the variants that use class c."""
    total = 0.0
    for lane in range(0, numbers.size, LANES):
        total += dot(address(numbers, lane), address(uses, c * numbers.size + lane))
    return total


@bare_inline
def sum_of_roots(n: Any, factor: Any, squared: Any, uses: Any, c: Any) -> Any:
    """The sum of sqrt(n + factor * squared[v]) over the variants that use class c: their new sqrt(n)."""
    total = 0.0
    for lane in range(0, squared.size, LANES):
        total += dot_of_roots(n, factor, address(squared, lane), address(uses, c * squared.size + lane))
    return total


@bare_inline
def address(numbers: Any, index: Any) -> Any:
    """Where the index-th float64 of a contiguous array lies."""
    return numbers.ctypes.data + 8 * index


@dataclass(frozen=True)
class Ftrl:
    """FTRL-Proximal with the spec's parameters. Holds no state: z and n live in the value table."""

    parameters: Parameters

    @classmethod
    def of(cls, section: LearnerSection) -> Ftrl:
        """The learner with the spec's parameters."""
        return cls(Parameters(section.alpha, section.beta, section.l1, section.l2))

    def weights(self, slots: Any) -> npt.NDArray[np.float64]:
        """The weight of every slot: float64[slots]."""
        out = np.empty(slots.size)
        weights(slots, *self.parameters, out)
        return out

    def rates(self, slots: Any) -> npt.NDArray[np.float64]:
        """Every slot's present learning rate, alpha / (beta + sqrt(n)): float64[slots]."""
        denominator = self.parameters.beta + np.sqrt(slots["n"])
        with np.errstate(divide="ignore"):
            return np.asarray(self.parameters.alpha / denominator)
