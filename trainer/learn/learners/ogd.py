"""Online gradient descent (Zinkevich, ICML 2003), with one rate for all coordinates or each coordinate's own:

    w = w - eta g

It regularises nothing, so nearly every key that was ever touched has a weight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model_store.jit import implements
from trainer.learn.learners.learner import keeps_no_marks, keeps_weights, step, weight, with_own
from trainer.learn.learners.rates import Rate, eta, with_parameters


class Ogd(NamedTuple):
    """The learner's parameters."""

    rate: Rate


@implements(weight, Ogd)
def _weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    return a


@implements(step, Ogd)
def _step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, marks: Any, v: Any
) -> Any:
    return w - eta(learner.rate, new_r, t) * g


@implements(with_own, Ogd)
def _with_own(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    return Ogd(with_parameters(learner.rate, alpha, beta))


keeps_weights(Ogd)
keeps_no_marks(Ogd)
