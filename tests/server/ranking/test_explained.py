"""Explanations against the ranker, over the random specs and models that the ranker itself is tested with."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.explain import ROUNDING, Group, _rest, explained, item_tokens, request_tokens
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from tests.matrix import examples
from tests.server.model.models import SHOP, SHOP_WEIGHTS, VARIANTS, Question, follow, loaded, parse, questions
from tests.server.ranked import ranked
from tests.server.slow_ranker import artefact_of


def added_up(groups: tuple[Group, ...]) -> float:
    total = 0.0
    for group in groups:
        for key in group.keys:
            total += key.value
    return total


@examples(150)
@given(questions(), st.integers(0, VARIANTS - 1))
def test_contributions_add_up_to_the_rankers_score_exactly(question: Question, variant: int) -> None:
    spec, weights, request, items = question
    model = Model.build(artefact_of(spec, weights), 1)
    catalogue = Catalogue.build(model.plan, question.records)
    ranking = ranked(Ranker(model, catalogue), request, question.ids, question.records, variant)
    for item_id, score in zip(ranking.ids, ranking.score, strict=True):
        item = items[int(item_id)]
        own_id = {name: item_id for name in model.item_id_fields if name not in item}
        made = sorted(
            key
            for key, _, mask in FeaturePlan.of(spec).keys({**request, **item, **own_id})
            if key in weights and (mask & weights[key][1]) >> variant & 1
        )
        for features in (None, item):
            tokens = request_tokens(model.plan, model.request_tokens.of(request))
            tokens = tokens | item_tokens(model, catalogue, item_id, features)
            groups = explained(model, tokens, variant, score)
            assert added_up(groups) == score
            rounding = [abs(group.sum) for group in groups if group.name == ROUNDING]
            shown = [key for group in groups if group.name != ROUNDING for key in group.keys]
            assert sum(rounding) <= 1e-12 * max(1.0, sum(abs(k.value) for g in groups for k in g.keys))
            # Every key of the definition that the model holds for the variant, once for each time it is made.
            assert sorted(key.key for key in shown) == made
            for key in shown:
                own, _ = weights[key.key]
                assert key.weight == (own[variant] if isinstance(own, tuple) else own)


def test_keys_stand_under_the_field_or_cross_that_made_them() -> None:
    model = Model.build(artefact_of(parse(SHOP, [["age", "brand"]]), SHOP_WEIGHTS), 1)
    catalogue = Catalogue.build(model.plan, [("shoe", {"brand": "nike"}), ("new", {})])
    request = request_tokens(model.plan, model.request_tokens.of({"age": "25", "hour": "7"}))

    def groups_of(item_id: str, score: float) -> tuple[Group, ...]:
        return explained(model, request | item_tokens(model, catalogue, item_id, None), 0, score)

    groups = groups_of("shoe", 1.75)
    assert [(g.name, g.sum, [k.key for k in g.keys]) for g in groups] == [
        ("bias", -1.0, [b"bias"]),
        ("age", 0.5, [b"age=25"]),
        ("brand", 0.25, [b"brand=nike"]),
        ("age*brand", 2.0, [b"age*brand=25*nike"]),
    ]
    assert groups[0].keys[0].rate == 1.0
    assert [group.name for group in groups_of("new", -0.375)] == ["bias", "age", "sku"]
    assert [group.name for group in groups_of("gone", -0.5)] == ["bias", "age"]
    # An item spelled out with nothing new has the tokens of its record.
    (_, nothing_new), = catalogue.under([("shoe", {})])  # fmt: skip
    as_it_is = item_tokens(model, catalogue, "shoe", None)
    assert as_it_is["brand"] and item_tokens(model, catalogue, "shoe", nothing_new) == as_it_is


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(st.lists(NUMBERS, max_size=30), st.one_of(NUMBERS, st.floats(-1e-9, 1e-9)))
@example([1.0], 1e-30)
@example([0.1] * 10, 1.0)
@example([1e6, -1e6, 1e-300], 0.0)
def test_what_is_left_over_is_at_most_three_numbers(values: list[float], score: float) -> None:
    assert [_rest([1.0], odd) for odd in (math.inf, -math.inf, math.nan)] == [[], [], []]
    rest = _rest(values, score)
    total = 0.0
    for value in [*values, *rest]:
        total += value
    assert total == score
    assert len(rest) <= 3


def test_keys_that_a_delta_brought_changed_or_took_out_are_explained_as_they_are_ranked() -> None:
    spec = parse(SHOP, [["age", "brand"]])
    before = {key: SHOP_WEIGHTS[key] for key in (b"bias", b"age=25", b"brand=nike")}
    after = {k: weight for k, weight in SHOP_WEIGHTS.items() if k != b"brand=nike"} | {b"bias": (-0.3, 1)}
    steps = [artefact_of(spec, weights) for weights in (before, after)]
    live = loaded(steps[0], [("shoe", {"brand": "nike"})])
    ranker = follow(live, steps)
    served = ServedVersion.bind(live.parts)
    assert len(served.model.fresh) > 0
    ranking = ranked(ranker, {"age": "25"}, ["shoe"])
    request = request_tokens(served.model.plan, served.ranker.features({"age": "25"}).tokens)
    tokens = request | item_tokens(served.model, served.catalogue, "shoe", None)
    groups = explained(served.model, tokens, 0, ranking.score[0])
    assert added_up(groups) == ranking.score[0]
    assert [group.name for group in groups if group.name != ROUNDING] == ["bias", "age", "age*brand"]
