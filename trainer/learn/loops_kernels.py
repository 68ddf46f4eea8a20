"""The learning loops: one variant; several that share values; several with values of their own.

A row takes four steps: find its keys' slots, sum their weights to a score, take the loss's derivatives, update every
coordinate. A learner may take the last three several times for a row of importance above 1. A row of importance 0 is
predicted and is no example: it claims no slot, and nothing changes.
Numba compiles a loop once for each learner, layout and admission that is used (`implements`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.jit import bare_inline, bare_kernel
from trainer.examples.examples_kernels import importance_of, x_of
from trainer.learn.coordinates_kernels import (
    add_averages,
    credited,
    l1_at,
    learner_at,
    learner_of_variant,
    load,
    save,
    unpacked,
    update_averages,
)
from trainer.learn.learners.operations import (
    advance,
    derivatives,
    latent_of,
    mean_step,
    needs_rebase,
    part_of,
    probability_of,
    repeats,
    take_roots,
    update,
    variance,
    weight,
)
from trainer.learn.learners.rates import r_of
from trainer.learn.sharing_kernels import MEANS, add_to_variants, take_columns, take_means
from trainer.learn.simd_kernels import LANES
from trainer.learn.slots_kernels import count_example, n_of, seen_at, set_seen, value_of
from trainer.learn.table_kernels import claim_slots


class Work(NamedTuple):
    """Scratch arrays for one row.

    slots, positions: uint64[features], the slots of its admitted keys, and the keys' positions in the batch; unsigned,
    as numba takes a signed index to count from the end if it is negative, which costs more than the access.
    next_slots, next_positions: those of the row after it. classes: int64[features], the keys' classes; w, r, a, n, x,
    l1, root, part: float64[features x variants with values of their own]; p, error, squared: float64[columns of
    `Variants.uses`]; powers, means: a row for each of these columns, and for each class; columns: float64[MEANS,
    features].
    """

    slots: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.uint64]
    next_slots: npt.NDArray[np.uint64]
    next_positions: npt.NDArray[np.uint64]
    classes: npt.NDArray[np.int64]
    w: npt.NDArray[np.float64]
    r: npt.NDArray[np.float64]
    a: npt.NDArray[np.float64]
    n: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    l1: npt.NDArray[np.float64]
    root: npt.NDArray[np.float64]
    part: npt.NDArray[np.float64]
    p: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    squared: npt.NDArray[np.float64]
    powers: npt.NDArray[np.float64]
    means: npt.NDArray[np.float64]
    columns: npt.NDArray[np.float64]

    @classmethod
    def of(cls, features: int, columns: int, classes: int, own: int) -> Work:
        """Scratch arrays for rows of up to `features` features."""
        whole = -(-features // LANES) * LANES
        arrays: tuple[Any, ...] = (
            *np.empty((4, whole), np.uint64),
            np.zeros(whole, np.int64),
            *np.empty((8, whole * own)),
            *np.empty((3, columns)),
            np.empty((columns, MEANS)),
            np.empty((classes + 1, MEANS)),
            np.empty((MEANS, whole)),
        )
        return cls(*arrays)


class OwnWork(NamedTuple):
    """Arrays of `Work` as float64[variants with values of their own, features]."""

    w: Any
    r: Any
    a: Any
    n: Any
    l1: Any
    part: Any


class Predicted(NamedTuple):
    """Output of a loop: each row's prediction before it is learned from, float64[rows, columns of `Variants.uses`].

    scores: what the link maps to the probabilities: the sum of the weights, for AdPredictor in standard deviations.
    margins: input, the part of the sum that is not learned; float64[0, columns] if there is none.
    """

    scores: npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float64]
    margins: npt.NDArray[np.float64]


class Limits(NamedTuple):
    """Where a loop begins and stops.

    row: the first row, which is example number `first` (from 1); end: the row before which it stops at the latest;
    known: how many new keys there are already; full: how many there may be before the table must grow; repeats:
    whether two keys of a row may have one slot.
    """

    row: int
    first: int
    end: int
    known: int
    full: int
    repeats: bool


@bare_inline
def has_next(rows: Any, row: Any, limits: Any, count: Any, of: Any) -> Any:
    """True if there is another row, room for all its keys even if every one is new, and no need of a rebase."""
    return (
        row < limits.end
        and count + rows.starts[row + 1] - rows.starts[row] <= limits.full
        and not needs_rebase(of.learner, of.lazy)
    )


@bare_inline
def margin_of(predicted: Any, row: Any, v: Any) -> Any:
    """The part of a variant's score that is not learned."""
    return predicted.margins[row, v] if predicted.margins.size else 0.0


