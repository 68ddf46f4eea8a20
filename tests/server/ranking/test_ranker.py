"""The ranker against the slow one, over random specs, models, items and requests; and what it says of odd ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact.calibration import Calibration, Curve, IsotonicCurve, PowerCurve, VariantCurves
from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.ranker import Ranker
from tests.matrix import examples
from tests.server import shop
from tests.server.model.models import SHOP, SHOP_WEIGHTS, VARIANTS, Question, Records, parse, questions
from tests.server.ranked import options_of, ranked, ranker_of, scores
from tests.server.slow_ranker import Weights, artefact_of, slow_knows_user, slow_scores


@examples(200)
@given(questions(), st.integers(0, VARIANTS - 1), st.one_of(st.none(), st.integers(1, 7)))
def test_scores_and_order_equal_the_slow_ranker(question: Question, variant: int, top_k: int | None) -> None:
    spec, weights, request, items = question
    ranker, ids = question.ranker, question.ids
    found = ranked(ranker, request, ids, [], variant, top_k)

    expected = slow_scores(spec, weights, request, items, variant)
    assert len(found.ids) == min(len(ids), top_k or len(ids))
    for item_id, score, ctr in zip(found.ids, found.score, found.ctr, strict=True):
        assert score == pytest.approx(expected[int(item_id)], rel=1e-9, abs=1e-9)
        assert ctr == pytest.approx(0.5 + 0.5 * math.tanh(score / 2), rel=1e-9, abs=1e-12)
    everything = scores(ranked(ranker, request, ids, [], variant))
    best_first = sorted(ids, key=lambda item_id: (-everything[item_id], int(item_id)))
    assert found.ids == best_first[: len(found.ids)]

    spelled = ranked(ranker, request, [], question.records, variant, top_k)
    assert (spelled.ids, spelled.score) == (found.ids, found.score), "spelled out, bit for bit the same"


@examples(200)
@given(questions(), st.integers(0, VARIANTS - 1))
def test_a_user_is_known_by_any_key_of_theirs_whichever_way_candidates_are_ranked(
    question: Question, variant: int
) -> None:
    spec, weights, request, items = question
    plan = FeaturePlan.of(spec)
    made = {key for item in [*items, {}] for key, _, _ in plan.keys({**request, **item})}
    question = question._replace(weights={key: entry for key, entry in weights.items() if key in made})
    ranker, expected = question.ranker, slow_knows_user(spec, question.weights, request, variant)
    for ids in (question.ids, ["of whom nothing is known"]):
        for more in ({}, {"shadows": [0, 1, 2]}, {"options": options_of(objective="uncertainty")}):
            assert ranked(ranker, request, ids, [], variant, **more).knows_user == expected


ITEMS: Records = [("shoe", {"brand": "nike"}), ("hat", {"brand": "puma"}), ("sock", {"brand": "puma"})]


def shop_ranker(weights: Weights = SHOP_WEIGHTS, items: Records = ITEMS) -> Ranker:
    return ranker_of(artefact_of(parse(SHOP, [["age", "brand"]]), weights), items)


def test_named_spelled_and_unknown_items_are_ranked_together_and_equal_ones_in_their_order() -> None:
    ranker = shop_ranker()
    ranking = ranked(ranker, {"age": "25"}, ["sock", "gone", "hat", "new", "gone"], [("boot", ITEMS[0][1])])
    assert list(zip(ranking.ids, ranking.score, strict=True)) == [
        ("boot", 1.75), ("new", -0.375), ("sock", -0.5), ("gone", -0.5), ("hat", -0.5), ("gone", -0.5)
    ]  # fmt: skip
    assert ranking.candidates.unknown == ["gone", "new"], "each once"
    nothing = ranked(ranker, {"age": "25"}, [])
    assert (nothing.ids, nothing.ctr, nothing.score) == ([], [], [])
    idless = ranker_of(artefact_of(parse({"age": {"side": "user"}}), SHOP_WEIGHTS))
    assert scores(ranked(idless, {"age": "25"}, ["x", "y"])) == {"x": -0.5, "y": -0.5}, "the request's"
    even = ranked(shop_ranker({}), {"age": "25"}, ["shoe", "hat"])
    assert (even.ids, even.ctr) == (["shoe", "hat"], [0.5, 0.5])


def test_an_item_has_its_own_id_among_its_features_and_its_last_record_counts() -> None:
    ranker = shop_ranker(items=[("new", {}), ("other", {"sku": "new"})])
    assert scores(ranked(ranker, {}, ["new", "other"], [("new", {})])) == {"new": -0.875, "other": -0.875}
    ranker = shop_ranker(items=[("shoe", {"brand": "puma"}), ("hat", {}), ITEMS[0]])
    assert scores(ranked(ranker, {}, ["shoe", "hat"])) == {"shoe": -0.75, "hat": -1.0}


def test_unknown_request_fields_are_listed_and_those_that_do_not_fit_refused_by_name() -> None:
    ranker = shop_ranker()
    assert ranked(ranker, {"age": "25", "colour": "red"}, ["shoe"]).score == [1.75]
    assert ranker.features({"colour": "red"}).unknown == ["colour"]
    with pytest.raises(FieldValueError, match="brand: belongs to the item"):
        ranked(ranker, {"brand": "nike"}, ["shoe"])
    with pytest.raises(FieldValueError, match="age: got a list"):
        ranked(ranker, {"age": ["25", "31"]}, ["shoe"])


@pytest.mark.parametrize("item_id", ["a\x00b", "", "naïve", "\ud800"])
def test_ids_of_every_kind_are_found(item_id: str) -> None:
    ranking = ranked(
        shop_ranker(items=[("a", {}), (item_id, ITEMS[0][1]), ("b", {})]), {}, ["b", item_id, "a"]
    )
    assert ranking.ids == [item_id, "b", "a"]
    assert not ranking.candidates.unknown


def test_a_stored_value_or_an_id_that_does_not_fit_counts_as_missing() -> None:
    spec = parse({"price": {"side": "item", "kind": "number"}, "age": {"side": "user"}})
    model = Model.build(artefact_of(spec, {b"bias": (1.0, 1), b"price=": (0.5, 1)}), 1)
    catalogue = Catalogue.build(model.plan, [("dear", {"price": "4"}), ("odd", {"price": "four"})])
    assert scores(ranked(Ranker(model, catalogue), {}, ["dear", "odd"])) == {"dear": 3.0, "odd": 1.0}
    assert catalogue.problems == ("item 'odd': price: got 'four', expected a number",)
    spec = parse({"sku": {"side": "item", "column": "item", "kind": "number"}})
    ranker = ranker_of(artefact_of(spec, {b"bias": (1.0, 1), b"sku=": (0.5, 1)}), [("6", {}), ("six", {})])
    found = scores(ranked(ranker, {}, ["6", "six", "8", "eight"]))
    assert found == {"6": 4.0, "six": 1.0, "8": 5.0, "eight": 1.0}


def test_a_catalogue_of_another_plan_is_refused() -> None:
    model = Model.build(artefact_of(parse(SHOP), SHOP_WEIGHTS), 1)
    other = FeaturePlan.of(parse({"colour": {"side": "item"}}))
    with pytest.raises(ValueError, match="another plan"):
        Ranker(model, Catalogue.build(other, []))


@pytest.mark.parametrize("brands", [range(90), range(30, 60), range(0, 90, 3), [7], [3, 4, 60]])
def test_ranges_with_and_without_gaps_agree_with_the_slow_ranker(brands: Sequence[int]) -> None:
    """Item parts are numbered over all ages, so that the range of one age may lack some, at its ends or between."""
    spec = parse(SHOP, [["age", "brand"]])
    items: Records = [(f"i{n:02}", {"brand": f"b{n:02}"}) for n in range(100)]
    weights = {b"age*brand=31*b%02d" % n: (1.0, 1) for n in range(90)}
    weights |= {b"age*brand=25*b%02d" % n: (n % 5 - 2.5, 1) for n in brands}
    ranker = ranker_of(artefact_of(spec, weights), items)
    for some in (items[:5], items[:2] * 2, items[20:70], items):
        expected = slow_scores(spec, weights, {"age": "25"}, [{"sku": i, **f} for i, f in some], 0)
        for shadows in ((), (0,)):
            answer = ranked(ranker, {"age": "25"}, [item_id for item_id, _ in some], shadows=shadows)
            assert scores(answer) == {item_id: x for (item_id, _), x in zip(some, expected, strict=True)}


def test_threads_share_one_ranker() -> None:
    ranker = shop_ranker()

    def ask(age: str) -> set[float]:
        return {ranked(ranker, {"age": age}, ["hat", "shoe"] * 20).score[0] for _ in range(200)}

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, ["25", "31"] * 3)) == [{1.75}, {-0.75}] * 3


HALF, MORNINGS = PowerCurve(0.5, 1.25), PowerCurve(1.5, 2.0)
STEPS = IsotonicCurve(((0.2, 0.1), (0.6, 0.5)))
POWERS = Calibration(
    "power", "hour", {"base": VariantCurves(HALF, {b"8": MORNINGS}), "plain": VariantCurves()}
)
LINES = Calibration("isotonic", None, {"base": VariantCurves(STEPS)})
STEEP = Calibration("power", None, {"base": VariantCurves(PowerCurve(1e9, 1.0))})
MORNING, EVENING = ({"age": "20", "hour": hour} for hour in shop.HOURS)


@pytest.mark.parametrize(
    ("calibration", "fields", "variant", "curve"),
    [
        (POWERS, MORNING, 0, MORNINGS),
        (POWERS, EVENING, 0, HALF),
        (POWERS, {"age": "20"}, 0, HALF),
        (LINES, EVENING, 0, STEPS),
        (POWERS, MORNING, 1, None),
        (STEEP, MORNING, 0, PowerCurve(1e9, 1.0)),
    ],
)
def test_ctr_goes_through_the_curve_of_the_request_and_score_and_order_stay(
    calibration: Calibration, fields: dict[str, str], variant: int, curve: Curve | None
) -> None:
    artefacts = [replace(shop.artefact(), calibration=each) for each in (None, calibration)]
    rankers = [ranker_of(each, shop.ITEMS.items()) for each in artefacts]
    plain, calibrated = (ranked(each, fields, [*shop.ITEMS], variant=variant, top_k=8) for each in rankers)
    assert (calibrated.ids, calibrated.score) == (plain.ids, plain.score)
    sigmoid = np.array([1 / (1 + math.exp(-score)) for score in plain.score])
    expected = sigmoid if curve is None else curve.apply(sigmoid)
    assert calibrated.ctr == pytest.approx(expected.tolist(), rel=1e-12)
    assert calibrated.ctr == sorted(calibrated.ctr, reverse=True)
    assert (len(set(calibrated.ctr)) == 1) == (calibration is STEEP), "equal ones keep the order"
