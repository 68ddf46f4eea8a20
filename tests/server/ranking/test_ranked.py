"""The ranker with options: what it sums for uncertainty, and that options leave the scores as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec
from server.model.catalogue import Catalogue
from server.model.model import Model
from server.ranking.ranker import Ranker
from tests.matrix import examples
from tests.server.ranked import options_of, ranked
from tests.server.ranking.test_ranker import SHOP, SHOP_WEIGHTS, VARIANTS, parse, questions
from tests.server.slow_ranker import Weights, artefact_of

Question = tuple[ModelSpec, Weights, dict[str, Value], list[dict[str, Value]]]


def rate(key: bytes) -> float:
    return len(key) / 64.0


def model_of(spec: ModelSpec, weights: Weights) -> Model:
    """The model, with a learning rate that each key's length tells."""
    artefact = artefact_of(spec, weights)
    for number, key in enumerate(sorted(weights)):
        artefact.rate[number] = rate(key)
    return Model.build(artefact, 1)


def slow_uncertainty(spec: ModelSpec, weights: Weights, example: dict[str, Value], variant: int) -> float:
    keys = FeaturePlan.of(spec).keys(example)
    return sum(
        rate(key) * abs(x)
        for key, x, mask in keys
        if key in weights and (mask & weights[key][1]) >> variant & 1
    )


@examples(100)
@given(questions(), st.integers(0, VARIANTS - 1))
def test_uncertainty_is_the_sum_of_the_rates_and_the_score_is_untouched(
    question: Question, variant: int
) -> None:
    spec, weights, request, items = question
    model = model_of(spec, weights)
    records = [(str(index), item) for index, item in enumerate(items)]
    ranker = Ranker(model, Catalogue.build(model.plan, records))
    plain = ranked(ranker, request, [i for i, _ in records], [], variant)
    for named, spelled in (([i for i, _ in records], []), ([], records)):
        found = ranked(
            ranker, request, named, spelled, variant, options=options_of(exploration={"ucb": {"width": 0.0}})
        )
        assert (found.ids, found.score, found.ctr) == (plain.ids, plain.score, plain.ctr), "bit for bit"
        assert found.uncertainties is not None
        expected = [slow_uncertainty(spec, weights, {**request, **items[int(i)]}, variant) for i in found.ids]
        assert found.uncertainties.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@examples(50)
@given(questions(), st.integers(0, VARIANTS - 1), st.integers(1, 6))
def test_an_objective_of_score_is_the_plain_order(question: Question, variant: int, top_k: int) -> None:
    spec, weights, request, items = question
    model = model_of(spec, weights)
    records = [(str(index), item) for index, item in enumerate(items)]
    ranker = Ranker(model, Catalogue.build(model.plan, records))
    ids = [i for i, _ in records]
    plain = ranked(ranker, request, ids, [], variant, top_k)
    for objective in ("score", "score * 2"):  # doubling is exact; adding 1 would make ties of tiny scores
        found = ranked(ranker, request, ids, [], variant, top_k, options=options_of(objective=objective))
        assert (found.ids, found.score, found.ctr) == (plain.ids, plain.score, plain.ctr)
        assert found.uncertainties is None and found.propensities is None


def test_an_objective_may_name_the_uncertainty() -> None:
    model = model_of(parse(SHOP, [["age", "brand"]]), SHOP_WEIGHTS)
    catalogue = Catalogue.build(model.plan, [("shoe", {"brand": "nike", "bid": "3"}), ("hat", {"bid": "1"})])
    ranking = ranked(
        Ranker(model, catalogue),
        {"age": "25"},
        ["hat", "shoe"],
        [],
        options=options_of(objective="uncertainty * bid"),
    )
    assert ranking.ids == ["shoe", "hat"]
    assert ranking.objectives is not None and ranking.uncertainties is not None
    assert np.array_equal(ranking.objectives, ranking.uncertainties * [3.0, 1.0])
