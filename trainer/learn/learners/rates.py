"""The kinds of learning rate. A coordinate brings r, derived from its n by `r_of`.

    gradients   eta = alpha / (beta + sqrt(n)), n the sum of the coordinate's squared gradients, with the present one
    counts      the same with n = P N / (P + N), P clicks and N examples without (KDD 2013, section 4.2)
    constant    eta = alpha / beta
    global      eta = alpha / sqrt(t), t the number of the example
    posterior   the variance of the weight, s2 = alpha / (1 + alpha n); alpha is its prior, beta the noise (AdPredictor)

A global rate does not need n, which then stores a running total of the learner (`operations.py`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import implements, stub


class Gradients(NamedTuple):
    """One rate per coordinate, from its gradients."""

    alpha: float
    beta: float


class Counts(NamedTuple):
    """One rate per coordinate, from its numbers of clicks and of examples without a click."""

    alpha: float
    beta: float


class Constant(NamedTuple):
    """One rate for all coordinates and examples."""

    alpha: float
    beta: float


class Global(NamedTuple):
    """One rate for all coordinates, which falls with the number of examples."""

    alpha: float


class Posterior(NamedTuple):
    """The variance of a weight: alpha at first, less with each example; beta: the standard deviation of the noise."""

    alpha: float
    beta: float


Rate = Gradients | Counts | Constant | Global | Posterior
OWN_RATES = (Gradients, Counts, Constant)


def rate_of(kind: str, alpha: float, beta: float) -> Rate:
    """The rate that the spec's `learner.rate` names."""
    if kind == "global":
        return Global(alpha)
    own: dict[str, type[Gradients | Counts | Constant | Posterior]] = {
        "gradients": Gradients,
        "counts": Counts,
        "constant": Constant,
        "posterior": Posterior,
    }
    return own[kind](alpha, beta)


@stub
def with_parameters(rate: Any, alpha: Any, beta: Any) -> Any:
    """The same kind of rate with other parameters."""


@stub
def r_of(rate: Any, n: Any) -> Any:
    """r: sqrt(n); 0 where the rate is constant; n itself (the running total) where it is global; s2 for a posterior."""


@stub
def n_after(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    """n after a gradient g; `counted`: n by the slot's counts now; `total`: the learner's running total."""


@stub
def eta(rate: Any, r: Any, t: Any) -> Any:
    """The rate of a coordinate with this r at example t."""


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


@implements(r_of, Gradients, Counts)
def _root(rate: Any, n: Any) -> Any:
    return math.sqrt(n)


@implements(r_of, Constant)
def _nothing(rate: Any, n: Any) -> Any:
    return 0.0


@implements(with_parameters, Posterior)
def _posterior(rate: Any, alpha: Any, beta: Any) -> Any:
    return Posterior(alpha, beta)


@implements(r_of, Posterior)
def _variance(rate: Any, n: Any) -> Any:
    return rate.alpha / (1.0 + rate.alpha * n)


@implements(r_of, Global)
def _total(rate: Any, n: Any) -> Any:
    return n


@implements(n_after, Gradients)
def _more_squares(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return n + g * g


@implements(n_after, Counts)
def _as_counted(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return counted


@implements(n_after, Posterior)
def _same_precision(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return n


@implements(n_after, Constant)
def _still_nothing(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return 0.0


@implements(n_after, Global)
def _new_total(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return total


@implements(eta, *OWN_RATES)
def _own_eta(rate: Any, r: Any, t: Any) -> Any:
    return rate.alpha / (rate.beta + r)


@implements(eta, Posterior)
def _variance_itself(rate: Any, r: Any, t: Any) -> Any:
    return r


@implements(eta, Global)
def _global_eta(rate: Any, r: Any, t: Any) -> Any:
    return rate.alpha / math.sqrt(np.float64(t))


@implements(inverse, *OWN_RATES)
def _own_inverse(rate: Any, r: Any) -> Any:
    return (rate.beta + r) / rate.alpha
