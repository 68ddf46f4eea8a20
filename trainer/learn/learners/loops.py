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
from trainer.learn.learners.averages import add_averages, has_averages, update_averages
from trainer.learn.learners.coordinate import l1_at, learner_at, learner_of_variant, load, save, unpacked
from trainer.learn.learners.lanes import LANES
from trainer.learn.learners.operations import (
    advance,
    derivatives,
    latent_of,
    needs_rebase,
    part_of,
    probability_of,
    repeats,
    update,
    variance,
    weight,
)
from trainer.learn.learners.rates import r_of
from trainer.learn.learners.sharing import (
    MEANS,
    add_to_variants,
    mean_step,
    take_columns,
    take_means,
    take_roots,
)
from trainer.learn.slots.state import count_example, n_of, seen_at, set_seen, value_of
from trainer.learn.table_kernels import claim_slots


class Work(NamedTuple):
    """Scratch arrays for one row.

    slots, positions: uint64[features], the slots of its admitted keys, and the keys' positions in the batch; unsigned,
    as numba takes a signed index to count from the end if it is negative, which costs more than the access.
    next_slots, next_positions: those of the row after it. classes: int64[features], the keys' classes; w, r, a, n, x,
    l1: float64[features x variants with values of their own]; the others: one number per lane or class.
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
    def room(cls, features: int, lanes: int, classes: int, own: int) -> Work:
        """Scratch arrays for rows of up to `features` features."""
        whole = -(-features // LANES) * LANES
        slots, positions, next_slots, next_positions = np.empty((4, whole), np.uint64)
        of_class = np.zeros(whole, np.int64)
        w, r, a, n, x, l1, root, part = np.empty((8, whole * own))
        powers, means = np.empty((lanes, MEANS)), np.empty((classes + 1, MEANS))
        columns = np.empty((MEANS, whole))
        p, error, squared = np.empty((3, lanes))
        # fmt: off
        return cls(
            slots, positions, next_slots, next_positions, of_class, w, r, a, n, x, l1, root, part, p, error, squared,
            powers, means, columns,
        )
        # fmt: on


class Coordinates(NamedTuple):
    """Arrays of `Work` as float64[variants with values of their own, features]."""

    w: Any
    r: Any
    a: Any
    n: Any
    l1: Any
    part: Any


class Predicted(NamedTuple):
    """Output of a loop: each row's prediction before it is learned from, float64[rows, lanes] each.

    scores: what the link maps to the probabilities: the sum of the weights, for AdPredictor in standard deviations.
    margins: input, the part of the sum that is not learned; float64[0, lanes] if there is none.
    """

    scores: npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float64]
    margins: npt.NDArray[np.float64]


class Stream(NamedTuple):
    """`first`: the number of the next example (from 1); `end`: the row before which the loop stops.

    repeats: whether two keys of a row may have one slot.
    """

    first: int
    end: int
    repeats: bool


class Variants(NamedTuple):
    """Which variants use which features. class_of int64[features]: features that the same variants use form a class.

    uses: float64[classes, lanes], 1.0 where the variant uses the class, lanes >= variants; using, inverse:
    float64[classes], how many variants do, and 1 / using. counts, adds: int64[classes + 1], bool[classes + 1], members:
    int64[classes + 1, variants]: the variants that use the class (adds), or those that do not, if they are fewer; the
    last row has all. parameters: float64[variants, 4], alpha, beta, l1, l2 of each. An average uses no class: it does
    not learn. alpha: float64[variants with values of their own, features], decay: float64[features], of tuned rates.
    """

    class_of: Any
    uses: Any
    using: Any
    inverse: Any
    counts: Any
    adds: Any
    members: Any
    parameters: Any
    alpha: Any
    decay: Any
    averages: Any


@bare_inline
def margin_of(predicted: Any, row: Any, v: Any) -> Any:
    """The part of a variant's score that is not learned."""
    return predicted.margins[row, v] if predicted.margins.size else 0.0


@bare_inline
def has_room(rows: Any, row: Any, stream: Any, count: Any, full: Any) -> Any:
    """True if there is another row, and the table has room for all its keys even if every one is new."""
    return row < stream.end and count + rows.starts[row + 1] - rows.starts[row] <= full


