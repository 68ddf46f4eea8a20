"""Reads and writes a coordinate as the loops need it, whatever its layout; and kernels over all keys of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.learn.averages_kernels import copy_to_averages, put_averages
from trainer.learn.learners.operations import pack, reset_lazy, unpack, weight, with_own_parameters
from trainer.learn.learners.rates import eta, n_after, r_of
from trainer.learn.slots_kernels import (
    COARSE,
    Full,
    FullCounts,
    Own,
    OwnCounts,
    n_of,
    put,
    seen_at,
    set_counts,
    value_of,
)


class OneAlpha(NamedTuple):
    """No rule sets alpha: it is that of the variant."""


class Alphas(NamedTuple):
    """of: float64[variants with values of their own, features]: the alpha of each."""

    of: Any


class Variants(NamedTuple):
    """Which variants use which features. class_of int64[features]: features that the same variants use form a class.

    uses: float64[classes, columns], 1.0 where the variant uses the class, the variants first and then zeros up to a
    whole vector; using, inverse: float64[classes], how many variants do, and 1 / using. counts, adds: int64[classes +
    1], bool[classes + 1], members: int64[classes + 1, variants]: the variants that use the class (adds), or those that
    do not, if they are fewer; the last row has all. parameters: float64[variants, 4], alpha, beta, l1, l2 of each. An
    average uses no class: it does not learn. alphas: `OneAlpha` or `Alphas`; averages: `Averages`.
    """

    class_of: Any
    uses: Any
    using: Any
    inverse: Any
    counts: Any
    adds: Any
    members: Any
    parameters: Any
    alphas: Any
    averages: Any


class Learning(NamedTuple):
    """What turns a coordinate's state into its weight, and an example into its next state.

    learner: the first variant's parameters; l1: float64[own, features], or [own, 1] where no rule sets it, own: the
    variants with values of their own; lazy: float64[own, LAZY_SIZE], the running totals; variants: `Variants`.
    """

    learner: Any
    l1: Any
    lazy: Any
    variants: Any


@bare_inline
def l1_at(of: Any, v: Any, feature: Any) -> Any:
    """l1 of a variant and feature."""
    return of.l1[v, feature if of.l1.shape[1] > 1 else 0]


@bare_inline
def learner_of_variant(of: Any, v: Any) -> Any:
    """The learner with variant v's parameters."""
    own = of.variants.parameters
    return with_own_parameters(of.learner, own[v, 0], own[v, 1], own[v, 3])


@bare_inline
def learner_at(learner: Any, variants: Any, v: Any, feature: Any) -> Any:
    """Variant v's learner with the alpha of a feature."""
    return _with_alpha(variants.alphas, learner, variants, v, feature)


@stub
def _with_alpha(alphas: Any, learner: Any, variants: Any, v: Any, feature: Any) -> Any:
    """`learner_at`."""


implements(_with_alpha, OneAlpha)(lambda alphas, learner, variants, v, feature: learner)
implements(_with_alpha, Alphas)(
    lambda alphas, learner, variants, v, feature: with_own_parameters(
        learner, alphas.of[v, feature], learner.rate.beta, variants.parameters[v, 3]
    )
)


@stub
def unpacked(table: Any, value: Any, learner: Any, r: Any) -> Any:
    """a of a value as the table stores it; r belongs to its n."""


@stub
def save(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    """Store a coordinate's a and n; r belongs to this n."""


implements(unpacked, Full, FullCounts, Own, OwnCounts)(lambda table, value, learner, r: value)
implements(unpacked, *COARSE)(lambda table, value, learner, r: unpack(learner, value, r))
implements(save, Full, FullCounts, Own, OwnCounts)(
    lambda table, slot, v, learner, a, n, r, t: put(table, slot, v, a, n, t)
)
implements(save, *COARSE)(
    lambda table, slot, v, learner, a, n, r, t: put(table, slot, v, pack(learner, a, r), n, t)
)


@bare_inline
def load(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    """a of a coordinate; r belongs to its n."""
    return unpacked(table, value_of(table, slot, v), learner, r)


@bare_kernel
def weights_of(table: Any, slots: Any, features: Any, of: Any, t: Any, out: Any) -> None:
    """The weight of every key before example t: float64[keys, variants with values of their own].

    slots int64[keys], features uint16[keys]: each key's slot and feature; of: `Learning`.
    """
    for index in range(slots.size):
        slot = slots[index]
        for v in range(out.shape[1]):
            mine = learner_at(learner_of_variant(of, v), of.variants, v, features[index])
            r = r_of(mine.rate, n_of(table, slot, v))
            a, limit = load(table, slot, v, mine, r), l1_at(of, v, features[index])
            out[index, v] = weight(mine, limit, a, r, seen_at(table, slot), t, of.lazy, v)
        put_averages(of.variants.averages, table, slot, t, out, index)


@bare_kernel
def rates_of(table: Any, slots: Any, features: Any, of: Any, t: Any, out: Any) -> None:
    """The learning rate of every key at example t: float64[keys, variants with values of their own]."""
    for index in range(slots.size):
        for v in range(out.shape[1]):
            mine = learner_at(learner_of_variant(of, v), of.variants, v, features[index])
            out[index, v] = eta(mine.rate, r_of(mine.rate, n_of(table, slots[index], v)), t)
        copy_to_averages(of.variants.averages, out, index)


@bare_kernel
def catch_up(table: Any, slots: Any, features: Any, of: Any, t: Any) -> None:
    """Store every coordinate's weight before example t, so that the running totals can be reset."""
    for v in range(of.lazy.shape[0]):
        mine = learner_of_variant(of, v)
        for index in range(slots.size):
            slot = slots[index]
            r = r_of(mine.rate, n_of(table, slot, v))
            a, limit = load(table, slot, v, mine, r), l1_at(of, v, features[index])
            put(table, slot, v, weight(mine, limit, a, r, seen_at(table, slot), t, of.lazy, v), 0.0, t)


@bare_kernel
def reset_all(learner: Any, lazy: Any) -> None:
    """Reset every variant's running totals."""
    for v in range(lazy.shape[0]):
        reset_lazy(learner, lazy, v)


@bare_kernel
def save_each(table: Any, slots: Any, features: Any, v: Any, of: Any, a: Any, n: Any) -> None:
    """Set the state of keys for variant v: slots int64[keys]; features uint16[keys]; a, n float64[keys]."""
    own = learner_of_variant(of, v)
    for index in range(slots.size):
        mine = learner_at(own, of.variants, v, features[index])
        set_counts(table, slots[index], n[index])
        held = n_after(mine.rate, n[index], n_of(table, slots[index], v), 0.0, 0.0)
        save(table, slots[index], v, mine, a[index], held, r_of(mine.rate, held), 0)
