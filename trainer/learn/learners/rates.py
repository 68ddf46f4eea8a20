"""The kinds of learning rate. A coordinate brings r, derived from its n by `r_of`.

    gradients   eta = alpha / (beta + sqrt(n)), n the sum of the coordinate's squared gradients, with the present one
    counts      the same with n = P N / (P + N), P clicks and N examples without (KDD 2013, section 4.2)
    constant    eta = alpha / beta
    global      eta = alpha / sqrt(t), t the number of the example
    posterior   the variance of the weight, s2 = alpha / (1 + alpha n); alpha is its prior, beta the noise (AdPredictor)

A global rate does not need n, which then stores a running total of the learner (`operations.py`).

Where the spec tunes rates, by `[rules]` alpha or decay or by a warm-up, the first three have classes of their own:
alpha and p, `decay`, belong to the coordinate, n^p takes the place of sqrt(n), and with a warm-up of T examples alpha
is alpha t / T at example t < T. So specs that do not pay nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import exponential
from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.learn.predictions_kernels import log

_SMALLEST_NORMAL = 2.2250738585072014e-308


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


class TunedGradients(NamedTuple):
    """`Gradients` with the power of n, and a warm-up of so many examples."""

    alpha: float
    beta: float
    decay: float
    warmup: float


class TunedCounts(NamedTuple):
    """`Counts` with the power of n, and a warm-up of so many examples."""

    alpha: float
    beta: float
    decay: float
    warmup: float


class TunedConstant(NamedTuple):
    """`Constant` with a warm-up of so many examples; decay has no effect."""

    alpha: float
    beta: float
    decay: float
    warmup: float


class WarmGlobal(NamedTuple):
    """`Global` with a warm-up of so many examples."""

    alpha: float
    warmup: float


TUNED = (TunedGradients, TunedCounts, TunedConstant)
PLAIN = (Gradients, Counts, Constant)
OWN_RATES = (*PLAIN, *TUNED)
GLOBAL = (Global, WarmGlobal)
SQUARE_ROOT = 0.5

Rate = (
    Gradients
    | Counts
    | Constant
    | Global
    | Posterior
    | TunedGradients
    | TunedCounts
    | TunedConstant
    | WarmGlobal
)


def rate_of(kind: str, alpha: float, beta: float, *, tuned: bool = False, warmup: int = 0) -> Rate:
    """The rate that the spec's `learner.rate` names; tuned: its coordinates have an alpha and a decay of their own."""
    if kind == "global":
        return WarmGlobal(alpha, float(warmup)) if warmup else Global(alpha)
    if tuned or warmup:
        own_tuned: dict[str, type[TunedGradients | TunedCounts | TunedConstant]] = {
            "gradients": TunedGradients,
            "counts": TunedCounts,
            "constant": TunedConstant,
        }
        return own_tuned[kind](alpha, beta, SQUARE_ROOT, float(warmup))
    own: dict[str, type[Gradients | Counts | Constant | Posterior]] = {
        "gradients": Gradients,
        "counts": Counts,
        "constant": Constant,
        "posterior": Posterior,
    }
    return own[kind](alpha, beta)


@bare_inline
def power(n: Any, p: Any) -> Any:
    """n^p for n >= 0 and p in [0, 1], 0^0 = 1; within 1e-13, the same bits on every machine; exact for 0, 1/2 and 1."""
    if p == SQUARE_ROOT:
        return math.sqrt(n)
    if p == 1.0:
        return n
    if p == 0.0:
        return 1.0
    if n < _SMALLEST_NORMAL:
        return 0.0
    size = exponential(-abs(p * log(n)))
    return size if n < 1.0 else 1.0 / size


@bare_kernel
def powers_of(n: Any, p: Any, out: Any) -> None:
    """`power` of each n and p: float64[n]."""
    for index in range(n.size):
        out[index] = power(n[index], p[index])