@bare_inline
def gather(table: Any, rows: Any, l1: Any, learner: Any, variants: Any, work: Any, size: Any) -> None:
    """Copy what the weights of a row's keys follow from to `work`: n, x, l1, r and a."""
    for i in range(size):
        slot, position = work.slots[i], work.positions[i]
        work.n[i], work.x[i] = n_of(table, slot, 0), x_of(rows, position)
        work.l1[i] = l1_at(l1, 0, rows.features[position])
    for i in range(size):
        mine = learner_at(learner, variants, 0, rows.features[work.positions[i]])
        work.r[i] = r_of(mine.rate, work.n[i])
    for i in range(size):
        mine = learner_at(learner, variants, 0, rows.features[work.positions[i]])
        work.a[i] = load(table, work.slots[i], 0, mine, work.r[i])


@bare_inline
def gather_one(table: Any, rows: Any, l1: Any, slots: Any, positions: Any, work: Any, size: Any) -> None:
    """Copy the stored values of a row's keys and what belongs to them to `work`: a, n, x and l1 where they differ."""
    for i in range(size):
        work.a[i], work.n[i] = value_of(table, slots[i], 0), n_of(table, slots[i], 0)
    if rows.x.size:
        for i in range(size):
            work.x[i] = rows.x[positions[i]]
    if l1.shape[1] > 1:
        for i in range(size):
            work.l1[i] = l1[0, rows.features[positions[i]]]


@bare_inline
def x_in(work: Any, rows: Any, i: Any) -> Any:
    """The x of a row's key number i."""
    return work.x[i] if rows.x.size else 1.0


@bare_inline
def l1_in(work: Any, l1: Any, common: Any, i: Any) -> Any:
    """l1 of a row's key number i; common: the one of all keys where no rule sets it."""
    return work.l1[i] if l1.shape[1] > 1 else common


@bare_inline
def update_keys(
    table: Any, rows: Any, learner: Any, lazy: Any, variants: Any, l1: Any, slots: Any, positions: Any, work: Any,
    begin: Any, end: Any, label: Any, error: Any, squared: Any, t: Any, first: Any,
) -> None:  # fmt: skip
    """Update the coordinates of some of a row's keys, which have different slots and whose a and n are in `work`.

    first: the example is learned for the first time, and counted.
    """
    common = l1[0, 0]
    if first:
        for i in range(begin, end):
            count_example(table, slots[i], label > 0.5, t)
    for i in range(begin, end):
        mine = learner_at(learner, variants, 0, rows.features[positions[i]])
        counted = n_of(table, slots[i], 0)
        work.a[i], work.n[i], _ = update(
            mine, l1_in(work, l1, common, i), work.a[i], work.w[i], work.n[i], counted, x_in(work, rows, i),
            error, squared, work.r[i], t, lazy, 0,
        )  # fmt: skip
    for i in range(begin, end):
        mine = learner_at(learner, variants, 0, rows.features[positions[i]])
        n = work.n[i]
        save(table, slots[i], 0, mine, work.a[i], n, r_of(mine.rate, n), t)
        set_seen(table, slots[i], t)


