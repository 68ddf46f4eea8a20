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
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec, spec_from_json
from server.model.catalogue import Catalogue
from server.model.live_model import AllEqual, LiveModel
from server.model.model import Model
from server.ranking.explain import deviation, item_tokens, request_tokens
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from server.sync.last_good import LastGood
from tests.matrix import examples
from tests.server.model.models import Records, runs
from tests.server.ranked import options_of, ranked
from tests.server.ranking.test_ranker import SHOP, VARIANTS, parse
from tests.server.slow_ranker import Weights, artefact_of
from tests.trainer.click_logs import batch_of, learn, model_of, shop_rows, shop_spec
from trainer.learn.scorer import Scorer

PHI = NormalDist().cdf
ALPHA, BETA = 0.7, 0.6
OWN: tuple[dict[str, float], ...] = ({}, {"alpha": 0.2}, {"alpha": 1.4, "beta": 1.1})
UNSURE = options_of(objective="uncertainty")


class Prediction(NamedTuple):
    score: float
    variance: float
    ctr: float
    latent: float


def probit(spec: ModelSpec, alpha: float = ALPHA, beta: float = BETA) -> ModelSpec:
    """The spec with adpredictor; with values per variant, two variants have parameters of their own."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    values = spec.learner.values
    document["learner"] = {"algorithm": "adpredictor", "alpha": alpha, "beta": beta, "values": values}
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
    return Prediction(score, variance, PHI(latent), latent)


def ranker_of(artefact: Artefact, records: Any = ()) -> Ranker:
    model = Model.build(artefact, 1)
    return Ranker(model, Catalogue.build(model.plan, records))


def assert_predicts(
    ranking: Ranking,
    artefact: Artefact,
    requests: Mapping[str, Value],
    items: Sequence[Mapping[str, Value]],
    v: int,
) -> None:
    """items: the features of each candidate, by its place."""
    assert sorted(ranking.order.tolist()) == list(range(len(items)))
    expected = [slow(artefact, {**requests, **items[place]}, v) for place in ranking.order.tolist()]
    assert ranking.score == pytest.approx([each.score for each in expected], rel=1e-9, abs=1e-9)
    assert ranking.ctr == pytest.approx([each.ctr for each in expected], rel=1e-9, abs=1e-12)
    if ranking.uncertainties is not None:
        deviations = [math.sqrt(each.variance) for each in expected]
        assert ranking.uncertainties.tolist() == pytest.approx(deviations, rel=1e-9, abs=1e-12)


Run = tuple[ModelSpec, list[Weights], list[dict[str, Value]], Records]


@examples(100)
@given(runs())
def test_the_click_rate_is_phi_of_mean_and_variance_also_after_deltas(run: Run) -> None:
    given_spec, steps, requests, records = run
    spec = probit(given_spec)
    artefacts = [believing(spec, step, seed) for seed, step in enumerate(steps)]
    model = LiveModel("m")
    model.load(1, "", artefacts[0], Catalogue.build(FeaturePlan.of(spec), records))
    rankers = [ServedVersion.bind(model.parts).ranker]
    for version, (before, after) in enumerate(pairwise(artefacts), start=2):
        model.apply(version, "", after.changes_since(before, version=version - 1))
        rankers.append(ServedVersion.bind(model.parts).ranker)
    rankers.append(ServedVersion.bind(model.rebuild()).ranker)
    named = [item_id for item_id, _ in records]
    inline = [(f"inline {item_id}", item) for item_id, item in records]
    items = [*(item for _, item in records), {}, *(item for _, item in records)]
    for ranker, artefact in (
        (rankers[0], artefacts[0]),
        (rankers[-2], artefacts[-1]),
        (rankers[-1], artefacts[-1]),
    ):
        for request in requests:
            for variant in range(VARIANTS):
                asked: Any = (request, [*named, "unknown"], inline, variant)
                plain = ranked(ranker, *asked)
                assert_predicts(plain, artefact, request, items, variant)
                latents = [
                    slow(artefact, {**request, **items[n]}, variant).latent for n in plain.order.tolist()
                ]
                assert all(one >= other - 1e-9 for one, other in pairwise(latents)), "best first"
                assert plain.uncertainties is None
                assert_predicts(ranked(ranker, *asked, options=UNSURE), artefact, request, items, variant)
                others = [v for v in range(VARIANTS) if v != variant]
                found = ranked(ranker, *asked, shadows=others)
                assert (found.ids, found.ctr) == (plain.ids, plain.ctr)
                for shadow in found.shadows:
                    alone = ranked(ranker, *asked[:3], shadow.variant)
                    assert (shadow.ids, shadow.score) == (alone.ids, alone.score), "by its own variance"


@examples(60)
@given(runs(), st.integers(0, VARIANTS - 1))
def test_an_explanation_finds_the_same_uncertainty_key_by_key(run: Run, variant: int) -> None:
    given_spec, steps, requests, records = run
    artefact = believing(probit(given_spec), steps[0])
    model = Model.build(artefact, 1)
    catalogue = Catalogue.build(model.plan, records)
    for request in requests:
        ids = [item_id for item_id, _ in records]
        ranking = ranked(Ranker(model, catalogue), request, ids, (), variant, options=UNSURE)
        assert ranking.uncertainties is not None
        tokens = request_tokens(model.plan, model.request_tokens.of(request))
        found = [
            deviation(model, tokens | item_tokens(model, catalogue, item_id, None), variant)
            for item_id in ranking.ids
        ]
        assert found == pytest.approx(ranking.uncertainties.tolist(), rel=1e-9)


@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_the_server_predicts_what_the_trainer_scores(values: str) -> None:
    rows = shop_rows(600, seed=5)
    spec = shop_spec()
    shared = spec.learner.model_copy(update={"values": values})
    spec = probit(spec.model_copy(update={"learner": shared}))
    learned = learn(model_of(spec, list(rows[0])), rows[:400])
    artefact = learned.artefact()
    scored = Scorer(artefact).score(learned.maker, learned.maker.make(batch_of(rows)))
    plan, ranker = FeaturePlan.of(artefact.spec), ranker_of(artefact)
    of_item = {field.name for field in plan.item_fields}
    for number, row in enumerate(rows):
        request = {f.name: row[f.name].decode() for f in plan.request_fields}
        item = {name: row[name].decode() for name in of_item}
        for variant in range(VARIANTS):
            found = ranked(ranker, request, [], [("i", item)], variant, options=UNSURE)
            assert found.uncertainties is not None
            assert found.score[0] == pytest.approx(scored.score[number, variant], rel=1e-9, abs=1e-9)
            assert found.ctr[0] == pytest.approx(scored.ctr[number, variant], rel=1e-9)
            assert found.uncertainties[0] == pytest.approx(scored.uncertainty[number, variant], rel=1e-9)


def shop(means: Mapping[bytes, tuple[float, float]], crosses: list[list[str]] = [], **more: Any) -> Artefact:  # noqa: B006
    """A shop whose model has these means and variances."""
    learner = {"algorithm": "adpredictor", "alpha": ALPHA, "beta": BETA}
    artefact = artefact_of(
        parse(SHOP, crosses, learner=learner, **more), {k: (mean, 1) for k, (mean, _) in means.items()}
    )
    rates = np.array([means[key][1] for key in sorted(means)], np.float32)
    return replace(artefact, rate=rates)


def of_item(artefact: Artefact, item_id: str) -> Prediction:
    """The prediction for one of ITEMS, which has its id as stock-keeping unit, and no other feature of the request."""
    return slow(artefact, {**dict(ITEMS)[item_id], "sku": item_id}, 0)


ITEMS: Any = [
    ("sure", {"brand": "nike", "bid": "1.4"}),
    ("vague", {"brand": "puma", "bid": "1"}),
    ("new", {"brand": "nova", "bid": "1.2"}),
]
BELIEFS = {b"bias": (-1.0, 0.01), b"brand=nike": (0.5, 0.001), b"brand=puma": (0.4, 0.65)}
IDS = [item_id for item_id, _ in ITEMS]


def test_the_order_is_by_click_rate_and_not_by_score() -> None:
    ranking = ranked(ranker_of(shop(BELIEFS), ITEMS), {}, IDS)
    assert ranking.ids == ["vague", "sure", "new"]
    assert ranking.score[0] < ranking.score[1], "a vague item is nearer to 1/2"
    assert ranking.ctr == sorted(ranking.ctr, reverse=True)
    assert ranked(ranker_of(shop(BELIEFS), ITEMS), {}, IDS, top_k=1).ids == ["vague"]


def test_filters_caps_and_missing_values_of_an_objective_follow_the_order_by_click_rate() -> None:
    ranker = ranker_of(shop(BELIEFS), ITEMS)
    kept = options_of(filters=[{"field": "brand", "none_of": {"values": ["nova"]}}])
    assert ranked(ranker, {}, IDS, options=kept).ids == ["vague", "sure"]
    capped = options_of(caps=[{"field": "brand", "at_most": 1}])
    assert ranked(ranker, {}, [*IDS, "sure"], options=capped).ids == ["vague", "sure", "new"]
    assert ranked(ranker, {}, IDS, options=options_of(objective="weight")).ids == ["vague", "sure", "new"]


def test_an_objective_sees_the_plain_score_and_its_click_rate() -> None:
    ranker = ranker_of(shop(BELIEFS), ITEMS)
    plain = ranked(ranker, {}, IDS)
    for name, numbers in (("ctr", plain.ctrs), ("score", plain.scores)):
        found = ranked(ranker, {}, IDS, options=options_of(objective=name))
        assert found.objectives is not None
        assert found.objectives.tolist() == sorted(numbers.tolist(), reverse=True)


def test_ucb_moves_the_score_by_deviations_and_the_objective_sees_the_click_rate_of_known_weights() -> None:
    artefact = shop(BELIEFS)
    ranker = ranker_of(artefact, ITEMS)
    plain = {name: of_item(artefact, name) for name in IDS}
    explored = options_of(exploration={"ucb": {"width": 1.5}}, objective="ctr")
    found = ranked(ranker, {}, IDS, options=explored)
    upper = {name: each.score + 1.5 * math.sqrt(each.variance) for name, each in plain.items()}
    assert found.ids == sorted(IDS, key=lambda name: -upper[name])
    assert found.objectives is not None and found.propensities is not None
    assert found.objectives.tolist() == pytest.approx(
        [PHI(upper[name] / BETA) for name in found.ids], rel=1e-9
    )
    assert found.ctr == pytest.approx([plain[name].ctr for name in found.ids], rel=1e-9), (
        "not the explored one"
    )
    assert found.propensities.tolist() == [1.0, 1.0, 1.0]
    by_score = options_of(exploration={"ucb": {"width": 0.0}})
    assert ranked(ranker, {}, IDS, options=by_score).ids == ["sure", "vague", "new"], (
        "known weights, by score"
    )
    without = options_of(exploration={"ucb": {"width": 1.5}})
    assert ranked(ranker, {}, IDS, options=without).ids == found.ids


def test_thompson_draws_from_the_posterior_of_each_score() -> None:
    artefact = shop(BELIEFS)
    ranker = ranker_of(artefact, ITEMS)
    draws: dict[str, list[float]] = {name: [] for name in IDS}
    options = options_of(exploration={"thompson": {"width": 1.0}}, objective="score")
    count = 4000
    for number in range(count):
        found = ranked(ranker, {}, IDS, options=options, request_id=f"r{number}")
        assert found.objectives is not None
        for name, drawn in zip(found.ids, found.objectives.tolist(), strict=True):
            draws[name].append(drawn)
    for name in IDS:
        expected = of_item(artefact, name)
        noise = math.sqrt(expected.variance / count)
        assert abs(np.mean(draws[name]) - expected.score) < 4.5 * noise
        assert np.var(draws[name]) == pytest.approx(expected.variance, rel=4.5 * math.sqrt(2 / count))


@pytest.mark.parametrize("caps", [[], [{"field": "brand", "at_most": 1}]])
@pytest.mark.parametrize("objective", ["", "ctr + 2 * bid"])
def test_propensities_are_the_chances_of_being_returned(objective: str, caps: list[Any]) -> None:
    ranker = ranker_of(shop(BELIEFS), ITEMS)
    options = options_of(exploration={"thompson": {"width": 1.0}}, objective=objective, caps=caps)
    returned = dict.fromkeys(IDS, 0)
    said: dict[str, float] = {}
    count = 3000
    for number in range(count):
        found = ranked(ranker, {}, IDS, (), 0, 1, options=options, request_id=f"r{number}")
        assert found.propensities is not None
        returned[found.ids[0]] += 1
        said[found.ids[0]] = float(found.propensities[0])
    for name, times in returned.items():
        assert times / count == pytest.approx(said[name], abs=0.03 if not caps else 0.08)
    assert min(returned.values()) > 0.03 * count, "a test of something"


def test_a_calibration_curve_applies_to_plain_and_to_explored_click_rates() -> None:
    curve = PowerCurve(0.5, 1.25)
    artefact = shop(BELIEFS)
    calibrated = replace(artefact, calibration=Calibration("power", None, {"base": VariantCurves(curve)}))
    plain, found = (ranked(ranker_of(each, ITEMS), {}, IDS) for each in (artefact, calibrated))
    assert found.ids == plain.ids and found.ctr == curve.apply(plain.ctrs).tolist() != plain.ctr
    explored = options_of(exploration={"ucb": {"width": 1.0}}, objective="ctr")
    moved, known = (
        ranked(ranker_of(each, ITEMS), {}, IDS, options=explored) for each in (calibrated, artefact)
    )
    assert moved.objectives is not None and known.objectives is not None
    assert moved.objectives.tolist() == curve.apply(known.objectives).tolist()


def test_an_item_that_was_never_seen_has_the_uncertainty_of_the_prior() -> None:
    ranker = ranker_of(shop(BELIEFS | {b"brand=puma": (0.4, 0.001)}), ITEMS)
    found = ranked(ranker, {}, IDS, options=UNSURE)
    assert found.uncertainties is not None
    unsure = dict(zip(found.ids, found.uncertainties.tolist(), strict=True))
    # An item without a stock-keeping unit has its id there, so that two of its keys are new, as is the other's one.
    assert unsure["new"] == pytest.approx(math.sqrt(0.01 + 2 * ALPHA), rel=1e-7)
    assert unsure["sure"] == pytest.approx(math.sqrt(0.01 + 0.001 + ALPHA), rel=1e-7)
    explored = options_of(exploration={"ucb": {"width": 2.0}})
    assert ranked(ranker, {}, IDS, options=explored).ids[0] == "new"


def test_a_model_without_any_key_predicts_from_the_prior() -> None:
    artefact = shop({}, [["age", "brand"]])
    request = {"age": "25", "hour": "7"}
    found = ranked(
        ranker_of(artefact, ITEMS), request, [*IDS, "unknown"], [("x", {"brand": "b"})], options=UNSURE
    )
    items = [*(item | {"sku": name} for name, item in ITEMS), {"sku": "unknown"}, {"brand": "b", "sku": "x"}]
    assert_predicts(found, artefact, request, items, 0)
    assert found.ctr == pytest.approx([0.5] * 5)
    plain = ranked(ranker_of(artefact, ITEMS), request, [*IDS, "unknown"], [("x", {"brand": "b"})])
    assert plain.ids == [*IDS, "unknown", "x"], "the order of the candidates"


@pytest.mark.parametrize("x", [1e-3, 1e6, 1e18])
def test_a_large_number_that_is_known_leaves_no_rounding_of_its_prior(x: float) -> None:
    fields = {"n": {"side": "user", "kind": "number"}, "m": {"side": "user"}, "brand": {"side": "item"}}
    learner = {"algorithm": "adpredictor", "alpha": ALPHA, "beta": BETA}
    keys = [b"bias", b"brand=b", b"m=1", b"m*brand=1*b", b"n*brand=*b", b"n="]
    artefact = artefact_of(
        parse(fields, [["n", "brand"], ["m", "brand"]], learner=learner), dict.fromkeys(keys, (0.1 / x, 1))
    )
    artefact = replace(artefact, rate=np.full(6, 0.3 / x**2, np.float32))
    request: dict[str, Value] = {"n": x, "m": "1"}
    found = ranked(ranker_of(artefact, [("i", {"brand": "b"})]), request, ["i"], options=UNSURE)
    assert_predicts(found, artefact, request, [{"brand": "b"}], 0)


def test_a_model_restored_from_disk_predicts_the_same(tmp_path: Path) -> None:
    artefact = shop(BELIEFS)
    model, again = LiveModel("shop"), LiveModel("shop")
    model.load(1, "", artefact, Catalogue.build(FeaturePlan.of(artefact.spec), ITEMS))
    disk = LastGood(tmp_path, "shop")
    disk.save(model.parts)
    kept = disk.kept()
    assert kept is not None
    served = ServedVersion.bind(again.restore(disk.load(kept)))
    found = ranked(served.ranker, {}, IDS)
    assert found.ctr == ranked(ServedVersion.bind(model.parts).ranker, {}, IDS).ctr
    assert found.ctr == pytest.approx([of_item(artefact, name).ctr for name in found.ids], rel=1e-9)


def test_a_model_whose_keys_of_items_all_go_is_refused_although_their_priors_have_a_variance() -> None:
    before, after = shop({b"bias": (0.1, 0.1), b"brand=nike": (0.2, 0.1)}), shop({b"bias": (0.1, 0.1)})
    model = LiveModel("shop")
    model.load(1, "", before, Catalogue.build(FeaturePlan.of(before.spec), ()))
    with pytest.raises(AllEqual, match="no key of the model has a field of the item"):
        model.load(2, "", after, Catalogue.build(FeaturePlan.of(after.spec), ()), allow_equal=False)


def test_versions_of_either_link_follow_each_other() -> None:
    beliefs = shop(BELIEFS)
    logit = artefact_of(parse(SHOP), {b"bias": (-1.0, 1), b"brand=nike": (0.5, 1), b"brand=puma": (0.4, 1)})
    model = LiveModel("shop")
    for version, artefact in enumerate((logit, beliefs, logit, beliefs), start=1):
        model.load(
            version, "", artefact, Catalogue.build(FeaturePlan.of(artefact.spec), ITEMS), allow_equal=False
        )
        served = ServedVersion.bind(model.parts)
        found, alone = ranked(served.ranker, {}, IDS), ranked(ranker_of(artefact, ITEMS), {}, IDS)
        assert (found.ids, found.ctr) == (alone.ids, alone.ctr)
        assert found.ids[0] == ("vague" if artefact is beliefs else "sure")
        assert ("unknown" in model.parts.items.arrays) == (artefact is beliefs)
