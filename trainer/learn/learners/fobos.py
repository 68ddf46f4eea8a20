"""FOBOS: forward-backward splitting (Duchi & Singer, JMLR 2009, sections 2 and 5.2; "Folos" in the conference paper).

At every example, in every coordinate, touched or not (g = 0 where it is not):

    v = w - eta g
    w = sgn(v) max(0, |v| - eta l1) / (1 + eta l2)

`fixed`, `shrink = "fixed"`: 1 + l2 in place of 1 + eta l2, here and below, as some sources print it.

Missed examples, rate per coordinate: eta does not change while the coordinate is not touched. With
q = 1 / (1 + eta l2), m missed examples turn |w| into

    max(0, |w| q^m - eta l1 (q + q^2 + ... + q^m)).

Missed examples, global rate eta_s: let A be the product of all 1 / (1 + eta_s l2) so far, and B the sum of all eta_s
divided by the A before s. The coordinate stores a = w / A and the B of its last touch; its weight now is

    w = A sgn(a) max(0, |a| - l1 (B - B then)).

lazy[v] is (B, A). Before A underflows, every coordinate catches up, and A and B are reset.

Oracle: `tests/trainer/oracles/fobos.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners import operations
from trainer.learn.learners.operations import Algorithm
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, eta

_SMALLEST_A = 1e-100
_SMALL = 1.0 / 1024.0


class Fobos(NamedTuple):
    """The learner's parameters; l1 comes with the coordinate. fixed: l2 is not multiplied by the rate."""

    rate: Rate
    l2: float
    fixed: bool


@bare_inline
def l2_at(learner, eta):
    """y of a step at this rate, which divides by 1 + y."""
    return learner.l2 if learner.fixed else eta * learner.l2


@bare_inline
def proximal(v, by, y):
    """The backward step: the w that minimises (w - v)^2 / 2 + by |w| + y w^2 / 2."""
    size = max(0.0, abs(v) - by)
    return math.copysign(size / (1.0 + y) if y > 0.0 else size, v)


@bare_inline
def shrinkage(y, m):
    """q^m and q + q^2 + ... + q^m for q = 1 / (1 + y).

    The sum is (1 - q^m) / y. Where m y is small, which is nearly always, it comes from the binomial series
    m - m(m+1)/2 y + m(m+1)(m+2)/6 y^2 - ..., whose terms beyond the fifth are below the last bit, and the power from
    the sum: a fixed number of steps, without the mispredicted branches of the loop in `powers`.
    """
    if (m + 5.0) * y > _SMALL:
        return powers(1.0 / (1.0 + y), m)
    total = 1.0 - (m + 4.0) * y * (1.0 / 5.0)
    total = 1.0 - (m + 3.0) * y * (1.0 / 4.0) * total
    total = 1.0 - (m + 2.0) * y * (1.0 / 3.0) * total
    total = m * (1.0 - (m + 1.0) * y * (1.0 / 2.0) * total)
    return 1.0 - y * total, total


@bare_inline
def powers(q, m):
    """q^m and q + q^2 + ... + q^m, by repeated squaring, which rounds the same on every machine."""
    power, total = 1.0, 0.0  # of the bits of m processed so far
    base, series = q, q  # q^(2^i) and q + ... + q^(2^i)
    while m > 0:
        odd = np.float64(m & 1)  # a factor: a branch would be mispredicted every other time
        total = total + odd * (power * series)
        power = power * (odd * base + (1.0 - odd))
        series = series + base * series
        base = base * base
        m >>= 1
    return power, total


@stub
def caught_up(rate, learner, l1, a, r, seen, t, lazy, v):
    """The weight after the missed examples."""


@implements(caught_up, *OWN_RATES)
def _at_own_rate(rate, learner, l1, a, r, seen, t, lazy, v):
    missed = t - 1 - seen
    if a == 0.0 or missed <= 0:
        return a
    own = eta(rate, r, t)
    if learner.l2 == 0.0:
        return math.copysign(max(0.0, abs(a) - missed * own * l1), a)
    power, total = shrinkage(l2_at(learner, own), missed)
    return math.copysign(max(0.0, abs(a) * power - own * l1 * total), a)


@implements(caught_up, Global)
def _at_global_rates(rate, learner, l1, a, r, seen, t, lazy, v):
    return math.copysign(lazy[v, 1] * max(0.0, abs(a) - l1 * (lazy[v, 0] - r)), a)


@stub
def stored(rate, w, lazy, v):
    """a, as it is stored, of a weight."""


implements(stored, *OWN_RATES)(lambda rate, w, lazy, v: w)
implements(stored, Global)(lambda rate, w, lazy, v: w / lazy[v, 1])


implements(operations.weight, Fobos)(
    lambda learner, l1, a, r, seen, t, lazy, v: caught_up(learner.rate, learner, l1, a, r, seen, t, lazy, v)
)


@implements(operations.step, Fobos)
def _step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    rate = eta(learner.rate, new_r, t)
    return stored(learner.rate, proximal(w - rate * g, rate * l1, l2_at(learner, rate)), lazy, v)


@stub
def _advance_of(rate, learner, t, lazy, v):
    """Advance the running totals by example t."""


implements(_advance_of, *OWN_RATES)(lambda rate, learner, t, lazy, v: None)


@implements(_advance_of, Global)
def _advance_global(rate, learner, t, lazy, v):
    now = eta(rate, 0.0, t)
    lazy[v, 0] += now / lazy[v, 1]
    lazy[v, 1] /= 1.0 + l2_at(learner, now)


implements(operations.advance, Fobos)(
    lambda learner, t, lazy, v: _advance_of(learner.rate, learner, t, lazy, v)
)


def keeps_scaled_weights(*learners: type) -> None:
    """Declare learners whose a is w / A where the rate is global, with lazy[v] = (B, A)."""
    implements(operations.running_total, *learners)(lambda learner, lazy, v: lazy[v, 0])
    implements(operations.needs_rebase, *learners)(_needs_rebase)
    implements(operations.reset_lazy, *learners)(_reset_lazy)


def _needs_rebase(learner, lazy):
    smallest = 1.0
    for v in range(lazy.shape[0]):
        smallest = min(smallest, lazy[v, 1])
    return smallest < _SMALLEST_A


def _reset_lazy(learner, lazy, v):
    lazy[v, 0] = 0.0
    lazy[v, 1] = 1.0


operations.stores_weights(Fobos)
keeps_scaled_weights(Fobos)
operations.learns_by_gradient(Fobos)

ALGORITHM = Algorithm(
    make=lambda spec, rate, l2: Fobos(rate, l2, spec.learner.shrink == "fixed"), catches_up=lambda spec: True
)