@bare_inline
def update_shared(
    table: Any, rows: Any, learner: Any, lazy: Any, variants: Any, work: Any, begin: Any, end: Any, label: Any,
    middle: Any, reach: Any, t: Any, first: Any,
) -> None:  # fmt: skip
    """`update_keys` for several variants that share each key's value."""
    for i in range(begin, end):
        slot = work.slots[i]
        mine = learner_at(learner, variants, 0, rows.features[work.positions[i]])
        work.a[i], work.n[i] = load(table, slot, 0, mine, work.r[i]), n_of(table, slot, 0)
        if first:
            count_example(table, slot, label > 0.5, t)
    take_roots(learner, learner.rate, begin, end, middle, reach, variants, work)
    for i in range(begin, end):
        mine = learner_at(learner, variants, 0, rows.features[work.positions[i]])
        counted = n_of(table, work.slots[i], 0)
        work.a[i], work.n[i] = mean_step(
            mine, mine.rate, work.l1[i], work.a[i], work.w[i], work.n[i], counted, work.r[i], work.x[i], i,
            middle, reach, t, lazy, variants, work,
        )  # fmt: skip
    for i in range(begin, end):
        mine = learner_at(learner, variants, 0, rows.features[work.positions[i]])
        slot, n = work.slots[i], work.n[i]
        save(table, slot, 0, mine, work.a[i], n, r_of(mine.rate, n), t)
        set_seen(table, slot, t)


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
    lazy: Any,
    variants: Any,
    predicted: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """Predict and learn rows in order, for a single variant, from `row` on.

    Stops at the end, or where the table must grow or the lazy state must be rebased. table: a layout; room: keys that
    still fit; rows: `HashedRows`; predicted: out; added: int64[features] out, positions of new keys, `count` so far.
    Returns (next row, number of the next example, count).

    A row's coordinates are copied to `work`, computed there in loops that LLVM vectorizes, and copied back: all at
    once, or one after the other where keys of a row may share a slot (stream.repeats). The next row's slots are found
    while the sum and the link, which wait for each other's results, leave the processor idle.
    """
    full, common = count + room, l1[0, 0]
    slots, positions, next_slots, next_positions = (
        work.slots, work.positions, work.next_slots, work.next_positions,
    )  # fmt: skip
    size, next_size, t = 0, 0, stream.first
    goes_on = has_room(rows, row, stream, count, full) and not needs_rebase(learner, lazy)
    if goes_on:
        size, count = claim_slots(table, admission, rows, row, t, slots, positions, added, count)
    while goes_on:
        importance, label = importance_of(rows, row), rows.labels[row]
        next_t = t + (importance != 0.0)
        times = repeats(learner, importance)
        for again in range(times):
            gather_one(table, rows, l1, slots, positions, work, size)
            for i in range(size):
                mine = learner_at(learner, variants, 0, rows.features[positions[i]])
                r = r_of(mine.rate, work.n[i])
                a = unpacked(table, work.a[i], mine, r)
                limit, seen = l1_in(work, l1, common, i), seen_at(table, slots[i])
                work.w[i] = weight(mine, limit, a, r, seen, t, lazy, 0)
                work.a[i], work.r[i] = a, r
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
                    advance(learner, t, lazy, 0)
                goes_on = has_room(rows, row + 1, stream, count, full) and not needs_rebase(learner, lazy)
                if goes_on:
                    next_size, count = claim_slots(
                        table, admission, rows, row + 1, next_t, next_slots, next_positions, added, count
                    )
            if next_t == t:
                break
            part = part_of(learner, importance, again)
            error, squared = derivatives(learner, part, label, p, latent, spread)
            first = again == 0
            if stream.repeats:
                for i in range(size):
                    work.a[i], work.n[i] = (
                        load(table, slots[i], 0, learner, work.r[i]),
                        n_of(table, slots[i], 0),
                    )
                    update_keys(
                        table, rows, learner, lazy, variants, l1, slots, positions, work, i, i + 1, label, error,
                        squared, t, first,
                    )  # fmt: skip
            else:
                update_keys(
                    table, rows, learner, lazy, variants, l1, slots, positions, work, 0, size, label, error,
                    squared, t, first,
                )  # fmt: skip
        row, t, size = row + 1, next_t, next_size
        slots, next_slots = next_slots, slots
        positions, next_positions = next_positions, positions
    return row, t, count


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
    lazy: Any,
    variants: Any,
    predicted: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """`learn_one` for several variants that share each key's value (KDD 2013, section 4.4).

    Each variant predicts with its own keys and computes their new (a, n) as if it were alone; the means over the
    variants that use a key are stored.
    """
    lanes = variants.uses.shape[1]
    full, t = count + room, stream.first
    while has_room(rows, row, stream, count, full) and not needs_rebase(learner, lazy):
        size, count = claim_slots(table, admission, rows, row, t, work.slots, work.positions, added, count)
        importance, label = importance_of(rows, row), rows.labels[row]
        times = repeats(learner, importance)
        for again in range(times):
            gather(table, rows, l1, learner, variants, work, size)
            for i in range(size):
                work.classes[i] = variants.class_of[rows.features[work.positions[i]]]
            for i in range(size):
                mine = learner_at(learner, variants, 0, rows.features[work.positions[i]])
                seen = seen_at(table, work.slots[i])
                work.w[i] = weight(mine, work.l1[i], work.a[i], work.r[i], seen, t, lazy, 0)
            for v in range(lanes):
                work.error[v], work.squared[v] = margin_of(predicted, row, v), 0.0
            spread = 0.0
            for i in range(size):
                work.a[i] = variance(learner, work.r[i], work.x[i])
                spread += work.a[i]
            if spread != 0.0:
                add_to_variants(work.squared, work.a, variants.uses, work.classes, size)
            for i in range(size):
                work.a[i] = work.w[i] * work.x[i]
            add_to_variants(work.error, work.a, variants.uses, work.classes, size)
            for v in range(lanes):
                work.error[v] = latent_of(learner, work.error[v], work.squared[v])
                work.p[v] = probability_of(learner, work.error[v])
            if again == 0:
                for v in range(lanes):
                    predicted.scores[row, v], predicted.probabilities[row, v] = work.error[v], work.p[v]
                if importance == 0.0:
                    break
                advance(learner, t, lazy, 0)
            part = part_of(learner, importance, again)
            for v in range(lanes):
                work.error[v], work.squared[v] = derivatives(
                    learner, part, label, work.p[v], work.error[v], work.squared[v]
                )
            middle, reach = take_means(variants, work)
            take_columns(work, size)
            first = again == 0
            if stream.repeats:
                for i in range(size):
                    update_shared(
                        table, rows, learner, lazy, variants, work, i, i + 1, label, middle, reach, t, first
                    )
            else:
                update_shared(
                    table, rows, learner, lazy, variants, work, 0, size, label, middle, reach, t, first
                )
        row, t = row + 1, t + (importance != 0.0)
    return row, t, count


