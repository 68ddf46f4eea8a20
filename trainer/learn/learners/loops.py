"""The loops that predict and learn: one variant; several that share values; several with values of their own.

A row is taken in four steps: find its keys' slots, sum their weights, see the error, change every coordinate. Numba
compiles a loop once for each learner, layout and admission that is used (`implements`); none of them pays for another.
Numbers that belong to one row stand in `Work`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.hash_kernels import sigmoid
from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of, x_of
from trainer.learn.learners.coordinate import l1_at, load, own_learner, save
from trainer.learn.learners.lanes import add_to_users, sum_over_users
from trainer.learn.learners.learner import mark, step, tick, weight, worn
from trainer.learn.learners.rates import grown, reading
from trainer.learn.learners.sharing import mean_step
from trainer.learn.slots.state import count_example, n_of, see, seen_at
from trainer.learn.table_kernels import claim_slots, prefetch_ahead


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
