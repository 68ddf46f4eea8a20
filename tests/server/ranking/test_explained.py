"""Explanations against the ranker, over the random specs and models that the ranker itself is tested with."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec
from server.model.catalogue import Catalogue
from server.model.live_model import LiveModel
from server.model.model import Model
from server.ranking.explain import ROUNDING, Group, _rest, explained, item_tokens, request_tokens
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from tests.matrix import examples
from tests.server.ranked import ranked
from tests.server.ranking.test_ranker import SHOP, SHOP_WEIGHTS, VARIANTS, parse, questions
from tests.server.slow_ranker import Weights, artefact_of


def added_up(groups: tuple[Group, ...]) -> float:
    total = 0.0
    for group in groups:
        for key in group.keys:
            total += key.value
    return total


@examples(150)
@given(questions(), st.integers(0, VARIANTS - 1))
def test_contributions_add_up_to_the_rankers_score_exactly(
    question: tuple[ModelSpec, Weights, dict[str, Value], list[dict[str, Value]]], variant: int
) -> None:
    spec, weights, request, items = question
    model = Model.build(artefact_of(spec, weights), 1)
    records = [(str(index), item) for index, item in enumerate(items)]
    catalogue = Catalogue.build(model.plan, records)
    ranking = ranked(Ranker(model, catalogue), request, [i for i, _ in records], records, variant)
    for item_id, score in zip(ranking.ids, ranking.score, strict=True):
        for features in (None, items[int(item_id)]):
            tokens = request_tokens(model.plan, model.request_tokens.of(request)) | item_tokens(
                model, catalogue, item_id, features
            )
            groups = explained(model, tokens, variant, score)
            assert added_up(groups) == score
            for group in groups:
                if group.name == ROUNDING:
                    assert abs(group.sum) <= 1e-12 * max(
                        1.0, sum(abs(k.value) for g in groups for k in g.keys)
                    )
                    continue
                for key in group.keys:
                    own, bits = weights[key.key]
                    assert bits >> variant & 1
                    assert key.weight == (own[variant] if isinstance(own, tuple) else own)
            # Every key of the definition that the model holds for the variant is there, once for each time it is made.
            made = [
                key
                for key, _, mask in FeaturePlan.of(spec).keys(
                    {**request, **items[int(item_id)], **own_id(model, item_id, items)}
                )
                if key in weights and (mask & weights[key][1]) >> variant & 1
            ]
            shown = [key.key for group in groups if group.name != ROUNDING for key in group.keys]
            assert sorted(shown) == sorted(made)


def own_id(model: Model, item_id: str, items: list[dict[str, Value]]) -> dict[str, Value]:
    return {name: item_id for name in model.item_id_fields if name not in items[int(item_id)]}


def test_keys_stand_under_the_field_or_cross_that_made_them() -> None:
    model = Model.build(artefact_of(parse(SHOP, [["age", "brand"]]), SHOP_WEIGHTS), 1)
    catalogue = Catalogue.build(model.plan, [("shoe", {"brand": "nike"}), ("new", {})])
    request = request_tokens(model.plan, model.request_tokens.of({"age": "25", "hour": "7"}))
    groups = explained(model, request | item_tokens(model, catalogue, "shoe", None), 0, 1.75)
    assert [(g.name, g.sum, [k.key for k in g.keys]) for g in groups] == [
        ("bias", -1.0, [b"bias"]),
        ("age", 0.5, [b"age=25"]),
        ("brand", 0.25, [b"brand=nike"]),
        ("age*brand", 2.0, [b"age*brand=25*nike"]),
    ]
    assert groups[0].keys[0].rate == 1.0
    unknown = explained(model, request | item_tokens(model, catalogue, "new", None), 0, -0.375)
    assert [group.name for group in unknown] == ["bias", "age", "sku"]
    assert [
        g.name for g in explained(model, request | item_tokens(model, catalogue, "gone", None), 0, -0.5)
    ] == [
        "bias",
        "age",
    ]


def test_an_item_spelled_out_with_nothing_new_has_the_tokens_of_its_record() -> None:
    model = Model.build(artefact_of(parse(SHOP, [["age", "brand"]]), SHOP_WEIGHTS), 1)
    catalogue = Catalogue.build(model.plan, [("shoe", {"brand": "nike"})])
    (_, nothing_new), = catalogue.under([("shoe", {})])  # fmt: skip
    as_it_is = item_tokens(model, catalogue, "shoe", None)
    assert as_it_is["brand"]
    assert item_tokens(model, catalogue, "shoe", nothing_new) == as_it_is


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(st.lists(NUMBERS, max_size=30), st.one_of(NUMBERS, st.floats(-1e-9, 1e-9)))
@example([1.0], 1e-30)
@example([0.1] * 10, 1.0)
@example([1e6, -1e6, 1e-300], 0.0)
def test_what_is_left_over_is_at_most_three_numbers(values: list[float], score: float) -> None:
    rest = _rest(values, score)
    total = 0.0
    for value in [*values, *rest]:
        total += value
    assert total == score
    assert len(rest) <= 3


@pytest.mark.parametrize("score", [math.inf, -math.inf, math.nan])
def test_a_score_that_is_not_finite_has_no_rounding(score: float) -> None:
    assert _rest([1.0], score) == []


def test_keys_that_a_delta_brought_changed_or_took_out_are_explained_as_they_are_ranked() -> None:
    spec = parse(SHOP, [["age", "brand"]])
    before = {key: SHOP_WEIGHTS[key] for key in (b"bias", b"age=25", b"brand=nike")}
    after = {key: weight for key, weight in SHOP_WEIGHTS.items() if key != b"brand=nike"} | {
        b"bias": (-0.3, 1)
    }
    first, second = artefact_of(spec, before), artefact_of(spec, after)
    live = LiveModel("shop")
    live.load(1, "", first, Catalogue.build(FeaturePlan.of(spec), [("shoe", {"brand": "nike"})]))
    live.apply(2, "", second.changes_since(first, version=1))
    served = ServedVersion.bind(live.parts)
    assert len(served.model.fresh) > 0
    ranking = ranked(served.ranker, {"age": "25"}, ["shoe"])
    request = request_tokens(served.model.plan, served.ranker.features({"age": "25"}).tokens)
    tokens = request | item_tokens(served.model, served.catalogue, "shoe", None)
    groups = explained(served.model, tokens, 0, ranking.score[0])
    assert added_up(groups) == ranking.score[0]
    assert [group.name for group in groups if group.name != ROUNDING] == ["bias", "age", "age*brand"]
