"""Reads and writes a coordinate as the loops need it, whatever its layout; and kernels over all keys of a table."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.learn.learners.averages import copy_to_averages, put_averages
from trainer.learn.learners.operations import pack, reset_lazy, unpack, weight, with_own_parameters
from trainer.learn.learners.rates import (
    GLOBAL,
    PLAIN,
    SQUARE_ROOT,
    TUNED,
    Posterior,
    eta,
    n_after,
    r_of,
)
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
def unpacked(table: Any, value: Any, learner: Any, r: Any) -> Any:
    """a of a value as the table stores it; r belongs to its n."""


@bare_inline
def load(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    """a of a coordinate; r belongs to its n."""
    return unpacked(table, value_of(table, slot, v), learner, r)


@stub
def save(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    """Store a coordinate's a and n; r belongs to this n."""


@implements(unpacked, Full, FullCounts, Own, OwnCounts)
def _as_stored(table: Any, value: Any, learner: Any, r: Any) -> Any:
    return value


@implements(unpacked, *COMPACT, OwnCompact, OwnCompactCounts)
def _of_packed(table: Any, value: Any, learner: Any, r: Any) -> Any:
    return unpack(learner, value, r)


@implements(save, Full, FullCounts, Own, OwnCounts)
def _save_a(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    put(table, slot, v, a, n, t)


@implements(save, *COMPACT, OwnCompact, OwnCompactCounts)
def _save_packed(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    put(table, slot, v, pack(learner, a, r), n, t)


@bare_inline
def learner_of_variant(learner: Any, parameters: Any, v: Any) -> Any:
    """The learner with variant v's parameters."""
    return with_own_parameters(learner, parameters[v, 0], parameters[v, 1], SQUARE_ROOT, parameters[v, 3])


@bare_inline
def learner_at(learner: Any, variants: Any, v: Any, feature: Any) -> Any:
    """A variant's learner with the alpha and the decay of a feature; variants: `Variants`."""
    return _with_rate_of(learner.rate, learner, variants, v, feature)


@stub
def _with_rate_of(rate: Any, learner: Any, variants: Any, v: Any, feature: Any) -> Any:
    """`learner_at`."""


@implements(_with_rate_of, *PLAIN, *GLOBAL, Posterior)
def _as_it_is(rate: Any, learner: Any, variants: Any, v: Any, feature: Any) -> Any:
    return learner


@implements(_with_rate_of, *TUNED)
def _of_feature(rate: Any, learner: Any, variants: Any, v: Any, feature: Any) -> Any:
    alpha, decay = variants.alpha[v, feature], variants.decay[feature]
    return with_own_parameters(learner, alpha, rate.beta, decay, variants.parameters[v, 3])


@bare_kernel
def weights_of(
    table: Any, slots: Any, features: Any, learner: Any, l1: Any, lazy: Any, variants: Any, t: Any, out: Any
) -> None:
    """The weight of every key before example t: float64[keys, variants with values of their own].

    slots int64[keys], features uint16[keys]: each key's slot and feature; variants: `Variants`.
    """
    for index in range(slots.size):
        slot = slots[index]
        for v in range(out.shape[1]):
            mine = learner_of_variant(learner, variants.parameters, v)
            mine = learner_at(mine, variants, v, features[index])
            r = r_of(mine.rate, n_of(table, slot, v))
            a = load(table, slot, v, mine, r)
            out[index, v] = weight(
                mine, l1_at(l1, v, features[index]), a, r, seen_at(table, slot), t, lazy, v
            )
        put_averages(variants.averages, table, slot, t, out, index)


@bare_kernel
def rates_of(table: Any, slots: Any, features: Any, learner: Any, variants: Any, t: Any, out: Any) -> None:
    """The learning rate of every key at example t: float64[keys, variants with values of their own].

    t = 0: after the warm-up.
    """
    for index in range(slots.size):
        for v in range(out.shape[1]):
            mine = learner_of_variant(learner, variants.parameters, v)
            mine = learner_at(mine, variants, v, features[index])
            out[index, v] = eta(mine.rate, r_of(mine.rate, n_of(table, slots[index], v)), t)
        copy_to_averages(variants.averages, out, index)


@bare_kernel
def catch_up(
    table: Any, slots: Any, features: Any, learner: Any, l1: Any, lazy: Any, variants: Any, t: Any
) -> None:
    """Store every coordinate's weight before example t, so that the running totals can be reset."""
    for v in range(lazy.shape[0]):
        mine = learner_of_variant(learner, variants.parameters, v)
        for index in range(slots.size):
            slot = slots[index]
            r = r_of(mine.rate, n_of(table, slot, v))
            a = load(table, slot, v, mine, r)
            w = weight(mine, l1_at(l1, v, features[index]), a, r, seen_at(table, slot), t, lazy, v)
            put(table, slot, v, w, 0.0, t)


@bare_kernel
def reset_all(learner: Any, lazy: Any) -> None:
    """Reset every variant's running totals."""
    for v in range(lazy.shape[0]):
        reset_lazy(learner, lazy, v)


@bare_kernel
def save_each(
    table: Any, slots: Any, features: Any, v: Any, learner: Any, variants: Any, a: Any, n: Any
) -> None:
    """Set the state of keys for variant v: slots int64[keys]; features uint16[keys]; a, n float64[keys]."""
    own = learner_of_variant(learner, variants.parameters, v)
    for index in range(slots.size):
        mine = learner_at(own, variants, v, features[index])
        set_counts(table, slots[index], n[index])
        held = n_after(mine.rate, n[index], n_of(table, slots[index], v), 0.0, 0.0)
        save(table, slots[index], v, mine, a[index], held, r_of(mine.rate, held), 0)
