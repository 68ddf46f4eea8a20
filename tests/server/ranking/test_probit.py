"""A served adpredictor: Φ of the mean and the variance that its rows and its prior define, in plain Python."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration, PowerCurve, VariantCurves
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.spec.values import Value
from server.model.columns import Catalogue
from server.model.live_model import AllEqual, LiveModel
from server.model.model import Model
from server.ranking.explain import deviation, item_tokens, request_tokens
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from server.sync.last_good import LastGood
from tests.matrix import examples
from tests.server.model.models import SHOP, VARIANTS, Run, follow, loaded, parse, runs, served
from tests.server.ranked import options_of, ranked, ranker_of
from tests.server.slow_ranker import Weights, artefact_of

PHI = np.vectorize(NormalDist().cdf)
ALPHA, BETA = 0.7, 0.6
LEARNER = {"algorithm": "adpredictor", "alpha": ALPHA, "beta": BETA}
OWN: tuple[dict[str, float], ...] = ({}, {"alpha": 0.2}, {"alpha": 1.4, "beta": 1.1})
UNSURE = options_of(objective="uncertainty")


class Prediction(NamedTuple):
    score: float
    variance: float
    ctr: float
    latent: float


def probit(spec: ModelSpec) -> ModelSpec:
    """The spec with adpredictor; with values per variant, two variants have parameters of their own."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    values = spec.learner.values
    document["learner"] = {**LEARNER, "values": values}
    if values == "per_variant":
        for variant, own in zip(document["variants"].values(), OWN, strict=True):
            variant.update(own)
    return spec_from_json(json.dumps(document))


def believing(spec: ModelSpec, means: Weights, seed: int = 0) -> Artefact:
    """These means with variances from nearly 0 to a quarter more than the least prior."""
    artefact = artefact_of(spec, means)
    rates = np.random.default_rng(seed).uniform(1e-4, 0.25, artefact.rate.shape).astype(np.float32)
    return replace(artefact, rate=rates)


def slow(artefact: Artefact, example: Mapping[str, Value], variant: int) -> Prediction:
    """From the rows of the artefact, by the definition."""
    spec = artefact.spec
    own = list(spec.variants.values())[variant].own_parameters
    alpha, beta = own.get("alpha", spec.learner.alpha), own.get("beta", spec.learner.beta)
    columns = artefact.weights_of(variant).tolist(), artefact.rates_of(variant).tolist()
    used = artefact.used_by(variant).tolist()
    rows = zip(artefact.key_list(), *columns, used, strict=True)
    beliefs = {key: (mean, variance) for key, mean, variance, is_used in rows if is_used}
    score = variance = 0.0
    for key, x, mask in FeaturePlan.of(spec).keys(example):
        if mask >> variant & 1:
            mean, own_variance = beliefs.get(key, (0.0, alpha))
            score, variance = score + mean * x, variance + own_variance * x * x
    latent = score / math.sqrt(beta**2 + variance)
    return Prediction(score, variance, NormalDist().cdf(latent), latent)


def assert_predicts(
    ranking: Ranking,
    artefact: Artefact,
    request: Mapping[str, Value],
    items: Sequence[Mapping[str, Value]],
    variant: int,
) -> None:
    """items: the features of each candidate, by its place."""
    assert sorted(ranking.order.tolist()) == list(range(len(items)))
    expected = [slow(artefact, {**request, **items[place]}, variant) for place in ranking.order.tolist()]
    assert ranking.score == pytest.approx([each.score for each in expected], rel=1e-9, abs=1e-9)
    assert ranking.ctr == pytest.approx([each.ctr for each in expected], rel=1e-9, abs=1e-12)
    if ranking.uncertainties is not None:
        deviations = [math.sqrt(each.variance) for each in expected]
        assert ranking.uncertainties.tolist() == pytest.approx(deviations, rel=1e-9, abs=1e-12)
    else:
        latents = [each.latent for each in expected]
        assert all(one >= other - 1e-9 for one, other in pairwise(latents)), "best first"


@examples(60)
@given(runs())
def test_the_click_rate_is_phi_of_mean_and_variance_also_after_deltas(run: Run) -> None:
    artefacts = [believing(probit(run.spec), step, seed) for seed, step in enumerate(run.steps)]
    model = loaded(artefacts[0], run.records)
    rankers = [(served(model), artefacts[0]), (follow(model, artefacts), artefacts[-1])]
    model.rebuild()
    rankers.append((served(model), artefacts[-1]))
    inline = [(f"inline {item_id}", item) for item_id, item in run.records]
    items = [*(item for _, item in run.records), {}, *(item for _, item in run.records)]
    for ranker, artefact in rankers:
        for request in run.requests:
            for variant in range(VARIANTS):
                asked: Any = (request, [*run.ids, "unknown"], inline, variant)
                plain = ranked(ranker, *asked)
                assert plain.uncertainties is None
                assert_predicts(plain, artefact, request, items, variant)
                assert_predicts(ranked(ranker, *asked, options=UNSURE), artefact, request, items, variant)
                found = ranked(ranker, *asked, shadows=[v for v in range(VARIANTS) if v != variant])
                assert (found.ids, found.ctr) == (plain.ids, plain.ctr)
                for shadow in found.shadows:
                    alone = ranked(ranker, *asked[:3], shadow.variant)
                    assert (shadow.ids, shadow.score) == (alone.ids, alone.score), "by its own variance"


