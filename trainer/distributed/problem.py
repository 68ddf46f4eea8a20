"""Problems: what a distributed run minimises, one problem for each variant, or one for all that share their values.

    F(w) = ( sum over rows of omega * logloss + sum over keys of (l1 |w| + l2 w^2 / 2) ) / m

m is the sum of the rows' importances omega. l1 and l2 are those of the spec, which scales them as scikit-learn does:
C = 1 / l1. Where V variants share values, every row counts once for each variant with the variant's keys, a key's
penalty once for each variant that uses it, and m is V times as large: the minimum is where the mean over a key's
variants of gradient and penalty is 0, as in the online learner (KDD 2013, section 4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from trainer.examples.rules import FeatureRules

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """One minimisation.

    name: of the variant, or "all" where variants share values; column: of its weights among the model's; variants: how
    many share it; bits: uint32[features], bit v set where variant v uses the feature; l1, l2: float64[features];
    alpha, beta: of the FTRL passes.
    """

    name: str
    column: int
    variants: int
    bits: npt.NDArray[np.uint32]
    l1: Numbers
    l2: Numbers
    alpha: float
    beta: float


def problems_of(
    spec: ModelSpec, masks: npt.NDArray[np.uint32], rules: FeatureRules, l1: float | None = None
) -> Sequence[Problem]:
    """The problems of a resolved spec. masks: uint32[features], bit v set where variant v uses the feature.

    l1: instead of the learner's and the variants' own, not of that of rules.
    """
    given = {} if l1 is None else {"l1": l1}
    section, several = spec.learner, len(spec.variants)
    if section.values != "per_variant" or several == 1:
        using = np.zeros(masks.size)
        for v in range(several):
            using += masks >> np.uint32(v) & np.uint32(1)
        (name,) = spec.variants if several == 1 else ("all",)
        of_key = _of_features(rules, given.get("l1", section.l1), masks.size) * using
        return [Problem(name, 0, several, masks, of_key, section.l2 * using, section.alpha, section.beta)]
    found = []
    for v, (name, variant) in enumerate(spec.variants.items()):
        own = (
            {each: getattr(section, each) for each in ("alpha", "beta", "l1", "l2")}
            | dict(variant.own_parameters)
            | given
        )
        bits = masks >> np.uint32(v) & np.uint32(1)
        of_key = _of_features(rules, own["l1"], masks.size) * bits
        found.append(
            Problem(name, v, 1, bits, of_key, own["l2"] * bits.astype(np.float64), own["alpha"], own["beta"])
        )
    return found


def _of_features(rules: FeatureRules, l1: float, features: int) -> Numbers:
    if rules.l1 is None:
        return np.full(features, l1)
    return np.where(np.isnan(rules.l1), l1, rules.l1)
