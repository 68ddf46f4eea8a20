"""Online gradient descent (Zinkevich, ICML 2003), with one rate for all coordinates or one for each:

    w = w - eta g

Without penalties nearly every key that was ever touched has a weight. With l1 and l2 in the gradient, the baseline that
papers on sparse learning compare with, every coordinate takes at every example, touched or not (g = 0 where it is not),

    w = w - eta (g + l1 sgn(w) + l2 w)    with sgn(0) = 0.

With `shrink = "touched"` it takes this step at its own examples alone, and waits for no closed form.

eta is the coordinate's rate at that example, and n counts the gradient g of the loss alone: the penalties would change
n at every example. eta l2 is below 1, which the spec ensures.

Missed examples, rate per coordinate: eta does not change while the coordinate is not touched. With q = 1 - eta l2 and
c = eta l1, m missed examples turn |w| into |w| q^m - c (1 + q + ... + q^(m-1)) while that is above 0. The step that
would pass 0 does pass it, since a subgradient step does not stop there: |w| becomes c - q |w|, and the sign changes
then and at every later example. For v = |w| after that step, m more examples yield

    (-q)^m v + c (1 - (-q)^m) / (1 + q).

Missed examples, global rate eta_s: l2 alone. The coordinate stores a = w / A, A the product of all 1 - eta_s l2 so far,
as in `fobos.py`; lazy[v, 1] is A. With l1, the alternating part has no closed form under a falling rate: the spec
takes it with `shrink = "touched"` only.

Oracle: `tests/trainer/oracles/ogd.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements, stub
from model_store.spec.spec import ModelSpec
from trainer.learn.learners import operations
from trainer.learn.learners.fobos import keeps_scaled_weights, shrinkage, stored
from trainer.learn.learners.operations import Algorithm
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, eta

_NEGLIGIBLE = 1e-20


class Ogd(NamedTuple):
    """The learner's parameters, without penalties."""

    rate: Rate


class PenalizedOgd(NamedTuple):
    """The learner's parameters with penalties; l1 comes with the coordinate."""

    rate: Rate
    l2: float


class TouchedOgd(NamedTuple):
    """The same, with penalties that act on the coordinates of an example only."""

    rate: Rate
    l2: float


implements(operations.weight, Ogd, TouchedOgd)(lambda learner, l1, a, r, seen, t, lazy, v: a)


@implements(operations.step, Ogd)
def _step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    return w - eta(learner.rate, new_r, t) * g


@bare_inline
def penalized(g, w, l1, l2):
    """g and the subgradient of l1 |w| + l2 w^2 / 2."""
    return g + l1 * (np.float64(w > 0.0) - np.float64(w < 0.0)) + l2 * w


@bare_inline
def shrunk(u, m, y, c):
    """u q^m - c (1 + q + ... + q^(m-1)) for q = 1 - y: |w| after m steps if it stays above 0, else 0 or less."""
    if y == 0.0:
        return u - m * c
    power, total = shrinkage(y / (1.0 - y), m)
    return u * power - c / (1.0 - y) * total


@bare_inline
def steps_before_0(u, m, y, c):
    """The largest k < m for which `shrunk` is above 0, where it is not above 0 for m.

    A logarithm estimates k; as it may differ between machines in its last bit, `shrunk` itself decides.
    """
    if (1.0 - y) * u <= c:  # nearly always: it passed 0 before it was touched
        return np.int64(0)
    ratio = u / c if y < _NEGLIGIBLE else math.log1p(u / c * y) / -math.log1p(-y)
    k = np.int64(min(max(math.ceil(ratio) - 1.0, 0.0), m - 1.0))
    while k > 0 and shrunk(u, k, y, c) <= 0.0:
        k -= 1
    while k + 1 < m and shrunk(u, k + 1, y, c) > 0.0:
        k += 1
    return k


@bare_inline
def crossed(w, m, y, c):
    """w after m steps, of which one passes 0."""
    k = steps_before_0(abs(w), m, y, c)
    u = c - (1.0 - y) * (shrunk(abs(w), k, y, c) if k > 0 else abs(w))
    if u == 0.0:
        return u
    later = m - k - 1
    sign = 1.0 - 2.0 * np.float64(later & 1)
    power = sign * (shrinkage(y / (1.0 - y), later)[0] if y > 0.0 else 1.0)
    return math.copysign(power * u + c * (1.0 - power) / (2.0 - y), w) * -sign


@stub
def caught_up(rate, l1, l2, a, r, seen, t, lazy, v):
    """The weight after the missed examples."""


@implements(caught_up, *OWN_RATES)
def _at_own_rate(rate, l1, l2, a, r, seen, t, lazy, v):
    missed = t - 1 - seen
    if a == 0.0 or missed <= 0:
        return a
    own = eta(rate, r, t)
    y, c = own * l2, own * l1
    u = shrunk(abs(a), missed, y, c)
    return math.copysign(u, a) if u > 0.0 or c == 0.0 else crossed(a, missed, y, c)


implements(caught_up, Global)(lambda rate, l1, l2, a, r, seen, t, lazy, v: a * lazy[v, 1])
implements(operations.weight, PenalizedOgd)(
    lambda learner, l1, a, r, seen, t, lazy, v: caught_up(
        learner.rate, l1, learner.l2, a, r, seen, t, lazy, v
    )
)


@implements(operations.step, PenalizedOgd)
def _penalized_step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    return stored(learner.rate, w - eta(learner.rate, new_r, t) * penalized(g, w, l1, learner.l2), lazy, v)


@implements(operations.step, TouchedOgd)
def _touched_step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    return w - eta(learner.rate, new_r, t) * penalized(g, w, l1, learner.l2)


@stub
def _advance_of(rate, l2, t, lazy, v):
    """Advance the running product by example t."""


implements(_advance_of, *OWN_RATES)(lambda rate, l2, t, lazy, v: None)


@implements(_advance_of, Global)
def _advance_global(rate, l2, t, lazy, v):
    lazy[v, 1] *= 1.0 - eta(rate, 0.0, t) * l2


implements(operations.advance, PenalizedOgd)(
    lambda learner, t, lazy, v: _advance_of(learner.rate, learner.l2, t, lazy, v)
)


operations.stores_weights(Ogd, PenalizedOgd, TouchedOgd)
operations.has_no_lazy_state(Ogd, TouchedOgd)
keeps_scaled_weights(PenalizedOgd)
operations.learns_by_gradient(Ogd, PenalizedOgd, TouchedOgd)


def _of(spec: ModelSpec, rate: Rate, l2: float) -> Ogd | PenalizedOgd | TouchedOgd:
    if not spec.has_penalties:
        return Ogd(rate)
    return TouchedOgd(rate, l2) if spec.learner.shrink == "touched" else PenalizedOgd(rate, l2)


ALGORITHM = Algorithm(make=_of, catches_up=lambda spec: spec.shrinks_untouched)
