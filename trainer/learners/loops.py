"""The loops that predict and learn: one variant; several that share values; several with values of their own.

A row is taken in four steps: find its keys' slots, sum their weights, see the error, change every coordinate. Numba
compiles a loop once for each learner, layout and admission that is used (`implements`); none of them pays for another.
Numbers that belong to one row stand in `Work`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.jit import bare_inline, bare_kernel, implements, stub
from model_store.kernels import sigmoid
from trainer.kernels import claim_slots, importance_of, prefetch_ahead, x_of
from trainer.learners.fobos import Fobos
from trainer.learners.ftrl import Ftrl
from trainer.learners.lanes import LANES, add_scaled, dot, dot_of_roots
from trainer.learners.learner import fresh_marks, mark, pack, step, tick, unpack, weight, with_own, worn
from trainer.learners.ogd import Ogd
from trainer.learners.rates import Constant, Counts, Gradients, eta, grown, reading
from trainer.learners.rda import Rda
from trainer.learners.truncated_gradient import TruncatedGradient
from trainer.learners.truncation import Truncation
from trainer.slots.kernels import count_example, n_of, put, see, seen_at, set_counts, value_of
from trainer.slots.layouts import COMPACT, Full, FullCounts, Own, OwnCompact, OwnCompactCounts, OwnCounts


class Work(NamedTuple):
    """Room for one row's numbers.

    found, place: int64[features], the slots of its admitted keys, and where they stand in the batch; w, r:
    float64[features x variants with values of their own]; the others: one number a lane or class.
    """

    found: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    w: npt.NDArray[np.float64]
    r: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    squared: npt.NDArray[np.float64]
    mean_error: npt.NDArray[np.float64]
    mean_squared: npt.NDArray[np.float64]

    @classmethod
    def room(cls, features: int, lanes: int, classes: int, own: int) -> Work:
        """Room for rows of up to `features` features."""
        slots = (np.empty(features, np.int64), np.empty(features, np.int64))
        coordinates = (np.empty(features * own), np.empty(features * own))
        return cls(
            *slots, *coordinates, np.empty(lanes), np.empty(lanes), np.empty(classes), np.empty(classes)
        )


class Stream(NamedTuple):
    """Where the rows stand: `first` is the number of the batch's first example (from 1), `end` the row to stop at."""

    first: int
    end: int


class Variants(NamedTuple):
    """Which variants use what. class_of int64[features]: features that the same variants use form a class.

    uses: float64[classes, lanes], 1.0 where the variant uses the class; users: float64[classes], how many do;
    parameters: float64[variants, 4], alpha, beta, l1, l2 of each.
    """

    class_of: Any
    uses: Any
    users: Any
    parameters: Any


# -- l1, which [rules] may set by prefix


@bare_inline
def l1_at(l1: Any, v: Any, feature: Any) -> Any:
    """l1 of a variant and feature; l1: float64[variants, features], or [variants, 1] where no rule sets it."""
    return l1[v, feature if l1.shape[1] > 1 else 0]


# -- a coordinate's a, behind its layout