@stub
def with_parameters(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    """The same kind of rate with other parameters."""


@stub
def r_of(rate: Any, n: Any) -> Any:
    """r: sqrt(n); 0 where the rate is constant; n itself (the running total) where it is global; s2 for a posterior."""


@stub
def n_after(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    """n after a gradient g; `counted`: n by the slot's counts now; `total`: the learner's running total."""


@stub
def eta(rate: Any, r: Any, t: Any) -> Any:
    """The rate of a coordinate with this r at example t; t = 0: after the warm-up."""


@stub
def inverse(rate: Any, r: Any) -> Any:
    """1 / eta of a rate that does not depend on t, or after its warm-up."""


@stub
def alpha_at(rate: Any, t: Any) -> Any:
    """alpha at example t; t = 0: after the warm-up."""


@implements(with_parameters, Gradients)
def _gradients(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return Gradients(alpha, beta)


@implements(with_parameters, Counts)
def _counts(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return Counts(alpha, beta)


@implements(with_parameters, Constant)
def _constant(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return Constant(alpha, beta)


@implements(with_parameters, Global)
def _global(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return Global(alpha)


@implements(with_parameters, TunedGradients)
def _tuned_gradients(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return TunedGradients(alpha, beta, decay, rate.warmup)


@implements(with_parameters, TunedCounts)
def _tuned_counts(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return TunedCounts(alpha, beta, decay, rate.warmup)


@implements(with_parameters, TunedConstant)
def _tuned_constant(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return TunedConstant(alpha, beta, decay, rate.warmup)


@implements(with_parameters, WarmGlobal)
def _warm_global(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return WarmGlobal(alpha, rate.warmup)


@implements(r_of, TunedGradients, TunedCounts)
def _power(rate: Any, n: Any) -> Any:
    return power(n, rate.decay)


@implements(r_of, Gradients, Counts)
def _root(rate: Any, n: Any) -> Any:
    return math.sqrt(n)


@implements(r_of, Constant, TunedConstant)
def _nothing(rate: Any, n: Any) -> Any:
    return 0.0


@implements(with_parameters, Posterior)
def _posterior(rate: Any, alpha: Any, beta: Any, decay: Any) -> Any:
    return Posterior(alpha, beta)


@implements(r_of, Posterior)
def _variance(rate: Any, n: Any) -> Any:
    return rate.alpha / (1.0 + rate.alpha * n)


@implements(r_of, *GLOBAL)
def _total(rate: Any, n: Any) -> Any:
    return n


@implements(n_after, Gradients, TunedGradients)
def _more_squares(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return n + g * g


@implements(n_after, Counts, TunedCounts)
def _as_counted(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return counted


@implements(n_after, Posterior)
def _same_precision(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return n


@implements(n_after, Constant, TunedConstant)
def _still_nothing(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return 0.0


@implements(n_after, *GLOBAL)
def _new_total(rate: Any, n: Any, counted: Any, g: Any, total: Any) -> Any:
    return total


@implements(alpha_at, *PLAIN, Global)
def _alpha(rate: Any, t: Any) -> Any:
    return rate.alpha


@implements(alpha_at, *TUNED, WarmGlobal)
def _warm_alpha(rate: Any, t: Any) -> Any:
    return rate.alpha * (t / rate.warmup) if 0 < t < rate.warmup else rate.alpha


@implements(eta, *OWN_RATES)
def _own_eta(rate: Any, r: Any, t: Any) -> Any:
    return alpha_at(rate, t) / (rate.beta + r)


@implements(eta, Posterior)
def _variance_itself(rate: Any, r: Any, t: Any) -> Any:
    return r


@implements(eta, *GLOBAL)
def _global_eta(rate: Any, r: Any, t: Any) -> Any:
    return alpha_at(rate, t) / math.sqrt(np.float64(t))


@implements(inverse, *OWN_RATES)
def _own_inverse(rate: Any, r: Any) -> Any:
    return (rate.beta + r) / rate.alpha
