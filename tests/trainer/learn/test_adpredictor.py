"""AdPredictor: the kernel against plain Python, and what the paper says of priors, weights and forgetting."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from model_store.features.features import FeaturePlan
from model_store.spec.learner_section import LearnerSection
from tests.trainer.click_logs import learn, model_of, shop_rows, shop_spec
from tests.trainer.oracles.adpredictor import AdPredictorOracle, Prior
from tests.trainer.oracles.trial import Recorder

TOLERANCE = 1e-9
SECTION = {"algorithm": "adpredictor", "alpha": 0.7, "beta": 0.8}


def spec_of(variants=1, values="single", own=None, **more):
    section = LearnerSection.model_validate(SECTION | {"values": values} | more)
    spec = shop_spec(variants)
    named = {
        name: variant.model_copy(update=own[name]) if own and name in own else variant
        for name, variant in spec.variants.items()
    }
    return spec.model_copy(update={"learner": section, "variants": named})


def oracle_of(spec, columns):
    resolved, section = spec.resolve(columns), spec.learner
    priors = []
    for variant in spec.variants.values():
        own = {"alpha": section.alpha, "beta": section.beta} | variant.own_parameters
        keys = 1 + len(resolved.fields) + len(resolved.crosses) - len(variant.without)
        deviation = math.sqrt(own["beta"] ** 2 + keys * own["alpha"])
        bias = NormalDist().inv_cdf(section.prior_ctr) * deviation
        priors.append(Prior(own["alpha"], own["beta"], bias))
    return AdPredictorOracle(priors, section.forgetting, section.values == "per_variant")


def by_kernel(spec, rows, size=61):
    """Every row's scores in deviations, and each key's (means, variances) over the variants that use it."""
    model = model_of(spec, list(rows[0]))
    model.metrics = recorder = Recorder(len(spec.variants))
    learn(model, rows, size)
    keys = model.table.keys()
    data, means, variances = (
        keys.data.tobytes(),
        model.coordinates.weights(keys),
        model.coordinates.rates(keys),
    )
    masks = model.coordinates.masks_of(keys)
    found = {}
    for index, mask in enumerate(masks.tolist()):
        places = range(means.shape[1]) if means.shape[1] > 1 else [0]
        users = [place for place in places if means.shape[1] == 1 or mask >> place & 1]
        key = data[keys.offsets[index] : keys.offsets[index + 1]]
        found[key] = [(means[index, place], variances[index, place]) for place in users]
    return recorder.scores, found


def by_oracle(spec, rows):
    oracle = oracle_of(spec, list(rows[0]))
    plan = FeaturePlan.of(spec.resolve(list(rows[0])))
    scores = [
        oracle.learn(
            [key for key in plan.keys(row) if key[2]],
            float(row["click"] in (b"1", b"true")),
            float(row["importance"]),
        )
        for row in rows
    ]
    beliefs = {
        key: [
            (belief.mean, belief.variance)
            for place, belief in enumerate(several)
            if not oracle.per_variant or place in oracle.users[key]
        ]
        for key, several in oracle.beliefs.items()
    }
    return np.array(scores), beliefs


def assert_same(spec, rows):
    scores, found = by_kernel(spec, rows)
    expected_scores, expected = by_oracle(spec, rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=TOLERANCE, atol=TOLERANCE)
    assert found.keys() == expected.keys()
    for key, beliefs in expected.items():
        np.testing.assert_allclose(found[key], beliefs, rtol=TOLERANCE, atol=1e-12, err_msg=repr(key))


@pytest.mark.parametrize(
    "more", [{}, {"prior_ctr": 0.03}, {"forgetting": 0.01, "prior_ctr": 0.2}, {"forgetting": 0.5}]
)
@pytest.mark.parametrize(("variants", "values"), [(1, "single"), (3, "single"), (3, "per_variant")])
def test_the_kernel_equals_the_paper_in_plain_python(variants, values, more):
    for seed in (1, 2, 3):
        assert_same(spec_of(variants, values, **more), shop_rows(300, seed))
