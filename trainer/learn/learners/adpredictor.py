"""AdPredictor: Bayesian probit regression, with a normal distribution for each weight.

Graepel, Candela, Borchert, Herbrich, "Web-Scale Bayesian Click-Through Rate Prediction for Sponsored Search Advertising
in Microsoft's Bing Search Engine" (ICML 2010), sections 3 and 4.

A weight is N(mu, s2), with the prior N(mu0, alpha); mu0 is 0 except for the bias. There is a click if the score plus a
noise from N(0, beta^2) is positive. With S2 = beta^2 + sum x^2 s2, and y = 1 for a click and -1 otherwise:

    p  = Φ(sum x mu / S)
    t  = y sum x mu / S,   v = φ(t) / Φ(t),   w = v (v + t)
    mu = mu + y x (s2 / S) v
    s2 = s2 (1 - x^2 (s2 / S2) w)

Then each touched weight returns to its prior by the fraction f, `forgetting`, in natural parameters. This is done at
each touch and not at each example, so that an untouched key does not change and need not be published again:

    1 / s2'   = (1 - f) / s2 + f / alpha
    mu' / s2' = (1 - f) mu / s2 + f mu0 / alpha

A coordinate stores a = mu - mu0 and n = 1 / s2 - 1 / alpha, both 0 for a new key; r is s2. The third update adds
q / (s2 (1 - q)) to n, with q = x^2 s2 w / S2, and forgetting multiplies n by 1 - f: neither cancels.

The paper has no importance weights. An example of importance omega counts as omega examples: a whole omega up to 1,000
repeats the update, and any other scales v and w by omega. That may overshoot where omega is very large, so q is at most
1023 / 1024, and omega at most what moves the score by 1,000 S.

Oracle: `tests/trainer/oracles/adpredictor.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from model_store.jit import bare_inline, implements
from model_store.normal_kernels import normal_cdf, truncated_mean, truncated_shrinkage
from trainer.learn.learners.operations import (
    derivatives,
    has_no_lazy_state,
    latent_of,
    probability_of,
    repeats,
    stores_weights,
    update,
    variance,
    weight,
    with_own_parameters,
)
from trainer.learn.learners.rates import Rate, r_of, with_parameters

MOST_REPEATS = 1000.0
_MOST_LEARNED = 1023.0 / 1024.0
_FARTHEST = 1000.0


class AdPredictor(NamedTuple):
    """The learner's parameters. rate: `Posterior`, alpha the prior variance and beta the noise; mu0 comes as l1."""

    rate: Rate
    forgetting: float


@implements(weight, AdPredictor)
def _mean(learner: Any, mu0: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    return mu0 + a


@implements(variance, AdPredictor)
def _variance(learner: Any, r: Any, x: Any) -> Any:
    return x * x * r


@implements(latent_of, AdPredictor)
def _deviations(learner: Any, score: Any, variance: Any) -> Any:
    return score / math.sqrt(learner.rate.beta * learner.rate.beta + variance)


@implements(probability_of, AdPredictor)
def _probit(learner: Any, latent: Any) -> Any:
    return normal_cdf(latent)


@implements(repeats, AdPredictor)
def _repeats(learner: Any, importance: Any) -> Any:
    if 1.0 < importance <= MOST_REPEATS and importance == math.floor(importance):
        return int(importance)
    return 1


@implements(derivatives, AdPredictor)
def _of_probit(learner: Any, importance: Any, label: Any, p: Any, latent: Any, variance: Any) -> Any:
    """-y v / S and w / S2, times omega."""
    y = 1.0 if label > 0.5 else -1.0
    square = learner.rate.beta * learner.rate.beta + variance
    t = y * latent
    v = truncated_mean(t)
    w = truncated_shrinkage(t, v)
    omega = min(importance, _FARTHEST * square / (v * variance))
    return -omega * y * v / math.sqrt(square), omega * w / square


@bare_inline
def posterior(learner: Any, a: Any, n: Any, r: Any, x: Any, error: Any, curvature: Any) -> Any:
    """(a, n) after an observation with these derivatives, and after forgetting."""
    learned = min(x * x * r * curvature, _MOST_LEARNED)
    a -= x * r * error
    n += learned / (r * (1.0 - learned))
    kept = 1.0 - learner.forgetting
    prior = 1.0 / learner.rate.alpha
    if kept < 1.0:
        a *= kept * (n + prior) / (kept * n + prior)
        n *= kept
    return a, n


@implements(update, AdPredictor)
def _update(
    learner: Any, mu0: Any, a: Any, w: Any, n: Any, counted: Any, x: Any, error: Any, curvature: Any,
    r: Any, t: Any, lazy: Any, v: Any,
) -> Any:  # fmt: skip
    a, n = posterior(learner, a, n, r, x, error, curvature)
    return a, n, r_of(learner.rate, n)


@implements(with_own_parameters, AdPredictor)
def _with_own_parameters(learner: Any, alpha: Any, beta: Any, decay: Any, l2: Any) -> Any:
    return AdPredictor(with_parameters(learner.rate, alpha, beta, decay), learner.forgetting)


stores_weights(AdPredictor)
has_no_lazy_state(AdPredictor)