@bare_inline
def gather_own(
    table: Any, rows: Any, l1: Any, learner: Any, lazy: Any, variants: Any, work: Any, own: Any, size: Any, t: Any
) -> None:  # fmt: skip
    """Copy what the weights of a row's keys follow from to `work` and `own`, and compute all variants' weights."""
    several = own.n.shape[0]
    for i in range(size):
        slot, position = work.slots[i], work.positions[i]
        feature = rows.features[position]
        work.x[i], work.classes[i] = x_of(rows, position), variants.class_of[feature]
        for v in range(several):
            own.n[v, i], own.l1[v, i] = n_of(table, slot, v), l1_at(l1, v, feature)
    for v in range(several):
        parent = learner_of_variant(learner, variants.parameters, v)
        for i in range(size):
            mine = learner_at(parent, variants, v, rows.features[work.positions[i]])
            own.r[v, i] = r_of(mine.rate, own.n[v, i])
    for i in range(size):
        load_own(table, rows, learner, variants, work, own, i)
    for v in range(several):
        parent = learner_of_variant(learner, variants.parameters, v)
        for i in range(size):
            mine = learner_at(parent, variants, v, rows.features[work.positions[i]])
            seen = seen_at(table, work.slots[i])
            own.w[v, i] = weight(mine, own.l1[v, i], own.a[v, i], own.r[v, i], seen, t, lazy, v)


@bare_inline
def load_own(table: Any, rows: Any, learner: Any, variants: Any, work: Any, own: Any, i: Any) -> None:
    """Copy all variants' a of a key to `own`, at the r that is there."""
    for v in range(own.a.shape[0]):
        mine = learner_of_variant(learner, variants.parameters, v)
        mine = learner_at(mine, variants, v, rows.features[work.positions[i]])
        own.a[v, i] = load(table, work.slots[i], v, mine, own.r[v, i])