@examples(40)
@given(runs(), st.integers(0, VARIANTS - 1))
def test_an_explanation_finds_the_same_uncertainty_key_by_key(run: Run, variant: int) -> None:
    model = Model.build(believing(probit(run.spec), run.steps[0]), 1)
    catalogue = Catalogue.build(model.plan, run.records)
    for request in run.requests:
        ranking = ranked(Ranker(model, catalogue), request, run.ids, (), variant, options=UNSURE)
        assert ranking.uncertainties is not None
        tokens = request_tokens(model.plan, model.request_tokens.of(request))
        found = [
            deviation(model, tokens | item_tokens(model, catalogue, item_id, None), variant)
            for item_id in ranking.ids
        ]
        assert found == pytest.approx(ranking.uncertainties.tolist(), rel=1e-9)


def shop(means: Mapping[bytes, tuple[float, float]], crosses: list[list[str]] = []) -> Artefact:  # noqa: B006
    """A shop whose model has these means and variances."""
    weights: Weights = {key: (mean, 1) for key, (mean, _) in means.items()}
    rates = np.array([means[key][1] for key in sorted(means)], np.float32)
    return replace(artefact_of(parse(SHOP, crosses, learner=LEARNER), weights), rate=rates)


ITEMS: Any = [
    ("sure", {"brand": "nike", "bid": "1.4"}),
    ("vague", {"brand": "puma", "bid": "1"}),
    ("new", {"brand": "nova", "bid": "1.2"}),
]
IDS = [item_id for item_id, _ in ITEMS]
BELIEFS = {b"bias": (-1.0, 0.01), b"brand=nike": (0.5, 0.001), b"brand=puma": (0.4, 0.65)}
SHOP_MODEL = shop(BELIEFS)
# An item has its id as stock-keeping unit, and no other feature of the request.
PLAIN = {name: slow(SHOP_MODEL, {**item, "sku": name}, 0) for name, item in ITEMS}


@pytest.fixture(scope="module")
def ranker() -> Ranker:
    """Over a model that is sure of one item, vague about another, and knows nothing of the third."""
    return ranker_of(SHOP_MODEL, ITEMS)


def test_the_order_is_by_click_rate_and_not_by_score_also_under_options(ranker: Ranker) -> None:
    ranking = ranked(ranker, {}, IDS)
    assert ranking.ids == ["vague", "sure", "new"]
    assert ranking.score[0] < ranking.score[1], "a vague item is nearer to 1/2"
    assert ranking.ctr == sorted(ranking.ctr, reverse=True)
    assert ranked(ranker, {}, IDS, top_k=1).ids == ["vague"]
    kept = options_of(filters=[{"field": "brand", "none_of": {"values": ["nova"]}}])
    assert ranked(ranker, {}, IDS, options=kept).ids == ["vague", "sure"]
    capped = options_of(caps=[{"field": "brand", "at_most": 1}])
    assert ranked(ranker, {}, [*IDS, "sure"], options=capped).ids == ["vague", "sure", "new"]
    assert ranked(ranker, {}, IDS, options=options_of(objective="weight")).ids == ["vague", "sure", "new"]
    for name, numbers in (("ctr", ranking.ctrs), ("score", ranking.scores)):
        found = ranked(ranker, {}, IDS, options=options_of(objective=name))
        assert found.objectives is not None
        assert found.objectives.tolist() == sorted(numbers.tolist(), reverse=True)


def test_ucb_moves_the_score_by_deviations_and_the_objective_sees_the_click_rate_of_known_weights(
    ranker: Ranker,
) -> None:
    explored = options_of(exploration={"ucb": {"width": 1.5}}, objective="ctr")
    found = ranked(ranker, {}, IDS, options=explored)
    upper = {name: each.score + 1.5 * math.sqrt(each.variance) for name, each in PLAIN.items()}
    assert found.ids == sorted(IDS, key=lambda name: -upper[name])
    assert found.objectives is not None and found.propensities is not None
    known = PHI(np.array([upper[name] for name in found.ids]) / BETA).tolist()
    assert found.objectives.tolist() == pytest.approx(known, rel=1e-9)
    assert found.ctr == pytest.approx([PLAIN[name].ctr for name in found.ids], rel=1e-9), "not explored"
    assert found.propensities.tolist() == [1.0, 1.0, 1.0]
    by_score = options_of(exploration={"ucb": {"width": 0.0}})
    assert ranked(ranker, {}, IDS, options=by_score).ids == ["sure", "vague", "new"], "known weights"
    assert ranked(ranker, {}, IDS, options=options_of(exploration={"ucb": {"width": 1.5}})).ids == found.ids


