"""The learners by the spec's `[learner] algorithm`, and the state that corresponds to a published weight."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import ModelSpec
from trainer.learn.learners.adpredictor import AdPredictor
from trainer.learn.learners.fobos import Fobos
from trainer.learn.learners.ftrl import Ftrl
from trainer.learn.learners.ogd import Ogd, PenalizedOgd, TouchedOgd
from trainer.learn.learners.rates import SQUARE_ROOT, powers_of, rate_of
from trainer.learn.learners.rda import Rda
from trainer.learn.learners.truncated_gradient import FixedTruncatedGradient, TruncatedGradient
from trainer.learn.learners.truncation import Truncation

LearnerParameters = (
    Ogd
    | PenalizedOgd
    | TouchedOgd
    | Truncation
    | TruncatedGradient
    | FixedTruncatedGradient
    | Fobos
    | Rda
    | Ftrl
    | AdPredictor
)

Numbers = npt.NDArray[np.float64]

_BY_SEEN = ("truncation", "truncated_gradient", "fobos")


def learner_of(spec: ModelSpec, alpha: float, beta: float, l2: float) -> LearnerParameters:
    """The spec's learner with these parameters. l1 is passed with each coordinate."""
    section = spec.learner
    rate = rate_of(section.rate, alpha, beta, tuned=tunes_rates(spec), warmup=section.warmup)
    theta = section.theta if section.theta is not None else 0.0
    penalized = TouchedOgd if section.shrink == "touched" else PenalizedOgd
    truncated_gradient = FixedTruncatedGradient if section.shrink == "fixed" else TruncatedGradient
    made: dict[str, Any] = {
        "ogd": lambda: penalized(rate, l2) if spec.has_penalties else Ogd(rate),
        "truncation": lambda: Truncation(rate, section.k, theta),
        "truncated_gradient": lambda: truncated_gradient(rate, section.k, theta),
        "fobos": lambda: Fobos(rate, l2, section.shrink == "fixed"),
        "rda": lambda: Rda(rate, l2),
        "ftrl": lambda: Ftrl(rate, l2),
        "adpredictor": lambda: AdPredictor(rate, section.forgetting),
    }
    learner: LearnerParameters = made[section.algorithm]()
    return learner


def tunes_rates(spec: ModelSpec) -> bool:
    """True if a rule sets the alpha or the decay of some keys."""
    return any(rule.alpha is not None or rule.decay is not None for rule in spec.rules.values())


def needs_seen(spec: ModelSpec) -> bool:
    """True if slots must store `seen`: weights depend on the last touch, or keys are evicted by it."""
    section = spec.learner
    by_seen = section.algorithm in _BY_SEEN or (section.algorithm == "ogd" and spec.shrinks_untouched)
    return by_seen or section.ttl is not None


def untouched_stay(spec: ModelSpec) -> bool:
    """True if a coordinate's weight and rate do not change until an example touches it again.

    False where weights shrink at every example (`_BY_SEEN`, and ogd with a penalty on all keys), where they are
    averages over all examples (rda, and an averaged variant), and where the rate is global.
    """
    if spec.learner.rate == "global" or any(each.average is not None for each in spec.variants.values()):
        return False
    return spec.learner.algorithm in ("ftrl", "adpredictor") or (
        spec.learner.algorithm == "ogd" and not spec.shrinks_untouched
    )


def prior_mean(section: LearnerSection, alpha: float, beta: float, keys: int) -> float:
    """The mean of the bias with which an example of `keys` new keys, each with x = 1, has the click rate prior_ctr."""
    return NormalDist().inv_cdf(section.prior_ctr) * math.sqrt(beta * beta + keys * alpha)


class RateParameters(NamedTuple):
    """What determines the rate of coordinates: alpha and decay (the power of n) of each, or of all; beta of all."""

    alpha: Numbers | float
    beta: float
    decay: Numbers | float = SQUARE_ROOT


def n_of_rate(section: LearnerSection, rate: Numbers, of: RateParameters) -> Numbers:
    """n of coordinates with this learning rate; 0 where the rate is not known, or above that of a new key."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if section.link == "probit":
            return np.maximum(np.where(rate > 0.0, 1.0 / rate, 0.0) - 1.0 / of.alpha, 0.0)
        root = np.where(rate > 0.0, of.alpha / rate - of.beta, 0.0)
        root = np.maximum(root, 0.0)
        if isinstance(of.decay, float):
            squares: Numbers = np.square(root)
            return squares
        found: Numbers = np.where(of.decay == SQUARE_ROOT, np.square(root), root ** (1.0 / of.decay))
        return np.where((of.decay > 0.0) & np.isfinite(found), found, 0.0)


def check_start(section: LearnerSection) -> None:
    """Raise SpecError for RDA, which no model can start: its weights are averages over all examples of a run."""
    if section.algorithm == "rda":
        raise SpecError(
            'a model cannot start algorithm = "rda": a weight is then an average over all examples, '
            "and a model does not hold them"
        )


def state_of_weight(
    section: LearnerSection, weight: Numbers, n: Numbers, of: RateParameters, l1: Numbers, l2: float
) -> Numbers:
    """a of coordinates that have this weight; l1: of each coordinate.

    FTRL's z is -(w / eta + w l2 + sgn(w) l1). Raises SpecError as `check_start` does.
    """
    check_start(section)
    if section.link == "probit":
        return weight - l1
    if section.algorithm != "ftrl":
        return weight
    z: Numbers = -(weight * ((of.beta + _root(section, n, of)) / of.alpha + l2) + np.sign(weight) * l1)
    return z


def weight_of_state(
    section: LearnerSection, a: Numbers, n: Numbers, of: RateParameters, l1: Numbers, l2: float
) -> Numbers:
    """The inverse of `state_of_weight`, for learners whose weight is a function of a and n."""
    if section.link == "probit":
        return a + l1
    if section.algorithm != "ftrl":
        return a
    weight: Numbers = -(a - np.sign(a) * l1) / ((of.beta + _root(section, n, of)) / of.alpha + l2)
    return np.where(np.abs(a) <= l1, 0.0, weight)


def _root(section: LearnerSection, n: Numbers, of: RateParameters) -> Numbers:
    """n^p, with which a coordinate's rate falls."""
    if section.rate == "constant":
        return np.zeros_like(n)
    if isinstance(of.decay, float):
        return np.sqrt(n)
    powers = np.empty(n.size)
    powers_of(n, of.decay, powers)
    return powers