@bare_inline
def x_in(work: Any, rows: Any, i: Any) -> Any:
    """The x of a row's key number i."""
    return work.x[i] if rows.x.size else 1.0


@bare_inline
def l1_in(work: Any, of: Any, common: Any, i: Any) -> Any:
    """l1 of a row's key number i; common: the one of all keys where no rule sets it."""
    return work.l1[i] if of.l1.shape[1] > 1 else common


@bare_inline
def weigh(
    table: Any, rows: Any, of: Any, common: Any, slots: Any, positions: Any, work: Any, size: Any, t: Any
) -> None:
    """Copy a row's coordinates to `work`: a, n and r, their weights, and x and l1 where they differ."""
    for i in range(size):
        work.a[i], work.n[i] = value_of(table, slots[i], 0), n_of(table, slots[i], 0)
    if rows.x.size:
        for i in range(size):
            work.x[i] = rows.x[positions[i]]
    if of.l1.shape[1] > 1:
        for i in range(size):
            work.l1[i] = of.l1[0, rows.features[positions[i]]]
    for i in range(size):
        mine = learner_at(of.learner, of.variants, 0, rows.features[positions[i]])
        r = r_of(mine.rate, work.n[i])
        a = unpacked(table, work.a[i], mine, r)
        limit, seen = l1_in(work, of, common, i), seen_at(table, slots[i])
        work.w[i] = weight(mine, limit, a, r, seen, t, of.lazy, 0)
        work.a[i], work.r[i] = a, r


@bare_inline
def reload(table: Any, rows: Any, of: Any, slots: Any, positions: Any, work: Any, i: Any) -> None:
    """Copy a and n of a key again: those before it in the row may have its slot."""
    mine = learner_at(of.learner, of.variants, 0, rows.features[positions[i]])
    work.a[i], work.n[i] = load(table, slots[i], 0, mine, work.r[i]), n_of(table, slots[i], 0)


@bare_inline
def save_keys(
    table: Any, rows: Any, of: Any, slots: Any, positions: Any, work: Any, begin: Any, end: Any, t: Any
) -> None:
    """Store a and n of some of a row's keys from `work`."""
    for i in range(begin, end):
        mine = learner_at(of.learner, of.variants, 0, rows.features[positions[i]])
        n = work.n[i]
        save(table, slots[i], 0, mine, work.a[i], n, r_of(mine.rate, n), t)
        set_seen(table, slots[i], t)


@bare_inline
def update_keys(
    table: Any, rows: Any, of: Any, common: Any, slots: Any, positions: Any, work: Any, begin: Any, end: Any,
    label: Any, error: Any, squared: Any, t: Any, first: Any,
) -> None:  # fmt: skip
    """Update the coordinates of some of a row's keys, which have different slots and whose a and n are in `work`.

    first: the example is learned for the first time, and counted.
    """
    if first:
        for i in range(begin, end):
            count_example(table, slots[i], label > 0.5, t)
    for i in range(begin, end):
        mine = learner_at(of.learner, of.variants, 0, rows.features[positions[i]])
        counted = n_of(table, slots[i], 0)
        work.a[i], work.n[i], _ = update(
            mine, l1_in(work, of, common, i), work.a[i], work.w[i], work.n[i], counted, x_in(work, rows, i),
            error, squared, work.r[i], t, of.lazy, 0,
        )  # fmt: skip
    save_keys(table, rows, of, slots, positions, work, begin, end, t)