@pytest.mark.parametrize(("caps", "off"), [([], 0.01), ([{"field": "brand", "at_most": 1}], 0.08)])
@pytest.mark.parametrize("objective", ["score", "ctr + 2 * bid"])
def test_thompson_draws_from_the_posterior_and_propensities_are_chances_to_be_first(
    ranker: Ranker, objective: str, caps: list[Any], off: float
) -> None:
    options = options_of(exploration={"thompson": {"width": 1.0}}, objective=objective, caps=caps)
    means = np.array([each.score for each in PLAIN.values()])
    variances = np.array([each.variance for each in PLAIN.values()])
    drawn = means + np.random.default_rng(1).standard_normal((20_000, len(IDS))) * np.sqrt(variances)
    bids = np.array([float(item["bid"]) for _, item in ITEMS])
    first = (drawn if objective == "score" else PHI(drawn / BETA) + 2 * bids).argmax(axis=1)
    expected = dict(zip(IDS, np.bincount(first, minlength=len(IDS)) / len(first), strict=True))
    said: dict[str, float] = {}
    draws, count = [], 300
    for number in range(count):
        asked: Any = {"options": options, "request_id": f"r{number}"}
        found = ranked(ranker, {}, IDS, (), 0, 1, **asked)
        assert found.propensities is not None
        said[found.ids[0]] = float(found.propensities[0])
        if objective == "score" and not caps:
            every = ranked(ranker, {}, IDS, **asked)
            assert every.objectives is not None and every.ids[0] == found.ids[0]
            draws.append([every.objectives.tolist()[every.ids.index(name)] for name in IDS])
    assert said == pytest.approx(expected, abs=off), "each has been first"
    if draws:
        assert (np.abs(np.mean(draws, axis=0) - means) < 4.5 * np.sqrt(variances / count)).all()
        assert np.var(draws, axis=0) == pytest.approx(variances, rel=4.5 * math.sqrt(2 / count))


def test_a_calibration_curve_applies_to_plain_and_to_explored_click_rates(ranker: Ranker) -> None:
    curve = PowerCurve(0.5, 1.25)
    curves = Calibration("power", None, {"base": VariantCurves(curve)})
    calibrated = ranker_of(replace(SHOP_MODEL, calibration=curves), ITEMS)
    plain, found = ranked(ranker, {}, IDS), ranked(calibrated, {}, IDS)
    assert found.ids == plain.ids and found.ctr == curve.apply(plain.ctrs).tolist() != plain.ctr
    explored = options_of(exploration={"ucb": {"width": 1.0}}, objective="ctr")
    moved, known = (ranked(each, {}, IDS, options=explored) for each in (calibrated, ranker))
    assert moved.objectives is not None and known.objectives is not None
    assert moved.objectives.tolist() == curve.apply(known.objectives).tolist()


@pytest.mark.parametrize("x", [1e-3, 1e6, 1e18])
def test_a_large_number_that_is_known_leaves_no_rounding_of_its_prior(x: float) -> None:
    fields = {"n": {"side": "user", "kind": "number"}, "m": {"side": "user"}, "brand": {"side": "item"}}
    keys = [b"bias", b"brand=b", b"m=1", b"m*brand=1*b", b"n*brand=*b", b"n="]
    spec = parse(fields, [["n", "brand"], ["m", "brand"]], learner=LEARNER)
    artefact = artefact_of(spec, dict.fromkeys(keys, (0.1 / x, 1)))
    artefact = replace(artefact, rate=np.full(6, 0.3 / x**2, np.float32))
    request: dict[str, Value] = {"n": x, "m": "1"}
    found = ranked(ranker_of(artefact, [("i", {"brand": "b"})]), request, ["i"], options=UNSURE)
    assert_predicts(found, artefact, request, [{"brand": "b"}], 0)


def test_versions_of_either_link_follow_each_other_and_are_restored_from_disk(tmp_path: Path) -> None:
    logit = artefact_of(parse(SHOP), {b"bias": (-1.0, 1), b"brand=nike": (0.5, 1), b"brand=puma": (0.4, 1)})
    model, again, disk = LiveModel("m"), LiveModel("m"), LastGood(tmp_path, "m")
    for version, artefact in enumerate((logit, SHOP_MODEL, logit, SHOP_MODEL), start=1):
        catalogue = Catalogue.build(FeaturePlan.of(artefact.spec), ITEMS)
        model.load(version, "", artefact, catalogue, allow_equal=False)
        disk.save(model.parts)
        kept = disk.kept()
        assert kept is not None
        again.restore(disk.load(kept))
        alone = ranked(ranker_of(artefact, ITEMS), {}, IDS)
        for each in (model, again):
            found = ranked(served(each), {}, IDS)
            assert (found.ids, found.ctr) == (alone.ids, alone.ctr)
        assert found.ids[0] == ("vague" if artefact is SHOP_MODEL else "sure")
        assert ("unknown" in model.parts.items.arrays) == (artefact is SHOP_MODEL)
    # Its keys of items may not all go, although their priors have a variance.
    none = shop({b"bias": (0.1, 0.1)})
    with pytest.raises(AllEqual, match="no key of the model has a field of the item"):
        model.load(5, "", none, Catalogue.build(FeaturePlan.of(none.spec), ()), allow_equal=False)