@bare_inline
def update_own(
    table: Any, rows: Any, learner: Any, lazy: Any, variants: Any, work: Any, own: Any, begin: Any, end: Any,
    label: Any, t: Any, first: Any,
) -> None:  # fmt: skip
    """`update_keys` for several variants with values of their own, whose a and n are in `own`."""
    several = own.a.shape[0]
    if first:
        for i in range(begin, end):
            count_example(table, work.slots[i], label > 0.5, t)
    for v in range(several):
        parent = learner_of_variant(learner, variants.parameters, v)
        error, squared = work.error[v], work.squared[v]
        for i in range(begin, end):
            mine = learner_at(parent, variants, v, rows.features[work.positions[i]])
            counted = n_of(table, work.slots[i], v)
            own.a[v, i], own.n[v, i], own.part[v, i] = update(
                mine, own.l1[v, i], own.a[v, i], own.w[v, i], own.n[v, i], counted, work.x[i], error, squared,
                own.r[v, i], t, lazy, v,
            )  # fmt: skip
    for i in range(begin, end):
        slot, c = work.slots[i], work.classes[i]
        for v in range(several):
            if variants.uses[c, v] != 0.0:
                mine = learner_of_variant(learner, variants.parameters, v)
                mine = learner_at(mine, variants, v, rows.features[work.positions[i]])
                save(table, slot, v, mine, own.a[v, i], own.n[v, i], own.part[v, i], t)
                if has_averages(variants.averages):
                    l1_here, r = own.l1[v, i], own.part[v, i]
                    own.r[v, i] = weight(mine, l1_here, own.a[v, i], r, t, t + 1, lazy, v)
        update_averages(variants.averages, table, slot, variants.uses, c, own.w, own.r, i, t)
        set_seen(table, slot, t)


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
    lazy: Any,
    variants: Any,
    predicted: Any,
    added: Any,
    count: Any,
    work: Any,
) -> Any:
    """`learn_one` for several variants with values and parameters of their own, which share keys and counts.

    lazy: float64[variants, LAZY_SIZE].
    """
    several = variants.parameters.shape[0]
    shape = several, work.w.size // several
    own = Coordinates(
        work.w.reshape(shape),
        work.r.reshape(shape),
        work.a.reshape(shape),
        work.n.reshape(shape),
        work.l1.reshape(shape),
        work.part.reshape(shape),
    )
    full, t = count + room, stream.first
    while has_room(rows, row, stream, count, full) and not needs_rebase(learner, lazy):
        size, count = claim_slots(table, admission, rows, row, t, work.slots, work.positions, added, count)
        importance, label = importance_of(rows, row), rows.labels[row]
        times = repeats(learner, importance)
        for again in range(times):
            for v in range(several):
                work.error[v], work.squared[v] = margin_of(predicted, row, v), 0.0
            gather_own(table, rows, l1, learner, lazy, variants, work, own, size, t)
            for i in range(size):
                c = work.classes[i]
                for v in range(several):
                    if variants.uses[c, v] != 0.0:
                        mine = learner_of_variant(learner, variants.parameters, v)
                        mine = learner_at(mine, variants, v, rows.features[work.positions[i]])
                        work.error[v] += own.w[v, i] * work.x[i]
                        work.squared[v] += variance(mine, own.r[v, i], work.x[i])
                add_averages(
                    variants.averages,
                    table,
                    work.slots[i],
                    variants.uses,
                    c,
                    own.w,
                    i,
                    work.x[i],
                    work.error,
                    t,
                )
            for v in range(several):
                mine = learner_of_variant(learner, variants.parameters, v)
                spread = work.squared[v]
                latent = latent_of(mine, work.error[v], spread)
                p = probability_of(mine, latent)
                if again == 0:
                    predicted.scores[row, v], predicted.probabilities[row, v] = latent, p
                    if importance != 0.0:
                        advance(mine, t, lazy, v)
                part = part_of(mine, importance, again)
                work.error[v], work.squared[v] = derivatives(mine, part, label, p, latent, spread)
            if importance == 0.0:
                break
            first = again == 0
            if stream.repeats:
                for i in range(size):
                    load_own(table, rows, learner, variants, work, own, i)
                    for v in range(several):
                        own.n[v, i] = n_of(table, work.slots[i], v)
                    update_own(table, rows, learner, lazy, variants, work, own, i, i + 1, label, t, first)
            else:
                update_own(table, rows, learner, lazy, variants, work, own, 0, size, label, t, first)
        row, t = row + 1, t + (importance != 0.0)
    return row, t, count
