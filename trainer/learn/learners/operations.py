"""The operations of a learner, called by the loops, and what else an algorithm declares; each has a file of its own.

A learner is a NamedTuple of parameters: `rate` first, then `l2` if it has one, then those of its own. The state of a
coordinate is (a, n): a is w for gradient descent and its kin, z for FTRL, G for RDA; n determines the learning rate
(`rates.py`).

A textbook learner changes every coordinate at every example. These change a coordinate when an example touches it, and
apply then what it missed (lazy regularization): from `seen`, the last example that touched it, where the rate is per
coordinate; from running totals where the rate is global. A running total is a sum or product over all examples, such as
the total shrinkage of a weight; a coordinate stores its value at the last touch in n.

`lazy` is float64[variants, LAZY_SIZE], the present running totals: the only state of a learner that belongs to no
coordinate.

l1 is an argument, since `[rules]` may set it by prefix. AdPredictor, which has none, gets the prior mean in its place.

Most learners are gradient descent on the log-loss of a logistic model, with g = omega (p - y) x; `learns_by_gradient`
gives them the link, the derivatives and the update that follow. AdPredictor has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.hash_kernels import sigmoid
from model_store.jit import bare_overload, implements, stub
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import ModelSpec
from trainer.learn.learners.rates import Rate, n_after, r_of, with_parameters

LAZY_SIZE = 2
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What is asked of an algorithm when a model is made, started from another, or published.

    make: the parameters, of a spec, a rate and l2. catches_up: whether a spec's weights shrink while no example touches
    them, so that slots store `seen`. averages: a weight is an average over all examples of a run.

    n_of_rate: n from the rates, alpha and beta, if not as `registry.n_of_rate`. state_of_weight: a from the weights,
    each coordinate's l1, l2 and 1 / eta; the last argument is a where the weight is 0 and does not determine it, None
    where that is not known. weight_of_state: its inverse. prior_mean: that of the bias, from the section, alpha, beta
    and the number of keys of an example, for a learner that gets prior means instead of l1.
    """

    make: Callable[[ModelSpec, Rate, float], Any]
    catches_up: Callable[[ModelSpec], bool] = lambda spec: False
    averages: bool = False
    n_of_rate: Callable[[Numbers, Numbers | float, float], Numbers] | None = None
    state_of_weight: Callable[[Numbers, Numbers, float, Numbers, Numbers | None], Numbers] = (
        lambda weight, l1, l2, inverse, within: weight
    )
    weight_of_state: Callable[[Numbers, Numbers, float, Numbers], Numbers] = lambda a, l1, l2, inverse: a
    prior_mean: Callable[[LearnerSection, float, float, int], float] | None = None


@stub
def weight(learner, l1, a, r, seen, t, lazy, v):
    """The coordinate's weight before example t: a, after all that examples seen + 1 to t - 1 do to it."""


@stub
def step(learner, l1, a, w, g, r, new_r, t, lazy, v):
    """a after example t, for the weight w and the gradient g; r and new_r belong to n before and after it."""


@stub
def variance(learner, r, x):
    """What a key adds to the variance of the score; 0 for learners of weights without one."""


@stub
def latent_of(learner, score, variance):
    """The argument of the link: the score, or the score in standard deviations."""


@stub
def probability_of(learner, latent):
    """The link: the probability of a click."""


@stub
def repeats(learner, importance):
    """How many times an example of this importance is learned; at least 1."""


@stub
def part_of(learner, importance, again):
    """The part of the importance with which it is learned the first time (again 0), the second, and so on."""


@stub
def derivatives(learner, importance, label, p, latent, variance):
    """The derivative of the loss by the score, and its square; for AdPredictor the second derivative in its place."""


@stub
def update(learner, l1, a, w, n, counted, x, error, squared, r, t, lazy, v):
    """(a, n, r) after example t, from `derivatives`; `counted` as in `rates.n_after`."""


@stub
def mean_step(learner, l1, a, w, n, counted, r, x, i, middle, reach, t, lazy, variants, work):
    """The mean (a, n) over the variants that use the row's i-th key; middle, reach: of `sharing_kernels.take_means`."""