@stub
def load(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    """a of a coordinate."""


@stub
def save(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    """Store a coordinate's a and n; r is the reading of n."""


@implements(load, Full, FullCounts, Own, OwnCounts)
def _load_a(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    return value_of(table, slot, v)


@implements(load, *COMPACT, OwnCompact, OwnCompactCounts)
def _load_packed(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    return unpack(learner, value_of(table, slot, v), r)


@implements(save, Full, FullCounts, Own, OwnCounts)
def _save_a(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    put(table, slot, v, a, n, t)


@implements(save, *COMPACT, OwnCompact, OwnCompactCounts)
def _save_packed(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    put(table, slot, v, pack(learner, a, r), n, t)


# -- the loops


@bare_inline
def has_room(rows: Any, row: Any, stream: Any, count: Any, full: Any) -> Any:
    """True if there is a row, and the table takes all its keys even if every one is new."""
    return row < stream.end and count + rows.starts[row + 1] - rows.starts[row] <= full


@bare_kernel
def learn_one(
    table: Any,
    room: Any,
    row: Any,
    rows: Any,
    stream: Any,
    admission: Any,
    learner: Any,
    l1: Any,
    marks: Any,
    variants: Any,
    scores: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """Predict and learn rows in order, for a single variant, from `row` until the end or until something is due.

    table: a layout; room: keys it may still take; rows: `HashedRows`; scores: float64[rows, 1] out, each row's score
    before it is learned from; added: int64[features] out, positions of new keys, `count` of them so far.
    Returns (next row, count).
    """
    full = count + room
    while has_room(rows, row, stream, count, full) and not worn(learner, marks):
        t = stream.first + row
        prefetch_ahead(table, rows, row)
        size, count = claim_slots(table, admission, rows, row, t, work.found, work.place, added, count)
        score = 0.0
        for i in range(size):
            slot, position = work.found[i], work.place[i]
            r = reading(learner.rate, n_of(table, slot, 0))
            a = load(table, slot, 0, learner, r)
            l1_here = l1_at(l1, 0, rows.features[position])
            w = weight(learner, l1_here, a, r, seen_at(table, slot), t, marks, 0)
            work.r[i], work.w[i] = r, w
            score += w * x_of(rows, position)
        scores[row, 0] = score
        label = rows.labels[row]
        error = importance_of(rows, row) * (sigmoid(score) - label)
        tick(learner, t, marks, 0)
        for i in range(size):
            slot, position = work.found[i], work.place[i]
            g, r = error * x_of(rows, position), work.r[i]
            a, n = load(table, slot, 0, learner, r), n_of(table, slot, 0)
            count_example(table, slot, label > 0.5, t)
            n = grown(learner.rate, n, n_of(table, slot, 0), g, mark(learner, marks, 0))
            new_r = reading(learner.rate, n)
            l1_here = l1_at(l1, 0, rows.features[position])
            a = step(learner, l1_here, a, work.w[i], g, r, new_r, t, marks, 0)
            save(table, slot, 0, learner, a, n, new_r, t)
            see(table, slot, t)
        row += 1
    return row, count


@bare_kernel
def learn_shared(
    table: Any,
    room: Any,
    row: Any,
    rows: Any,
    stream: Any,
    admission: Any,
    learner: Any,
    l1: Any,
    marks: Any,
    variants: Any,
    scores: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """`learn_one` for several variants that share each key's value (the paper, section 4.4).

    Each variant that uses a key predicts with its own keys and computes the key's new (a, n) as if it were alone; the
    means of those are stored. scores: float64[rows, lanes] out.
    """
    classes, lanes = variants.uses.shape
    full = count + room
    while has_room(rows, row, stream, count, full) and not worn(learner, marks):
        t = stream.first + row
        prefetch_ahead(table, rows, row)
        size, count = claim_slots(table, admission, rows, row, t, work.found, work.place, added, count)
        for v in range(lanes):
            work.error[v] = 0.0
        for i in range(size):
            slot, position = work.found[i], work.place[i]
            feature = rows.features[position]
            r = reading(learner.rate, n_of(table, slot, 0))
            a = load(table, slot, 0, learner, r)
            w = weight(learner, l1_at(l1, 0, feature), a, r, seen_at(table, slot), t, marks, 0)
            work.r[i], work.w[i] = r, w
            if w != 0.0:
                add_to_users(work.error, w * x_of(rows, position), variants.uses, variants.class_of[feature])
        importance, label = importance_of(rows, row), rows.labels[row]
        for v in range(lanes):
            scores[row, v] = work.error[v]
            work.error[v] = importance * (sigmoid(work.error[v]) - label)
            work.squared[v] = work.error[v] * work.error[v]
        for c in range(classes):
            work.mean_error[c] = sum_over_users(work.error, variants.uses, c) / variants.users[c]
            work.mean_squared[c] = sum_over_users(work.squared, variants.uses, c) / variants.users[c]
        tick(learner, t, marks, 0)
        for i in range(size):
            slot, position = work.found[i], work.place[i]
            feature, r = rows.features[position], work.r[i]
            a, n = load(table, slot, 0, learner, r), n_of(table, slot, 0)
            count_example(table, slot, label > 0.5, t)
            counted = n_of(table, slot, 0)
            c, x = variants.class_of[feature], x_of(rows, position)
            a, n = mean_step(
                learner, learner.rate, l1_at(l1, 0, feature), a, work.w[i], n, counted, r, x, c, t, marks,
                variants, work,
            )  # fmt: skip
            save(table, slot, 0, learner, a, n, reading(learner.rate, n), t)
            see(table, slot, t)
        row += 1
    return row, count


@bare_kernel
def learn_own(
    table: Any,
    room: Any,
    row: Any,
    rows: Any,
    stream: Any,
    admission: Any,
    learner: Any,
    l1: Any,
    marks: Any,
    variants: Any,
    scores: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """`learn_one` for several variants with values and parameters of their own, which share keys, counts and reading.

    marks: float64[variants, MARKS]; scores: float64[rows, lanes] out.
    """
    several = variants.parameters.shape[0]
    full = count + room
    while has_room(rows, row, stream, count, full) and not worn(learner, marks):
        t = stream.first + row
        prefetch_ahead(table, rows, row)
        size, count = claim_slots(table, admission, rows, row, t, work.found, work.place, added, count)
        for v in range(several):
            work.error[v] = 0.0
        for i in range(size):
            slot, position = work.found[i], work.place[i]
            feature, seen, x = rows.features[position], seen_at(table, slot), x_of(rows, position)
            c = variants.class_of[feature]
            for v in range(several):
                if variants.uses[c, v] != 0.0:
                    mine = own_learner(learner, variants.parameters, v)
                    r = reading(mine.rate, n_of(table, slot, v))
                    a = load(table, slot, v, mine, r)
                    w = weight(mine, l1_at(l1, v, feature), a, r, seen, t, marks, v)
                    work.r[i * several + v], work.w[i * several + v] = r, w
                    work.error[v] += w * x
        importance, label = importance_of(rows, row), rows.labels[row]
        for v in range(several):
            scores[row, v] = work.error[v]
            work.error[v] = importance * (sigmoid(work.error[v]) - label)
            tick(own_learner(learner, variants.parameters, v), t, marks, v)
        for i in range(size):
            slot, position = work.found[i], work.place[i]
            feature, x = rows.features[position], x_of(rows, position)
            c = variants.class_of[feature]
            count_example(table, slot, label > 0.5, t)
            for v in range(several):
                if variants.uses[c, v] != 0.0:
                    mine = own_learner(learner, variants.parameters, v)
                    g, r, w = work.error[v] * x, work.r[i * several + v], work.w[i * several + v]
                    a, n = load(table, slot, v, mine, r), n_of(table, slot, v)
                    n = grown(mine.rate, n, n, g, mark(mine, marks, v))
                    new_r = reading(mine.rate, n)
                    a = step(mine, l1_at(l1, v, feature), a, w, g, r, new_r, t, marks, v)
                    save(table, slot, v, mine, a, n, new_r, t)
            see(table, slot, t)
        row += 1
    return row, count


@bare_inline
def own_learner(learner: Any, parameters: Any, v: Any) -> Any:
    """The learner with variant v's parameters."""
    return with_own(learner, parameters[v, 0], parameters[v, 1], parameters[v, 2], parameters[v, 3])


# -- the mean of what variants would do to a value they share


@stub
def mean_step(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    marks: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """The mean (a, n) over the variants that use class c."""


@implements(mean_step, Ogd, Truncation, TruncatedGradient, Fobos, Rda)
def _mean_of_each(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    marks: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """By the definition: one variant after the other."""
    new_mark = mark(learner, marks, 0)
    sum_a, sum_n = 0.0, 0.0
    for v in range(variants.parameters.shape[0]):
        if variants.uses[c, v] != 0.0:
            g = work.error[v] * x
            new_n = grown(rate, n, counted, g, new_mark)
            sum_a += step(learner, l1, a, w, g, r, reading(rate, new_n), t, marks, 0)
            sum_n += new_n
    return sum_a / variants.users[c], sum_n / variants.users[c]


@implements(mean_step, Ftrl)
def _mean_of_ftrl(
    learner: Any, rate: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, r: Any, x: Any, c: Any, t: Any,
    marks: Any, variants: Any, work: Any,
) -> Any:  # fmt: skip
    """All variants start from the same (z, n), so the mean of their new ones is

    z + mean g - w (mean new r - r) / alpha    and    n + mean g^2.
    """
    pull = 0.0
    if w != 0.0:
        pull = w * (mean_reading(rate, n, counted, x, c, variants, work) - r) / rate.alpha
    new_n = mean_n(rate, n, counted, x, c, work)
    return a + (x * work.mean_error[c] - pull), new_n


@stub
def mean_reading(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    """The mean of the variants' new r."""


@implements(mean_reading, Gradients)
def _mean_root(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    return sum_of_roots(n, x * x, work.squared, variants.uses, c) / variants.users[c]


@implements(mean_reading, Counts, Constant)
def _common_reading(rate: Any, n: Any, counted: Any, x: Any, c: Any, variants: Any, work: Any) -> Any:
    return reading(rate, counted)


@stub
def mean_n(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    """The mean of the variants' new n."""


@implements(mean_n, Gradients)
def _mean_squares(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    return n + x * x * work.mean_squared[c]


@implements(mean_n, Counts, Constant)
def _common_n(rate: Any, n: Any, counted: Any, x: Any, c: Any, work: Any) -> Any:
    return counted


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


# -- reading the whole table


@bare_kernel
def weights_of(
    table: Any, slots: Any, features: Any, learner: Any, l1: Any, marks: Any, variants: Any, t: Any, out: Any
) -> None:
    """The weight of every key when example t would come: float64[keys, variants with values of their own].

    slots int64[keys], features uint16[keys]: where a key lies and what it is a key of; variants: `Variants`.
    """
    for index in range(slots.size):
        slot = slots[index]
        for v in range(out.shape[1]):
            mine = own_learner(learner, variants.parameters, v)
            r = reading(mine.rate, n_of(table, slot, v))
            a = load(table, slot, v, mine, r)
            out[index, v] = weight(
                mine, l1_at(l1, v, features[index]), a, r, seen_at(table, slot), t, marks, v
            )


@bare_kernel
def rates_of(table: Any, slots: Any, learner: Any, variants: Any, t: Any, out: Any) -> None:
    """The learning rate of every key at example t: float64[keys, variants with values of their own]."""
    for index in range(slots.size):
        for v in range(out.shape[1]):
            mine = own_learner(learner, variants.parameters, v)
            out[index, v] = eta(mine.rate, reading(mine.rate, n_of(table, slots[index], v)), t)


@bare_kernel
def settle(
    table: Any, slots: Any, features: Any, learner: Any, l1: Any, marks: Any, variants: Any, t: Any
) -> None:
    """Bring every coordinate to its weight before example t, for marks that begin anew."""
    for v in range(marks.shape[0]):
        mine = own_learner(learner, variants.parameters, v)
        for index in range(slots.size):
            slot = slots[index]
            r = reading(mine.rate, n_of(table, slot, v))
            a = load(table, slot, v, mine, r)
            w = weight(mine, l1_at(l1, v, features[index]), a, r, seen_at(table, slot), t, marks, v)
            put(table, slot, v, w, 0.0, t)


@bare_kernel
def begin_marks(learner: Any, marks: Any) -> None:
    """Set every variant's marks to where they begin."""
    for v in range(marks.shape[0]):
        fresh_marks(learner, marks, v)


@bare_kernel
def save_each(table: Any, slots: Any, v: Any, learner: Any, variants: Any, a: Any, n: Any) -> None:
    """Give keys a state: slots int64[keys]; a, n float64[keys], of variant v."""
    mine = own_learner(learner, variants.parameters, v)
    for index in range(slots.size):
        set_counts(table, slots[index], n[index])
        held = grown(mine.rate, n[index], n_of(table, slots[index], v), 0.0, 0.0)
        save(table, slots[index], v, mine, a[index], held, reading(mine.rate, held), 0)
