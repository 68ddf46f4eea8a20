"""A coordinate as the loops see it, whatever its layout: its a, its l1, and the learner of its variant."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.learn.learners.learner import fresh_marks, pack, unpack, weight, with_own
from trainer.learn.learners.rates import eta, grown, reading
from trainer.learn.slots.layouts import (
    COMPACT,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)
from trainer.learn.slots.state import n_of, put, seen_at, set_counts, value_of


@bare_inline
def l1_at(l1: Any, v: Any, feature: Any) -> Any:
    """l1 of a variant and feature; l1: float64[variants, features], or [variants, 1] where no rule sets it."""
    return l1[v, feature if l1.shape[1] > 1 else 0]


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


@bare_inline
def own_learner(learner: Any, parameters: Any, v: Any) -> Any:
    """The learner with variant v's parameters."""
    return with_own(learner, parameters[v, 0], parameters[v, 1], parameters[v, 2], parameters[v, 3])


# --- What is done to all keys at once: read their weights and rates, settle them, give them a state ---


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
