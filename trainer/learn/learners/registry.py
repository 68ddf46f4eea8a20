"""A spec's algorithm, declared in the file of its name, and the state that corresponds to a published weight."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from model_store.errors import SpecError
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import ModelSpec
from trainer.learn.learners.operations import Algorithm, Numbers
from trainer.learn.learners.rates import RATES


@cache
def algorithm(name: str) -> Algorithm:
    """What the file of this name declares."""
    found: Algorithm = import_module(f"{__package__}.{name}").ALGORITHM
    return found


def learner_of(spec: ModelSpec, alpha: float, beta: float, l2: float) -> Any:
    """The spec's learner with these parameters. l1 is passed with each coordinate."""
    return algorithm(spec.learner.algorithm).make(spec, RATES[spec.learner.rate](alpha, beta), l2)


def needs_seen(spec: ModelSpec) -> bool:
    """True if slots must store `seen`: weights depend on the last touch, or keys are evicted by it."""
    return algorithm(spec.learner.algorithm).catches_up(spec) or spec.learner.ttl is not None


def untouched_stay(spec: ModelSpec) -> bool:
    """True if a coordinate's weight and rate do not change until an example touches it again.

    False where weights shrink at every example, where they are averages over all examples (rda, and an averaged
    variant), and where the rate is global.
    """
    if spec.learner.rate == "global" or any(each.average is not None for each in spec.variants.values()):
        return False
    declared = algorithm(spec.learner.algorithm)
    return not declared.averages and not declared.catches_up(spec)


class RateParameters(NamedTuple):
    """What determines the rate of coordinates: alpha of each, or of all; beta of all."""

    alpha: Numbers | float
    beta: float


def n_of_rate(section: LearnerSection, rate: Numbers, of: RateParameters) -> Numbers:
    """n of coordinates with this learning rate; 0 where the rate is not known, or above that of a new key."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if (own := algorithm(section.algorithm).n_of_rate) is not None:
            return own(rate, *of)
        root = np.where(rate > 0.0, of.alpha / rate - of.beta, 0.0)
        squares: Numbers = np.square(np.maximum(root, 0.0))
        return squares


def check_start(section: LearnerSection) -> None:
    """Raise SpecError for RDA, which no model can start: its weights are averages over all examples of a run."""
    if algorithm(section.algorithm).averages:
        raise SpecError(
            f'a model cannot start algorithm = "{section.algorithm}": a weight is then an average over all examples, '
            "and a model does not hold them"
        )


def state_of_weight(
    section: LearnerSection,
    weight: Numbers,
    n: Numbers,
    of: RateParameters,
    l1: Numbers,
    l2: float,
    within: Numbers | None = None,
) -> Numbers:
    """a of coordinates that have this weight; l1: of each; within: a, where FTRL's weight is 0 and does not give it.

    Raises SpecError as `check_start` does.
    """
    check_start(section)
    return algorithm(section.algorithm).state_of_weight(weight, l1, l2, _inverse(section, n, of), within)


def weight_of_state(
    section: LearnerSection, a: Numbers, n: Numbers, of: RateParameters, l1: Numbers, l2: float
) -> Numbers:
    """The inverse of `state_of_weight`, for learners whose weight is a function of a and n."""
    return algorithm(section.algorithm).weight_of_state(a, l1, l2, _inverse(section, n, of))


def _inverse(section: LearnerSection, n: Numbers, of: RateParameters) -> Numbers:
    """1 / eta of coordinates with this n, where each has a rate of its own."""
    root = np.zeros_like(n) if section.rate == "constant" else np.sqrt(n)
    inverse: Numbers = (of.beta + root) / of.alpha
    return inverse
