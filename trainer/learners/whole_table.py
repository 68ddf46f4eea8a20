"""What is done to all keys at once: read their weights and rates, settle them, give them a state."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_kernel
from trainer.learners.coordinate import l1_at, load, own_learner, save
from trainer.learners.learner import fresh_marks, weight
from trainer.learners.rates import eta, grown, reading
from trainer.slots.seen import seen_at
from trainer.slots.state import n_of, put, set_counts


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