@stub
def take_roots(learner, begin, end, middle, reach, variants, work):
    """Prepare `mean_step` for some of a row's keys, all at once; of FTRL, see `sharing_kernels.py`."""


@stub
def advance(learner, t, lazy, v):
    """Advance variant v's running totals by example t; called before the example's steps."""


@stub
def running_total(learner, lazy, v):
    """The running total that a coordinate stores in n where the rate is global."""


@stub
def pack(learner, a, r):
    """a scaled to the size of a weight, which is then rounded to q2.13."""


@stub
def unpack(learner, value, r):
    """a from a q2.13 value."""


@stub
def needs_rebase(learner, lazy):
    """True if the running totals are about to leave the range of float64, and every coordinate must catch up first."""


@stub
def reset_lazy(learner, lazy, v):
    """Set variant v's running totals to their initial values."""


@stub
def with_own_parameters(learner, alpha, beta, l2):
    """The same learner with the parameters of a variant, or of a variant's coordinate."""


@bare_overload(with_own_parameters)
def _of_its_kind(learner, alpha, beta, l2):
    kind = learner.instance_class
    if "l2" in kind._fields:
        return lambda learner, alpha, beta, l2: kind(
            with_parameters(learner.rate, alpha, beta), l2, *learner[2:]
        )
    return lambda learner, alpha, beta, l2: kind(with_parameters(learner.rate, alpha, beta), *learner[1:])


def stores_weights(*learners: type) -> None:
    """Declare learners whose a is a weight, and is rounded to q2.13 as it is."""
    implements(pack, *learners)(lambda learner, a, r: a)
    implements(unpack, *learners)(lambda learner, value, r: value)


def has_no_lazy_state(*learners: type) -> None:
    """Declare learners whose untouched coordinates do not change."""
    implements(advance, *learners)(lambda learner, t, lazy, v: None)
    implements(running_total, *learners)(lambda learner, lazy, v: 0.0)
    implements(needs_rebase, *learners)(lambda learner, lazy: False)
    implements(reset_lazy, *learners)(lambda learner, lazy, v: None)


def learns_by_gradient(*learners: type, has_own_mean: bool = False) -> None:
    """Declare learners that descend the gradient of the log-loss of p = sigmoid(score), by their `step`.

    has_own_mean: `mean_step` and `take_roots` are implemented elsewhere.
    """
    implements(variance, *learners)(lambda learner, r, x: 0.0)
    implements(latent_of, *learners)(lambda learner, score, variance: score)
    implements(probability_of, *learners)(lambda learner, latent: sigmoid(latent))
    implements(repeats, *learners)(lambda learner, importance: 1)
    implements(part_of, *learners)(lambda learner, importance, again: importance)
    implements(derivatives, *learners)(_error)
    implements(update, *learners)(_step_along)
    if not has_own_mean:
        implements(mean_step, *learners)(_mean_of_each)
        implements(take_roots, *learners)(lambda learner, begin, end, middle, reach, variants, work: None)


def _error(learner, importance, label, p, latent, variance):
    error = importance * (p - label)
    return error, error * error


def _step_along(learner, l1, a, w, n, counted, x, error, squared, r, t, lazy, v):
    g = error * x
    n = n_after(learner.rate, n, counted, g, running_total(learner, lazy, v))
    new_r = r_of(learner.rate, n)
    return step(learner, l1, a, w, g, r, new_r, t, lazy, v), n, new_r


def _mean_of_each(learner, l1, a, w, n, counted, r, x, i, middle, reach, t, lazy, variants, work):
    """By definition: one variant after the other."""
    total, c = running_total(learner, lazy, 0), work.classes[i]
    sum_a, sum_n = 0.0, 0.0
    for v in range(variants.parameters.shape[0]):
        if variants.uses[c, v] != 0.0:
            g = work.error[v] * x
            new_n = n_after(learner.rate, n, counted, g, total)
            sum_a += step(learner, l1, a, w, g, r, r_of(learner.rate, new_n), t, lazy, 0)
            sum_n += new_n
    return sum_a / variants.using[c], sum_n / variants.using[c]