@bare_inline
def update_shared(
    table: Any, rows: Any, of: Any, common: Any, work: Any, begin: Any, end: Any, label: Any,
    middle: Any, reach: Any, t: Any, first: Any,
) -> None:  # fmt: skip
    """`update_keys` for several variants that share each key's value."""
    if first:
        for i in range(begin, end):
            count_example(table, work.slots[i], label > 0.5, t)
    take_roots(of.learner, begin, end, middle, reach, of.variants, work)
    for i in range(begin, end):
        mine = learner_at(of.learner, of.variants, 0, rows.features[work.positions[i]])
        counted = n_of(table, work.slots[i], 0)
        work.a[i], work.n[i] = mean_step(
            mine, l1_in(work, of, common, i), work.a[i], work.w[i], work.n[i], counted, work.r[i], work.x[i], i,
            middle, reach, t, of.lazy, of.variants, work,
        )  # fmt: skip
    save_keys(table, rows, of, work.slots, work.positions, work, begin, end, t)


@bare_kernel
def learn_one(
    table: Any, rows: Any, limits: Any, admission: Any, of: Any, predicted: Any, added: Any, work: Any
) -> Any:
    """Predict and learn rows in order, for a single variant.

    Stops at the end, or where the table must grow or the lazy state must be rebased. table: a layout; rows:
    `HashedRows`; limits: `Limits`; of: `Learning`; predicted: out; added: int64[features] out, positions of new keys.
    Returns (next row, number of the next example, number of new keys).

    A row's coordinates are copied to `work`, computed there in loops that LLVM vectorizes, and copied back: all at
    once, or one after the other where keys of a row may share a slot (limits.repeats). The next row's slots are found
    while the sum and the link, which wait for each other's results, leave the processor idle.
    """
    learner, common = of.learner, of.l1[0, 0]
    slots, positions, next_slots, next_positions = (
        work.slots, work.positions, work.next_slots, work.next_positions,
    )  # fmt: skip
    row, t, count, size, next_size = limits.row, limits.first, limits.known, 0, 0
    more = has_next(rows, row, limits, count, of)
    if more:
        size, count = claim_slots(table, admission, rows, row, t, slots, positions, added, count)
    while more:
        importance, label = importance_of(rows, row), rows.labels[row]
        next_t = t + (importance != 0.0)
        times = repeats(learner, importance)
        for again in range(times):
            weigh(table, rows, of, common, slots, positions, work, size, t)
            score, spread = margin_of(predicted, row, 0), 0.0
            if rows.x.size:
                for i in range(size):
                    score += work.w[i] * work.x[i]
                    spread += variance(learner, work.r[i], work.x[i])
            else:
                for i in range(size):
                    score += work.w[i]
                    spread += variance(learner, work.r[i], 1.0)
            latent = latent_of(learner, score, spread)
            p = probability_of(learner, latent)
            if again == 0:
                predicted.scores[row, 0], predicted.probabilities[row, 0] = latent, p
                if next_t != t:
                    advance(learner, t, of.lazy, 0)
                more = has_next(rows, row + 1, limits, count, of)
                if more:
                    next_size, count = claim_slots(
                        table, admission, rows, row + 1, next_t, next_slots, next_positions, added, count
                    )
            if next_t == t:
                break
            part = credited(of.labels, part_of(learner, importance, again), label, p)
            error, squared = derivatives(learner, part, label, p, latent, spread)
            first = again == 0
            if limits.repeats:
                for i in range(size):
                    reload(table, rows, of, slots, positions, work, i)
                    update_keys(
                        table, rows, of, common, slots, positions, work, i, i + 1, label, error, squared, t, first
                    )  # fmt: skip
            else:
                update_keys(
                    table, rows, of, common, slots, positions, work, 0, size, label, error, squared, t, first
                )
        row, t, size = row + 1, next_t, next_size
        slots, next_slots = next_slots, slots
        positions, next_positions = next_positions, positions
    return row, t, count


