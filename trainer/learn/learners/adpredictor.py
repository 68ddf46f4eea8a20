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

The paper has no importance weights. An example of importance omega counts as omega examples: the update is repeated
floor(omega) times, and then once with v and w scaled by the rest. Scaled by more than 1, as a whole, the mean runs away
from the data. Beyond 1,000 repeats, each step is scaled by a tenth of the importance that is learned by then, which the
variance has shrunk for.

Oracle: `tests/trainer/oracles/adpredictor.py`.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from model_store.jit import bare_inline, implements
from model_store.normal_kernels import normal_cdf, truncated_mean, truncated_shrinkage
from model_store.spec.learner_section import LearnerSection
from trainer.learn.learners import operations
from trainer.learn.learners.operations import Algorithm, Numbers
from trainer.learn.learners.rates import Rate, r_of

MOST_WHOLE = 1000
_GROWTH = 1.1
_MOST_LEARNED = 1023.0 / 1024.0


class AdPredictor(NamedTuple):
    """The learner's parameters. rate: `Posterior`, alpha the prior variance and beta the noise; mu0 comes as l1."""

    rate: Rate
    forgetting: float


implements(operations.weight, AdPredictor)(lambda learner, mu0, a, r, seen, t, lazy, v: mu0 + a)
implements(operations.variance, AdPredictor)(lambda learner, r, x: x * x * r)
implements(operations.latent_of, AdPredictor)(
    lambda learner, score, variance: score / math.sqrt(learner.rate.beta * learner.rate.beta + variance)
)
implements(operations.probability_of, AdPredictor)(lambda learner, latent: normal_cdf(latent))


@implements(operations.repeats, AdPredictor)
def _repeats(learner, importance):
    if importance <= MOST_WHOLE:
        return max(1, math.ceil(importance))
    return MOST_WHOLE + math.ceil(math.log(importance / MOST_WHOLE) / math.log(_GROWTH))


@implements(operations.part_of, AdPredictor)
def _part_of(learner, importance, again):
    """1, of more than MOST_WHOLE a tenth of what came before, and at last the rest."""
    before = float(again) if again < MOST_WHOLE else MOST_WHOLE * _GROWTH ** (again - MOST_WHOLE)
    whole = 1.0 if again < MOST_WHOLE else before * (_GROWTH - 1.0)
    return max(min(whole, importance - before), 0.0)


@implements(operations.derivatives, AdPredictor)
def _of_probit(learner, importance, label, p, latent, variance):
    """-y v / S and w / S2, times the part of omega."""
    y = 1.0 if label > 0.5 else -1.0
    square = learner.rate.beta * learner.rate.beta + variance
    t = y * latent
    v = truncated_mean(t)
    w = truncated_shrinkage(t, v)
    return -importance * y * v / math.sqrt(square), importance * w / square


@bare_inline
def posterior(learner, a, n, r, x, error, curvature):
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


@implements(operations.update, AdPredictor)
def _update(learner, mu0, a, w, n, counted, x, error, curvature, r, t, lazy, v):
    a, n = posterior(learner, a, n, r, x, error, curvature)
    return a, n, r_of(learner.rate, n)


@implements(operations.mean_step, AdPredictor)
def _mean_of_posteriors(learner, mu0, a, w, n, counted, r, x, i, middle, reach, t, lazy, variants, work):
    """The mean of the variants' means and variances, which are linear in the derivatives; it then forgets."""
    return posterior(learner, a, n, r, x, work.columns[0, i], middle + reach * work.columns[1, i])


implements(operations.take_roots, AdPredictor)(
    lambda learner, begin, end, middle, reach, variants, work: None
)
operations.stores_weights(AdPredictor)
operations.has_no_lazy_state(AdPredictor)


def _prior_mean(section: LearnerSection, alpha: float, beta: float, keys: int) -> float:
    """The mean of the bias with which an example of `keys` new keys, each with x = 1, has the click rate prior_ctr."""
    return NormalDist().inv_cdf(section.prior_ctr) * math.sqrt(beta * beta + keys * alpha)


def _n_of_rate(rate: Numbers, alpha: Numbers | float, beta: float) -> Numbers:
    return np.maximum(np.where(rate > 0.0, 1.0 / rate, 0.0) - 1.0 / alpha, 0.0)


ALGORITHM = Algorithm(
    make=lambda spec, rate, l2: AdPredictor(rate, spec.learner.forgetting),
    n_of_rate=_n_of_rate,
    state_of_weight=lambda weight, mu0, l2, inverse, within: weight - mu0,
    weight_of_state=lambda a, mu0, l2, inverse: a + mu0,
    prior_mean=_prior_mean,
)
