"""Reads and writes a coordinate as the loops need it, whatever its layout; averaged variants; all keys of a table."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import exponential
from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.learn.learners.fobos import powers
from trainer.learn.learners.operations import pack, reset_lazy, unpack, weight, with_own_parameters
from trainer.learn.learners.rates import eta, n_after, r_of
from trainer.learn.predictions_kernels import log
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

_POWER = 9


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


class GivenLabels(NamedTuple):
    """Labels are outcomes: every example counts with its own importance."""


class FakeNegatives(NamedTuple):
    """Every example is a negative at once, and its click a second one (docs/decide.md).

    Ktena et al., Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR Prediction, RecSys
    2019, the loss "fake negative weighted": of the rate p, such a log has the share b = p / (1 + p) of positives, and
    p(y|x) / b(y|x) weighs it back:

        L = - sum y (1 + p) log f + (1 - y) (1 - p) (1 + p) log(1 - f)

    where p is replaced by what the model predicts, f, of which no derivative is taken there. The expected gradient by
    the score is then (1 - f f) (f - p) for each example and its share of clicks: zero where f is the rate.
    """


class Learning(NamedTuple):
    """What turns a coordinate's state into its weight, and an example into its next state.

    learner: the first variant's parameters; l1: float64[own, features], or [own, 1] where no rule sets it, own: the
    variants with values of their own; lazy: float64[own, LAZY_SIZE], the running totals; variants: `Variants`; labels:
    `GivenLabels` or `FakeNegatives`.
    """

    learner: Any
    l1: Any
    lazy: Any
    variants: Any
    labels: Any = GivenLabels()


@bare_inline
def l1_at(of: Any, v: Any, feature: Any) -> Any:
    """l1 of a variant and feature."""
    return of.l1[v, feature if of.l1.shape[1] > 1 else 0]


@stub
def credited(labels: Any, importance: Any, label: Any, p: Any) -> Any:
    """The importance of an example with this label that the model predicts as p."""


implements(credited, GivenLabels)(lambda labels, importance, label, p: importance)
implements(credited, FakeNegatives)(
    lambda labels, importance, label, p: importance * (1.0 + p) * (1.0 if label > 0.5 else 1.0 - p)
)


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


# Averaged variants: an average of another variant's weights over the examples so far.
#
# With w_t the weight of the variant that is averaged, after example t, and 0 before the key is in the table:
#
#     average_t = average_(t-1) + share_t (w_t - average_(t-1))
#
#     by default     share_t = 10 / (t + 9)                 polynomial decay (Shamir and Zhang, ICML 2013, section 4):
#                                                           w_s counts about s^9, half of all falls on the last 7 %
#     half-life H    share_t = max(1 / t, 1 - 2^(-1/H))     the plain mean (Polyak and Juditsky, 1992) at first, then an
#                                                           example counts half as much as one H examples later
#
# A coordinate stores its gap at the last touch: average = w - gap. While w does not change gap_t = (1 - share_t)
# gap_(t-1), whose product over the missed examples has a closed form, so an average is exact and only touched with its
# key. That needs a variant whose untouched weights stay: of FTRL, or OGD without penalties. The average's a is the gap,
# its n is not used; it predicts, but does not learn.
#
# Oracle: `tests/trainer/oracles/dense.py`, which averages all weights at every example.


class Averages(NamedTuple):
    """All arrays are empty where no variant is an average.

    of: int64[variants], the variant that each averages, -1 if it learns; keep: float64[variants], 2^(-1/H), 0 for the
    default; first: int64[variants], the last t whose share is 1 / t.
    """

    of: Any
    keep: Any
    first: Any


@bare_kernel
def keep_of(half_lives: Any, keep: Any) -> None:
    """2^(-1/H) of each half-life, the same bits on every machine; 0 where it is NaN."""
    for v in range(keep.size):
        power = 1.0 / half_lives[v]
        if np.isnan(power):
            keep[v] = 0.0
        elif power == 1.0:
            keep[v] = 0.5
        else:
            keep[v] = math.sqrt(0.5) if power == 0.5 else exponential(-abs(power * log(0.5)))


@bare_inline
def gap(averages: Any, v: Any, last: Any, seen: Any, t: Any) -> Any:
    """How far average v is behind before example t; last: how far it was after example `seen`."""
    if last == 0.0:
        return last
    now, first = t - 1, averages.first[v]
    if averages.keep[v] == 0.0:
        before, after = 1.0, 1.0
        for j in range(_POWER + 1):
            before *= seen + j
            after *= now + j
        return last * (before / after)
    if now <= first:
        return last * (np.float64(seen) / now)
    begin = max(seen, first)
    return last * (np.float64(min(seen, first)) / first) * powers(averages.keep[v], now - begin)[0]


@bare_inline
def left_at(averages: Any, v: Any, t: Any) -> Any:
    """1 - share of example t."""
    if averages.keep[v] == 0.0:
        return np.float64(t - 1) / (t + _POWER)
    return 1.0 - 1.0 / t if t <= averages.first[v] else averages.keep[v]


@bare_inline
def add_averages(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, i: Any, x: Any, scores: Any, t: Any
) -> None:
    """Add a key of class c to the scores of averages; w[v, i]: variant v's own weight before example t."""
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0 and uses[c, of] != 0.0:
            behind = gap(averages, v, value_of(table, slot, v), seen_at(table, slot), t)
            scores[v] += (w[of, i] - behind) * x


@bare_inline
def update_averages(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, new: Any, i: Any, t: Any
) -> None:
    """Follow the weights of a key of class c, w before and new after example t; to be called before `seen` is set."""
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0 and uses[c, of] != 0.0:
            moved, held = new[of, i] - w[of, i], value_of(table, slot, v)
            behind = gap(averages, v, held, seen_at(table, slot), t) + moved
            put(table, slot, v, left_at(averages, v, t) * behind, 0.0, t)


@bare_inline
def put_averages(averages: Any, table: Any, slot: Any, t: Any, out: Any, index: Any) -> None:
    """Replace the weights in out[index], one per variant, of averages, with those before example t."""
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0:
            behind = gap(averages, v, value_of(table, slot, v), seen_at(table, slot), t)
            out[index, v] = out[index, of] - behind


@bare_inline
def copy_to_averages(averages: Any, out: Any, index: Any) -> None:
    """Give averages in out[index] what the variants have that they average."""
    for v in range(averages.of.size):
        if averages.of[v] >= 0:
            out[index, v] = out[index, averages.of[v]]


# All keys of a table.


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
