"""Online gradient descent (Zinkevich, ICML 2003), with one rate for all coordinates or one for each:

    w = w - eta g

It has no regularization, so nearly every key that was ever touched has a weight.

Oracle: `tests/trainer/oracles/ogd.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model_store.jit import implements
from trainer.learn.learners.operations import (
    has_no_lazy_state,
    learns_by_gradient,
    step,
    stores_weights,
    weight,
    with_own_parameters,
)
from trainer.learn.learners.rates import Rate, eta, with_parameters


class Ogd(NamedTuple):
    """The learner's parameters."""

    rate: Rate


@implements(weight, Ogd)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    return a


@implements(step, Ogd)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, lazy: Any, v: Any
) -> Any:
    return w - eta(learner.rate, new_r, t) * g


@implements(with_own_parameters, Ogd)
def _with_own_parameters(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    return Ogd(with_parameters(learner.rate, alpha, beta))


stores_weights(Ogd)
has_no_lazy_state(Ogd)
learns_by_gradient(Ogd)