@bare_kernel
def learn_shared(
    table: Any, rows: Any, limits: Any, admission: Any, of: Any, predicted: Any, added: Any, work: Any
) -> Any:
    """`learn_one` for several variants that share each key's value (KDD 2013, section 4.4).

    Each variant predicts with its own keys and computes their new (a, n) as if it were alone; the means over the
    variants that use a key are stored.
    """
    learner, variants, common = of.learner, of.variants, of.l1[0, 0]
    columns = variants.uses.shape[1]
    row, t, count = limits.row, limits.first, limits.known
    while has_next(rows, row, limits, count, of):
        size, count = claim_slots(table, admission, rows, row, t, work.slots, work.positions, added, count)
        importance, label = importance_of(rows, row), rows.labels[row]
        times = repeats(learner, importance)
        for again in range(times):
            weigh(table, rows, of, common, work.slots, work.positions, work, size, t)
            for i in range(size):
                work.classes[i] = variants.class_of[rows.features[work.positions[i]]]
                work.x[i] = x_of(rows, work.positions[i])
            for v in range(columns):
                work.error[v], work.squared[v] = margin_of(predicted, row, v), 0.0
            spread = 0.0
            for i in range(size):
                work.part[i] = variance(learner, work.r[i], work.x[i])
                spread += work.part[i]
            if spread != 0.0:
                add_to_variants(work.squared, work.part, variants.uses, work.classes, size)
            for i in range(size):
                work.part[i] = work.w[i] * work.x[i]
            add_to_variants(work.error, work.part, variants.uses, work.classes, size)
            for v in range(columns):
                work.error[v] = latent_of(learner, work.error[v], work.squared[v])
                work.p[v] = probability_of(learner, work.error[v])
            if again == 0:
                for v in range(columns):
                    predicted.scores[row, v], predicted.probabilities[row, v] = work.error[v], work.p[v]
                if importance == 0.0:
                    break
                advance(learner, t, of.lazy, 0)
            part = part_of(learner, importance, again)
            for v in range(columns):
                mine = credited(of.labels, part, label, work.p[v])
                work.error[v], work.squared[v] = derivatives(
                    learner, mine, label, work.p[v], work.error[v], work.squared[v]
                )
            middle, reach = take_means(variants, work)
            take_columns(work, size)
            first = again == 0
            if limits.repeats:
                for i in range(size):
                    reload(table, rows, of, work.slots, work.positions, work, i)
                    update_shared(table, rows, of, common, work, i, i + 1, label, middle, reach, t, first)
            else:
                update_shared(table, rows, of, common, work, 0, size, label, middle, reach, t, first)
        row, t = row + 1, t + (importance != 0.0)
    return row, t, count


@bare_inline
def weigh_own(table: Any, rows: Any, of: Any, work: Any, own: Any, size: Any, t: Any) -> None:
    """`weigh` for several variants with values of their own; x and l1 of every key."""
    several = own.n.shape[0]
    for i in range(size):
        slot, position = work.slots[i], work.positions[i]
        feature = rows.features[position]
        work.x[i], work.classes[i] = x_of(rows, position), of.variants.class_of[feature]
        for v in range(several):
            own.n[v, i], own.l1[v, i] = n_of(table, slot, v), l1_at(of, v, feature)
    for v in range(several):
        parent = learner_of_variant(of, v)
        for i in range(size):
            mine = learner_at(parent, of.variants, v, rows.features[work.positions[i]])
            own.r[v, i] = r_of(mine.rate, own.n[v, i])
    for i in range(size):
        load_own(table, rows, of, work, own, i)
    for v in range(several):
        parent = learner_of_variant(of, v)
        for i in range(size):
            mine = learner_at(parent, of.variants, v, rows.features[work.positions[i]])
            seen = seen_at(table, work.slots[i])
            own.w[v, i] = weight(mine, own.l1[v, i], own.a[v, i], own.r[v, i], seen, t, of.lazy, v)


@bare_inline
def load_own(table: Any, rows: Any, of: Any, work: Any, own: Any, i: Any) -> None:
    """Copy all variants' a of a key to `own`, at the r that is there."""
    for v in range(own.a.shape[0]):
        mine = learner_at(learner_of_variant(of, v), of.variants, v, rows.features[work.positions[i]])
        own.a[v, i] = load(table, work.slots[i], v, mine, own.r[v, i])


