"""FOBOS: forward-backward splitting (Duchi & Singer, JMLR 2009, sections 2 and 5.2; "Folos" in the conference paper).

At every example, in every coordinate, touched or not (g = 0 where it is not):

    v = w - eta g
    w = sgn(v) max(0, |v| - eta l1) / (1 + eta l2)

What a coordinate missed. Its own rate eta does not change while it is not touched: with q = 1 / (1 + eta l2), m missed
examples make of |w|

    max(0, |w| q^m - eta l1 (q + q^2 + ... + q^m)).

With a global rate eta_s, let A be the product of all 1 / (1 + eta_s l2) so far and B the sum of all eta_s over the A
before s. The coordinate keeps a = w / A and the B of its last touch; now

    w = A sgn(a) max(0, |a| - l1 (B - B then)).

marks[v] is (B, A). Before A leaves the range of numbers every coordinate is settled, and the marks begin anew.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners.learner import (
    fresh_marks,
    keeps_weights,
    mark,
    step,
    tick,
    weight,
    with_own,
    worn,
)
from trainer.learn.learners.rates import OWN_RATES, Global, Rate, eta, with_parameters

_SMALLEST_A = 1e-100
_SMALL = 1.0 / 1024.0


class Fobos(NamedTuple):
    """The learner's parameters; l1 comes with the coordinate."""

    rate: Rate
    l2: float


@bare_inline
def proximal(v: Any, eta: Any, l1: Any, l2: Any) -> Any:
    """The backward step: the w that minimises (w - v)^2 / 2 + eta (l1 |w| + l2 w^2 / 2)."""
    size = max(0.0, abs(v) - eta * l1)
    return math.copysign(size / (1.0 + eta * l2) if l2 > 0.0 else size, v)


@bare_inline
def shrinkage(y: Any, m: Any) -> Any:
    """q^m and q + q^2 + ... + q^m for q = 1 / (1 + y).

    The sum is (1 - q^m) / y. Where m y is small it comes from the binomial series, m - m(m+1)/2 y + m(m+1)(m+2)/6 y^2
    - ..., whose terms beyond the fifth are below the last bit, and the power from it. That is nearly always, and a
    fixed number of steps; the loop of `powers` costs a wrong guess of the processor each time.
    """
    if (m + 5.0) * y > _SMALL:
        return powers(1.0 / (1.0 + y), m)
    total = 1.0 - (m + 4.0) * y * (1.0 / 5.0)
    total = 1.0 - (m + 3.0) * y * (1.0 / 4.0) * total
    total = 1.0 - (m + 2.0) * y * (1.0 / 3.0) * total
    total = m * (1.0 - (m + 1.0) * y * (1.0 / 2.0) * total)
    return 1.0 - y * total, total


@bare_inline
def powers(q: Any, m: Any) -> Any:
    """q^m and q + q^2 + ... + q^m, by repeated squaring, which rounds alike on every machine."""
    power, total = 1.0, 0.0  # of the part of m that is done
    base, series = q, q  # q^(2^i) and q + ... + q^(2^i)
    while m > 0:
        odd = np.float64(
            m & 1
        )  # a factor, not a branch, which the processor would guess wrong every other time
        total = total + odd * (power * series)
        power = power * (odd * base + (1.0 - odd))
        series = series + base * series
        base = base * base
        m >>= 1
    return power, total


@stub
def caught_up(rate: Any, l1: Any, l2: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    """The weight after all that a coordinate missed."""


@implements(caught_up, *OWN_RATES)
def _at_its_own_rate(
    rate: Any, l1: Any, l2: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any
) -> Any:
    missed = t - 1 - seen
    if a == 0.0 or missed <= 0:
        return a
    own = eta(rate, r, t)
    if l2 == 0.0:
        return math.copysign(max(0.0, abs(a) - missed * own * l1), a)
    power, total = shrinkage(own * l2, missed)
    return math.copysign(max(0.0, abs(a) * power - own * l1 * total), a)


@implements(caught_up, Global)
def _at_global_rates(
    rate: Any, l1: Any, l2: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any
) -> Any:
    return math.copysign(marks[v, 1] * max(0.0, abs(a) - l1 * (marks[v, 0] - r)), a)


@stub
def _kept(rate: Any, w: Any, marks: Any, v: Any) -> Any:
    """What is stored of a weight."""


@implements(_kept, *OWN_RATES)
def _kept_as_it_is(rate: Any, w: Any, marks: Any, v: Any) -> Any:
    return w


@implements(_kept, Global)
def _kept_unscaled(rate: Any, w: Any, marks: Any, v: Any) -> Any:
    return w / marks[v, 1]


@implements(weight, Fobos)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    return caught_up(learner.rate, l1, learner.l2, a, r, seen, t, marks, v)


@implements(step, Fobos)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, marks: Any, v: Any
) -> Any:
    rate = eta(learner.rate, new_r, t)
    return _kept(learner.rate, proximal(w - rate * g, rate, l1, learner.l2), marks, v)


@stub
def _tick_of(rate: Any, l2: Any, t: Any, marks: Any, v: Any) -> Any:
    """Move the marks over example t."""


@implements(_tick_of, *OWN_RATES)
def _own_tick(rate: Any, l2: Any, t: Any, marks: Any, v: Any) -> Any:
    pass


@implements(_tick_of, Global)
def _global_tick(rate: Any, l2: Any, t: Any, marks: Any, v: Any) -> Any:
    now = eta(rate, 0.0, t)
    marks[v, 0] += now / marks[v, 1]
    marks[v, 1] /= 1.0 + now * l2


@implements(tick, Fobos)
def _tick(learner: Any, t: Any, marks: Any, v: Any) -> Any:
    _tick_of(learner.rate, learner.l2, t, marks, v)


@implements(mark, Fobos)
def _mark(learner: Any, marks: Any, v: Any) -> Any:
    return marks[v, 0]


@implements(worn, Fobos)
def _worn(learner: Any, marks: Any) -> Any:
    smallest = 1.0
    for v in range(marks.shape[0]):
        smallest = min(smallest, marks[v, 1])
    return smallest < _SMALLEST_A


@implements(fresh_marks, Fobos)
def _fresh_marks(learner: Any, marks: Any, v: Any) -> Any:
    marks[v, 0] = 0.0
    marks[v, 1] = 1.0


@implements(with_own, Fobos)
def _with_own(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    return Fobos(with_parameters(learner.rate, alpha, beta), l2)


keeps_weights(Fobos)
