"""The four kinds of learning rate. A coordinate brings r: what its n says of its rate, as `reading` makes it.

gradients: eta = alpha / (beta + sqrt(n)), n the sum of the coordinate's squared gradients, the present one included.
counts: the same with n = P N / (P + N) (the paper, section 4.2). constant: eta = alpha / beta. global: alpha / sqrt(t),
t the number of the example. With a global rate n has no use, and keeps a learner's mark instead: see `learner.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import implements, stub


class Gradients(NamedTuple):
    """A rate of each coordinate's own, from its gradients."""

    alpha: float
    beta: float


class Counts(NamedTuple):
    """A rate of each coordinate's own, from how often it came with a click and without."""

    alpha: float
    beta: float


class Constant(NamedTuple):
    """One rate for all coordinates and examples."""

    alpha: float
    beta: float


class Global(NamedTuple):
    """One rate for all coordinates, falling with the examples."""

    alpha: float


Rate = Gradients | Counts | Constant | Global
OWN_RATES = (Gradients, Counts, Constant)


def rate_of(kind: str, alpha: float, beta: float) -> Rate:
    """The rate that the spec's `learner.rate` names."""
    if kind == "global":
        return Global(alpha)
    own: dict[str, type[Gradients | Counts | Constant]] = {
        "gradients": Gradients,
        "counts": Counts,
        "constant": Constant,
    }
    return own[kind](alpha, beta)


@stub
def with_parameters(rate: Any, alpha: Any, beta: Any) -> Any:
    """The same kind of rate with other parameters."""


@stub
def reading(rate: Any, n: Any) -> Any:
    """r: sqrt(n), 0 where the rate is constant, n itself (the mark) where it is global."""


@stub
def grown(rate: Any, n: Any, counted: Any, g: Any, mark: Any) -> Any:
    """n after a gradient g; `counted`: what the slot's counts say now; `mark`: the learner's."""


@stub
def eta(rate: Any, r: Any, t: Any) -> Any:
    """The rate of a coordinate whose n reads r, at example t."""


@stub
def inverse(rate: Any, r: Any) -> Any:
    """1 / eta of a rate that does not depend on t."""


@implements(with_parameters, Gradients)
def _gradients(rate: Any, alpha: Any, beta: Any) -> Any:
    return Gradients(alpha, beta)


@implements(with_parameters, Counts)
def _counts(rate: Any, alpha: Any, beta: Any) -> Any:
    return Counts(alpha, beta)


@implements(with_parameters, Constant)
def _constant(rate: Any, alpha: Any, beta: Any) -> Any:
    return Constant(alpha, beta)


@implements(with_parameters, Global)
def _global(rate: Any, alpha: Any, beta: Any) -> Any:
    return Global(alpha)


@implements(reading, Gradients, Counts)
def _root(rate: Any, n: Any) -> Any:
    return math.sqrt(n)


@implements(reading, Constant)
def _nothing(rate: Any, n: Any) -> Any:
    return 0.0


@implements(reading, Global)
def _mark(rate: Any, n: Any) -> Any:
    return n


@implements(grown, Gradients)
def _more_squares(rate: Any, n: Any, counted: Any, g: Any, mark: Any) -> Any:
    return n + g * g


@implements(grown, Counts)
def _as_counted(rate: Any, n: Any, counted: Any, g: Any, mark: Any) -> Any:
    return counted


@implements(grown, Constant)
def _still_nothing(rate: Any, n: Any, counted: Any, g: Any, mark: Any) -> Any:
    return 0.0


@implements(grown, Global)
def _new_mark(rate: Any, n: Any, counted: Any, g: Any, mark: Any) -> Any:
    return mark


@implements(eta, *OWN_RATES)
def _own_eta(rate: Any, r: Any, t: Any) -> Any:
    return rate.alpha / (rate.beta + r)


@implements(eta, Global)
def _global_eta(rate: Any, r: Any, t: Any) -> Any:
    return rate.alpha / math.sqrt(np.float64(t))


@implements(inverse, *OWN_RATES)
def _own_inverse(rate: Any, r: Any) -> Any:
    return (rate.beta + r) / rate.alpha
