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
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.jit import inline, kernel
from model_store.kernels import sigmoid
from model_store.spec import LearnerSection
from trainer.kernels import claim_slots, prefetch_slots
from trainer.learners.lanes import LANE_BYTES, add_scaled, dot, dot_of_roots

_ROWS_AHEAD = 2


@inline
def weight(z: float, sqrt_n: float, alpha: float, beta: float, l1: float, l2: float) -> float:
    """The weight that (z, n) stands for."""
    if abs(z) <= l1:
        return 0.0
    return -(z - math.copysign(l1, z)) / ((beta + sqrt_n) / alpha + l2)


@kernel
def weights(slots: Any, alpha: float, beta: float, l1: float, l2: float, out: Any) -> None:
    """The weight of every slot: float64[slots]."""
    for slot in range(slots.size):
        out[slot] = weight(slots[slot].z, math.sqrt(slots[slot].n), alpha, beta, l1, l2)


@kernel
def learn_one(
    slots: Any,
    room: Any,
    row: Any,
    row_starts: Any,
    hashes: Any,
    features: Any,
    x: Any,
    labels: Any,
    omega: Any,
    masks: Any,
    alpha: float,
    beta: float,
    l1: float,
    l2: float,
    scores: Any,
    added: Any,
    added_count: Any,
) -> Any:
    """Predict and learn rows in order, for a single variant, from `row` until the end or until the table needs room.

    room: keys the table may still take. scores: float64[rows, 1] out, each row's score before it is learned from.
    Returns (next row, number of keys in `added`).
    """  # fmt: skip
    longest = np.max(row_starts[1:] - row_starts[:-1]) if row_starts.size > 1 else 0
    found = np.empty(longest, np.int64)
    w, root = np.empty(longest), np.empty(longest)
    first_added = added_count
    rows = labels.size
    while row < rows:
        first, last = row_starts[row], row_starts[row + 1]
        size = last - first
        if added_count - first_added + size > room:
            break
        ahead = min(row + _ROWS_AHEAD, rows - 1)
        prefetch_slots(slots, hashes, row_starts[ahead], row_starts[ahead + 1])
        added_count = claim_slots(slots, hashes, features, masks, first, last, found, added, added_count)
        score = 0.0
        for i in range(size):
            slot = found[i]
            root[i] = math.sqrt(slots[slot].n)
            w[i] = weight(slots[slot].z, root[i], alpha, beta, l1, l2)
            score += w[i] * x[first + i] if x.size else w[i]
        scores[row, 0] = score
        error = sigmoid(score) - labels[row]
        if omega.size:
            error *= omega[row]
        for i in range(size):
            slot = found[i]
            g = error * x[first + i] if x.size else error
            n = slots[slot].n + g * g
            sigma = (math.sqrt(n) - root[i]) / alpha
            slots[slot].z += g - sigma * w[i]
            slots[slot].n = n
        row += 1
    return row, added_count


@kernel
def learn_many(
    slots: Any,
    room: Any,
    row: Any,
    row_starts: Any,
    hashes: Any,
    features: Any,
    x: Any,
    labels: Any,
    omega: Any,
    masks: Any,
    class_of: Any,
    uses: Any,
    alpha: float,
    beta: float,
    l1: float,
    l2: float,
    scores: Any,
    added: Any,
    added_count: Any,
) -> Any:
    """`learn_one` for several variants at once, in the single value structure.

    class_of: int64[features], features that the same variants use form a class; uses: float64[classes, lanes], 1.0
    where the variant uses the class. scores: float64[rows, lanes] out. Sums over variants are taken in a fixed order.
    """  # fmt: skip
    classes, lanes = uses.shape
    users = np.empty(classes)
    for c in range(classes):
        users[c] = np.sum(uses[c])
    longest = np.max(row_starts[1:] - row_starts[:-1]) if row_starts.size > 1 else 0
    found = np.empty(longest, np.int64)
    w, root = np.empty(longest), np.empty(longest)
    error, squared = np.empty(lanes), np.empty(lanes)
    mean_error, mean_squared = np.empty(classes), np.empty(classes)
    first_added = added_count
    rows = labels.size
    while row < rows:
        first, last = row_starts[row], row_starts[row + 1]
        size = last - first
        if added_count - first_added + size > room:
            break
        ahead = min(row + _ROWS_AHEAD, rows - 1)
        prefetch_slots(slots, hashes, row_starts[ahead], row_starts[ahead + 1])
        added_count = claim_slots(slots, hashes, features, masks, first, last, found, added, added_count)
        error[:] = 0.0
        for i in range(size):
            slot = found[i]
            root[i] = math.sqrt(slots[slot].n)
            w[i] = weight(slots[slot].z, root[i], alpha, beta, l1, l2)
            if w[i] != 0.0:
                share = w[i] * x[first + i] if x.size else w[i]
                used_by = uses[class_of[features[first + i]]].ctypes.data
                for lane in range(0, 8 * lanes, LANE_BYTES):
                    add_scaled(error.ctypes.data + lane, share, used_by + lane)
        importance = omega[row] if omega.size else 1.0
        for v in range(lanes):
            scores[row, v] = error[v]
            error[v] = importance * (sigmoid(error[v]) - labels[row])
            squared[v] = error[v] * error[v]
        for c in range(classes):
            mean_error[c] = sum_over_users(error, uses[c]) / users[c]
            mean_squared[c] = sum_over_users(squared, uses[c]) / users[c]
        for i in range(size):
            slot = found[i]
            c = class_of[features[first + i]]
            value = x[first + i] if x.size else 1.0
            n = slots[slot].n
            pull = 0.0
            if w[i] != 0.0:
                mean_root = sum_of_roots(n, value * value, squared, uses[c]) / users[c]
                pull = w[i] * (mean_root - root[i]) / alpha
            slots[slot].z += value * mean_error[c] - pull
            slots[slot].n = n + value * value * mean_squared[c]
        row += 1
    return row, added_count


@inline
def sum_over_users(numbers: Any, uses: Any) -> float:
    """The sum of numbers[v] over the variants that use a class."""
    total = 0.0
    for lane in range(0, 8 * numbers.size, LANE_BYTES):
        total += dot(numbers.ctypes.data + lane, uses.ctypes.data + lane)
    return total


@inline
def sum_of_roots(n: float, factor: float, squared: Any, uses: Any) -> float:
    """The sum of sqrt(n + factor * squared[v]) over the variants that use a class: their new sqrt(n)."""
    total = 0.0
    for lane in range(0, 8 * squared.size, LANE_BYTES):
        total += dot_of_roots(n, factor, squared.ctypes.data + lane, uses.ctypes.data + lane)
    return total


@dataclass(frozen=True)
class Ftrl:
    """FTRL-Proximal with the spec's parameters. Holds no state: z and n live in the value table."""

    alpha: float
    beta: float
    l1: float
    l2: float

    @classmethod
    def of(cls, section: LearnerSection) -> Ftrl:
        """The learner with the spec's parameters."""
        return cls(section.alpha, section.beta, section.l1, section.l2)

    def weights(self, slots: Any) -> npt.NDArray[np.float64]:
        """The weight of every slot: float64[slots]."""
        out = np.empty(slots.size)
        weights(slots, self.alpha, self.beta, self.l1, self.l2, out)
        return out

    def rates(self, slots: Any) -> npt.NDArray[np.float64]:
        """Every slot's present learning rate, alpha / (beta + sqrt(n)): float64[slots]."""
        denominator = self.beta + np.sqrt(slots["n"])
        with np.errstate(divide="ignore"):
            return np.asarray(self.alpha / denominator)
