"""The operations of a learner, called by the loops; each algorithm's own file implements them.

A learner is a NamedTuple of parameters, `rate` among them. The state of a coordinate is (a, n): a is w for gradient
descent and its kin, z for FTRL, G for RDA; n determines the learning rate (`rates.py`).

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

from typing import Any

from model_store.hash_kernels import sigmoid
from model_store.jit import implements, stub
from trainer.learn.learners.rates import n_after, r_of

LAZY_SIZE = 2


@stub
def weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    """The coordinate's weight before example t: a, after all that examples seen + 1 to t - 1 do to it."""


@stub
def step(learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, lazy: Any, v: Any) -> Any:
    """a after example t, for the weight w and the gradient g; r and new_r belong to n before and after it."""


@stub
def variance(learner: Any, r: Any, x: Any) -> Any:
    """What a key adds to the variance of the score; 0 for learners of weights without one."""


@stub
def latent_of(learner: Any, score: Any, variance: Any) -> Any:
    """The argument of the link: the score, or the score in standard deviations."""


@stub
def probability_of(learner: Any, latent: Any) -> Any:
    """The link: the probability of a click."""


@stub
def repeats(learner: Any, importance: Any) -> Any:
    """How many times an example of this importance is learned; at least 1."""


@stub
def part_of(learner: Any, importance: Any, again: Any) -> Any:
    """The part of the importance with which it is learned the first time (again 0), the second, and so on."""


@stub
def derivatives(learner: Any, importance: Any, label: Any, p: Any, latent: Any, variance: Any) -> Any:
    """The derivative of the loss by the score, and its square; for AdPredictor the second derivative in its place."""


@stub
def update(
    learner: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, x: Any, error: Any, squared: Any,
    r: Any, t: Any, lazy: Any, v: Any,
) -> Any:  # fmt: skip
    """(a, n, r) after example t, from `derivatives`; `counted` as in `rates.n_after`."""


@stub
def advance(learner: Any, t: Any, lazy: Any, v: Any) -> Any:
    """Advance variant v's running totals by example t; called before the example's steps."""


@stub
def running_total(learner: Any, lazy: Any, v: Any) -> Any:
    """The running total that a coordinate stores in n where the rate is global."""


@stub
def pack(learner: Any, a: Any, r: Any) -> Any:
    """a scaled to the size of a weight, which is then rounded to q2.13."""


@stub
def unpack(learner: Any, value: Any, r: Any) -> Any:
    """a from a q2.13 value."""


@stub
def needs_rebase(learner: Any, lazy: Any) -> Any:
    """True if the running totals are about to leave the range of float64, and every coordinate must catch up first."""


@stub
def reset_lazy(learner: Any, lazy: Any, v: Any) -> Any:
    """Set variant v's running totals to their initial values."""


@stub
def with_own_parameters(learner: Any, alpha: Any, beta: Any, decay: Any, l2: Any) -> Any:
    """The same learner with the parameters of a variant, or of a variant's coordinate; decay: of a tuned rate."""


def stores_weights(*learners: type) -> None:
    """Declare learners whose a is a weight, and is rounded to q2.13 as it is."""
    implements(pack, *learners)(_pack_weight)
    implements(unpack, *learners)(_unpack_weight)


def has_no_lazy_state(*learners: type) -> None:
    """Declare learners whose untouched coordinates do not change."""
    implements(advance, *learners)(_advance_nothing)
    implements(running_total, *learners)(_no_total)
    implements(needs_rebase, *learners)(_never)
    implements(reset_lazy, *learners)(_reset_nothing)


def learns_by_gradient(*learners: type) -> None:
    """Declare learners that descend the gradient of the log-loss of p = sigmoid(score), by their `step`."""
    implements(variance, *learners)(_no_variance)
    implements(latent_of, *learners)(_score)
    implements(probability_of, *learners)(_sigmoid)
    implements(repeats, *learners)(_once)
    implements(part_of, *learners)(_whole)
    implements(derivatives, *learners)(_error)
    implements(update, *learners)(_step_along)


def _no_variance(learner: Any, r: Any, x: Any) -> Any:
    return 0.0


def _score(learner: Any, score: Any, variance: Any) -> Any:
    return score


def _sigmoid(learner: Any, latent: Any) -> Any:
    return sigmoid(latent)


def _once(learner: Any, importance: Any) -> Any:
    return 1


def _whole(learner: Any, importance: Any, again: Any) -> Any:
    return importance


def _error(learner: Any, importance: Any, label: Any, p: Any, latent: Any, variance: Any) -> Any:
    error = importance * (p - label)
    return error, error * error


def _step_along(
    learner: Any, l1: Any, a: Any, w: Any, n: Any, counted: Any, x: Any, error: Any, squared: Any,
    r: Any, t: Any, lazy: Any, v: Any,
) -> Any:  # fmt: skip
    g = error * x
    n = n_after(learner.rate, n, counted, g, running_total(learner, lazy, v))
    new_r = r_of(learner.rate, n)
    return step(learner, l1, a, w, g, r, new_r, t, lazy, v), n, new_r


def _pack_weight(learner: Any, a: Any, r: Any) -> Any:
    return a


def _unpack_weight(learner: Any, value: Any, r: Any) -> Any:
    return value


def _advance_nothing(learner: Any, t: Any, lazy: Any, v: Any) -> Any:
    pass


def _no_total(learner: Any, lazy: Any, v: Any) -> Any:
    return 0.0


def _never(learner: Any, lazy: Any) -> Any:
    return False


def _reset_nothing(learner: Any, lazy: Any, v: Any) -> Any:
    pass
