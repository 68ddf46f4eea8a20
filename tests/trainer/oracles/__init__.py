"""The learners as their papers print them: dense, slow, in plain Python; the judges of the kernels."""

from __future__ import annotations

from tests.trainer.oracles import fobos, ftrl, ogd, rda, truncated_gradient, truncation
from tests.trainer.oracles.dense import Learner

_LEARNERS: dict[str, Learner] = {
    "ogd": Learner(ogd.weight, ogd.step),
    "truncation": Learner(truncation.weight, truncation.step),
    "truncated_gradient": Learner(truncated_gradient.weight, truncated_gradient.step),
    "fobos": Learner(fobos.weight, fobos.step),
    "rda": Learner(rda.weight, rda.step),
    "ftrl": Learner(ftrl.weight, ftrl.step, scaled=True),
}


def learner_of(algorithm: str, rate: str) -> Learner:
    """The textbook's learner of a spec's `algorithm` and `rate`."""
    if algorithm == "rda" and rate != "global":
        return Learner(rda.weight_of_gradients, rda.step)
    return _LEARNERS[algorithm]
