"""The kinds of learning rate. A coordinate brings r, derived from its n by `r_of`.

    gradients   eta = alpha / (beta + sqrt(n)), n the sum of the coordinate's squared gradients, with the present one
    counts      the same with n = P N / (P + N), P clicks and N examples without (KDD 2013, section 4.2)
    constant    eta = alpha / beta
    global      eta = alpha / sqrt(t), t the number of the example
    posterior   the variance of the weight, s2 = alpha / (1 + alpha n); alpha is its prior, beta the noise (AdPredictor)

A global rate does not need n, which then stores a running total of the learner (`operations.py`), nor beta.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_store.jit import bare_overload, implements, stub


class Gradients(NamedTuple):
    """One rate per coordinate, from its gradients."""

    alpha: float
    beta: float


class ClickCounts(NamedTuple):
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
    beta: float


class Posterior(NamedTuple):
    """The variance of a weight: alpha at first, less with each example; beta: the standard deviation of the noise."""

    alpha: float
    beta: float


Rate = Gradients | ClickCounts | Constant | Global | Posterior
RATES: dict[str, type[Rate]] = {
    "gradients": Gradients,
    "counts": ClickCounts,
    "constant": Constant,
    "global": Global,
    "posterior": Posterior,
}
"""By the spec's `learner.rate`."""
OWN_RATES = (Gradients, ClickCounts, Constant)
"""Those that do not change while no example touches the coordinate; they have an `inverse`."""


@stub
def with_parameters(rate, alpha, beta):
    """The same kind of rate with other parameters."""


@stub
def r_of(rate, n):
    """r: sqrt(n); 0 where the rate is constant; n itself (the running total) where it is global; s2 for a posterior."""


@stub
def n_after(rate, n, counted, g, total):
    """n after a gradient g; `counted`: n by the slot's counts now; `total`: the learner's running total."""


@stub
def eta(rate, r, t):
    """The rate of a coordinate with this r at example t."""


@stub
def inverse(rate, r):
    """1 / eta of a rate that does not depend on t."""


@bare_overload(with_parameters)
def _of_its_kind(rate, alpha, beta):
    kind = rate.instance_class
    return lambda rate, alpha, beta: kind(alpha, beta)


implements(r_of, Gradients, ClickCounts)(lambda rate, n: math.sqrt(n))
implements(r_of, Constant)(lambda rate, n: 0.0)
implements(r_of, Global)(lambda rate, n: n)
implements(r_of, Posterior)(lambda rate, n: rate.alpha / (1.0 + rate.alpha * n))

implements(n_after, Gradients)(lambda rate, n, counted, g, total: n + g * g)
implements(n_after, ClickCounts)(lambda rate, n, counted, g, total: counted)
implements(n_after, Constant)(lambda rate, n, counted, g, total: 0.0)
implements(n_after, Global)(lambda rate, n, counted, g, total: total)
implements(n_after, Posterior)(lambda rate, n, counted, g, total: n)

implements(eta, *OWN_RATES)(lambda rate, r, t: rate.alpha / (rate.beta + r))
implements(eta, Global)(lambda rate, r, t: rate.alpha / math.sqrt(np.float64(t)))
implements(eta, Posterior)(lambda rate, r, t: r)

implements(inverse, *OWN_RATES)(lambda rate, r: (rate.beta + r) / rate.alpha)