@bare_inline
def update_own(
    table: Any, rows: Any, of: Any, work: Any, own: Any, begin: Any, end: Any, label: Any, t: Any, first: Any
) -> None:
    """`update_keys` for several variants with values of their own, whose a and n are in `own`."""
    variants, several = of.variants, own.a.shape[0]
    if first:
        for i in range(begin, end):
            count_example(table, work.slots[i], label > 0.5, t)
    for v in range(several):
        parent = learner_of_variant(of, v)
        error, squared = work.error[v], work.squared[v]
        for i in range(begin, end):
            mine = learner_at(parent, variants, v, rows.features[work.positions[i]])
            counted = n_of(table, work.slots[i], v)
            own.a[v, i], own.n[v, i], own.part[v, i] = update(
                mine, own.l1[v, i], own.a[v, i], own.w[v, i], own.n[v, i], counted, work.x[i], error, squared,
                own.r[v, i], t, of.lazy, v,
            )  # fmt: skip
    for i in range(begin, end):
        c = work.classes[i]
        for v in range(several):
            if variants.uses[c, v] != 0.0:
                mine = learner_at(learner_of_variant(of, v), variants, v, rows.features[work.positions[i]])
                save(table, work.slots[i], v, mine, own.a[v, i], own.n[v, i], own.part[v, i], t)
    if variants.averages.of.size:
        follow_weights(table, rows, of, work, own, begin, end, t)
    for i in range(begin, end):
        set_seen(table, work.slots[i], t)


@bare_inline
def follow_weights(table: Any, rows: Any, of: Any, work: Any, own: Any, begin: Any, end: Any, t: Any) -> None:
    """Let the averages of some of a row's keys follow the weights after example t."""
    variants = of.variants
    for i in range(begin, end):
        c = work.classes[i]
        for v in range(own.a.shape[0]):
            if variants.uses[c, v] != 0.0:
                mine = learner_at(learner_of_variant(of, v), variants, v, rows.features[work.positions[i]])
                l1, r = own.l1[v, i], own.part[v, i]
                own.r[v, i] = weight(mine, l1, own.a[v, i], r, t, t + 1, of.lazy, v)
        update_averages(variants.averages, table, work.slots[i], variants.uses, c, own.w, own.r, i, t)


@bare_kernel
def learn_own(
    table: Any, rows: Any, limits: Any, admission: Any, of: Any, predicted: Any, added: Any, work: Any
) -> Any:
    """`learn_one` for several variants with values and parameters of their own, which share keys and counts."""
    variants, several = of.variants, of.variants.parameters.shape[0]
    shape = several, work.w.size // several
    own = OwnWork(
        work.w.reshape(shape),
        work.r.reshape(shape),
        work.a.reshape(shape),
        work.n.reshape(shape),
        work.l1.reshape(shape),
        work.part.reshape(shape),
    )
    row, t, count = limits.row, limits.first, limits.known
    while has_next(rows, row, limits, count, of):
        size, count = claim_slots(table, admission, rows, row, t, work.slots, work.positions, added, count)
        importance, label = importance_of(rows, row), rows.labels[row]
        times = repeats(of.learner, importance)
        for again in range(times):
            for v in range(several):
                work.error[v], work.squared[v] = margin_of(predicted, row, v), 0.0
            weigh_own(table, rows, of, work, own, size, t)
            for i in range(size):
                c = work.classes[i]
                for v in range(several):
                    if variants.uses[c, v] != 0.0:
                        mine = learner_of_variant(of, v)
                        mine = learner_at(mine, variants, v, rows.features[work.positions[i]])
                        work.error[v] += own.w[v, i] * work.x[i]
                        work.squared[v] += variance(mine, own.r[v, i], work.x[i])
            for i in range(size if variants.averages.of.size else 0):
                slot, c = work.slots[i], work.classes[i]
                add_averages(
                    variants.averages, table, slot, variants.uses, c, own.w, i, work.x[i], work.error, t
                )
            for v in range(several):
                mine = learner_of_variant(of, v)
                spread = work.squared[v]
                latent = latent_of(mine, work.error[v], spread)
                p = probability_of(mine, latent)
                if again == 0:
                    predicted.scores[row, v], predicted.probabilities[row, v] = latent, p
                    if importance != 0.0:
                        advance(mine, t, of.lazy, v)
                part = credited(of.labels, part_of(mine, importance, again), label, p)
                work.error[v], work.squared[v] = derivatives(mine, part, label, p, latent, spread)
            if importance == 0.0:
                break
            first = again == 0
            if limits.repeats:
                for i in range(size):
                    load_own(table, rows, of, work, own, i)
                    for v in range(several):
                        own.n[v, i] = n_of(table, work.slots[i], v)
                    update_own(table, rows, of, work, own, i, i + 1, label, t, first)
            else:
                update_own(table, rows, of, work, own, 0, size, label, t, first)
        row, t = row + 1, t + (importance != 0.0)
    return row, t, count
