"""The ranker against the slow one, over random specs, models, items and requests; and what it says of odd ones."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec, spec_from_json
from server.model.catalogue import Catalogue
from server.model.model import Model
from server.ranking.ranker import Ranker, Ranking
from tests.matrix import examples
from tests.server.ranked import options_of, ranked
from tests.server.slow_ranker import Weights, artefact_of, slow_knows_user, slow_scores

FIELDS = {
    "age": {"side": "user"},
    "likes": {"side": "user", "kind": "set"},
    "score": {"side": "user", "kind": "number"},
    "hour=*%": {"side": "context"},
    "brand": {"side": "item"},
    "tags": {"side": "item", "kind": "set"},
    "price": {"side": "item", "kind": "number"},
    "size": {"side": "item", "kind": "number", "bucket": "log"},
    "user_keys": {"side": "user", "kind": "raw"},
    "item_keys": {"side": "item", "kind": "raw"},
}
CROSSABLE = [name for name, field in FIELDS.items() if field.get("kind") != "raw"]
TEXTS = st.sampled_from(["", "a", "b", "ab", "a*b", "x=y", "5%", "é", "\x00"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "category": TEXTS,
    "set": st.one_of(
        st.lists(TEXTS, max_size=3), st.dictionaries(TEXTS, st.sampled_from([-1.5, 0, 1, 2.0]), max_size=3)
    ),
    "number": st.sampled_from([-2.5, 0, 1, 3, 10]),
    "raw": st.lists(st.sampled_from(["P_1", "P_2", "age=a", "bias"]), max_size=2),
}


def parse(fields: Mapping[str, Any], crosses: list[list[str]] = [], **more: Any) -> ModelSpec:  # noqa: B006
    document = {"model": {"name": "m"}, "input": {"label": "click", "item": "item"}, "fields": fields}
    document["crosses"] = [{"fields": names} for names in crosses]
    return spec_from_json(json.dumps(document | more))


VARIANTS = 3


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    crosses = st.lists(st.sampled_from(CROSSABLE), min_size=2, max_size=4, unique=True)
    some = draw(st.lists(crosses, max_size=6, unique_by=frozenset))
    without = st.lists(
        st.sampled_from([*CROSSABLE, *("*".join(n) for n in some if "hour=*%" not in n)]), max_size=2
    )
    variants = {"base": {"share": 1}} | {
        name: {"share": 0, "without": draw(without)} for name in ("plain", "lean")
    }
    values = draw(st.sampled_from(["single", "per_variant"]))
    return parse(FIELDS, some, variants=variants, learner={"values": values})


def values_of(side: str) -> st.SearchStrategy[dict[str, Value]]:
    names = [name for name, field in FIELDS.items() if (field["side"] == "item") == (side == "item")]
    return st.fixed_dictionaries(
        {}, optional={name: VALUES[FIELDS[name].get("kind", "category")] for name in names}
    )


@st.composite
def models(draw: st.DrawFn, spec: ModelSpec, known: list[dict[str, Value]]) -> Weights:
    """Weights for some of the keys that these examples make, and for some that none makes."""
    plan = FeaturePlan.of(spec)
    made = {key for example in known for key, _, _ in plan.keys(example)}
    strange = [cross.prefix + rest for cross in plan.crosses for rest in (b"", b"a", b"a*", b"a*b*a*b*a")]
    number = st.floats(-2, 2, width=32, allow_subnormal=False)
    own = spec.learner.values == "per_variant"
    weight = st.tuples(*[number] * VARIANTS) if own else number
    entry = st.one_of(st.none(), st.tuples(weight, st.integers(0, 2**VARIANTS - 1)))
    entries = {key: draw(entry) for key in sorted({*made, *strange})}
    return {key: (used(*found), found[1]) for key, found in entries.items() if found is not None}


def used(weight: float | tuple[float, ...], bits: int) -> float | tuple[float, ...]:
    """The weight, or each variant's own, 0 for a variant that does not use the key."""
    if not isinstance(weight, tuple):
        return weight
    return tuple(number if bits >> bit & 1 else 0.0 for bit, number in enumerate(weight))


@st.composite
def questions(draw: st.DrawFn) -> tuple[ModelSpec, Weights, dict[str, Value], list[dict[str, Value]]]:
    spec = draw(specs())
    request, items = draw(values_of("request")), draw(st.lists(values_of("item"), max_size=5))
    weights = draw(models(spec, [{**request, **item} for item in [*items, {}]]))
    return spec, weights, request, items


@examples(200)
@given(questions(), st.integers(0, VARIANTS - 1), st.one_of(st.none(), st.integers(1, 7)))
def test_scores_and_order_equal_the_slow_ranker(
    question: tuple[ModelSpec, Weights, dict[str, Value], list[dict[str, Value]]],
    variant: int,
    top_k: int | None,
) -> None:
    spec, weights, request, items = question
    model = Model.build(artefact_of(spec, weights), 1)
    records = [(str(index), item) for index, item in enumerate(items)]
    ranker = Ranker(model, Catalogue.build(model.plan, records))
    ids = [item_id for item_id, _ in records]
    found = ranked(ranker, request, ids, [], variant, top_k)

    expected = slow_scores(spec, weights, request, items, variant)
    assert len(found.ids) == min(len(ids), top_k or len(ids))
    for item_id, score, ctr in zip(found.ids, found.score, found.ctr, strict=True):
        assert score == pytest.approx(expected[int(item_id)], rel=1e-9, abs=1e-9)
        assert ctr == pytest.approx(0.5 + 0.5 * math.tanh(score / 2), rel=1e-9, abs=1e-12)
    everything = dict(
        zip(*(lambda r: (r.ids, r.score))(ranked(ranker, request, ids, [], variant)), strict=True)
    )
    best_first = sorted(ids, key=lambda item_id: (-everything[item_id], int(item_id)))
    assert found.ids == best_first[: len(found.ids)]

    spelled = ranked(ranker, request, [], records, variant, top_k)
    assert (spelled.ids, spelled.score) == (found.ids, found.score), "spelled out, bit for bit the same"


@examples(200)
@given(questions(), st.integers(0, VARIANTS - 1))
def test_a_user_is_known_by_any_key_of_theirs_whichever_way_candidates_are_ranked(
    question: tuple[ModelSpec, Weights, dict[str, Value], list[dict[str, Value]]], variant: int
) -> None:
    spec, weights, request, items = question
    plan = FeaturePlan.of(spec)
    made = {key for item in [*items, {}] for key, _, _ in plan.keys({**request, **item})}
    weights = {key: entry for key, entry in weights.items() if key in made}
    model = Model.build(artefact_of(spec, weights), 1)
    records = [(str(index), item) for index, item in enumerate(items)]
    ranker = Ranker(model, Catalogue.build(model.plan, records))
    expected = slow_knows_user(spec, weights, request, variant)
    for ids in ([item_id for item_id, _ in records], ["of whom nothing is known"]):
        assert ranked(ranker, request, ids, [], variant).knows_user == expected
        for others in ({"shadows": [0, 1, 2]}, {"options": options_of(objective="uncertainty")}):
            assert ranked(ranker, request, ids, [], variant, **others).knows_user == expected


SHOP = {
    "age": {"side": "user"},
    "hour": {},
    "brand": {"side": "item"},
    "sku": {"side": "item", "column": "item"},
}
SHOP_WEIGHTS: Weights = {
    b"bias": (-1.0, 1),
    b"age=25": (0.5, 1),
    b"brand=nike": (0.25, 1),
    b"age*brand=25*nike": (2.0, 1),
    b"sku=new": (0.125, 1),
}
ITEMS = [("shoe", {"brand": "nike"}), ("hat", {"brand": "puma"}), ("sock", {"brand": "puma"})]


def shop_ranker(weights: Weights = SHOP_WEIGHTS, items: list[tuple[str, dict[str, Value]]] = ITEMS) -> Ranker:  # type: ignore[assignment]
    model = Model.build(artefact_of(parse(SHOP, [["age", "brand"]]), weights), 7)
    return Ranker(model, Catalogue.build(model.plan, items))


def scores(ranking: Ranking) -> dict[str, float]:
    return dict(zip(ranking.ids, ranking.score, strict=True))


def test_equal_scores_stand_in_the_order_of_the_candidates() -> None:
    ranking = ranked(shop_ranker(), {"age": "25"}, ["sock", "shoe", "hat"])
    assert ranking.ids == ["shoe", "sock", "hat"]
    assert ranking.score == [1.75, -0.5, -0.5]


def test_named_and_spelled_items_are_ranked_together() -> None:
    ranking = ranked(shop_ranker(), {"age": "25"}, ["hat"], [("boot", {"brand": "nike"})])
    assert scores(ranking) == {"boot": 1.75, "hat": -0.5}


def test_an_unknown_item_is_scored_on_what_is_known_and_listed_once() -> None:
    ranking = ranked(shop_ranker(), {"age": "25"}, ["gone", "shoe", "new", "gone"])
    assert list(zip(ranking.ids, ranking.score, strict=True)) == [
        ("shoe", 1.75), ("new", -0.375), ("gone", -0.5), ("gone", -0.5)
    ]  # fmt: skip
    assert ranking.candidates.unknown == ["gone", "new"]


def test_an_item_without_its_own_id_among_its_features_has_it_all_the_same() -> None:
    ranker = shop_ranker(items=[("new", {}), ("other", {"sku": "new"})])
    assert scores(ranked(ranker, {}, ["new", "other"], [("new", {})])) == {"new": -0.875, "other": -0.875}


def test_unknown_items_without_an_id_field_get_the_requests_score() -> None:
    model = Model.build(artefact_of(parse({"age": {"side": "user"}}), SHOP_WEIGHTS), 1)
    ranking = ranked(Ranker(model, Catalogue.build(model.plan, [])), {"age": "25"}, ["x", "y"])
    assert (ranking.ids, ranking.score, ranking.candidates.unknown) == (["x", "y"], [-0.5, -0.5], ["x", "y"])


def test_unknown_request_fields_are_listed() -> None:
    ranking = ranked(shop_ranker(), {"age": "25", "colour": "red"}, ["shoe"])
    assert ranking.ids == ["shoe"]
    assert shop_ranker().features({"colour": "red"}).unknown == ["colour"]
    assert ranking.score == [1.75]


def test_an_items_field_in_the_request_is_refused_with_its_place() -> None:
    with pytest.raises(FieldValueError, match="brand: belongs to the item"):
        ranked(shop_ranker(), {"brand": "nike"}, ["shoe"])


def test_a_request_value_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(FieldValueError, match="age: got a list"):
        ranked(shop_ranker(), {"age": ["25", "31"]}, ["shoe"])


def test_no_candidates_give_an_empty_ranking() -> None:
    ranking = ranked(shop_ranker(), {"age": "25"}, [])
    assert (ranking.ids, ranking.ctr, ranking.score) == ([], [], [])


def test_an_empty_model_gives_even_chances() -> None:
    ranking = ranked(shop_ranker({}), {"age": "25"}, ["shoe", "hat"])
    assert (ranking.ids, ranking.ctr) == (["shoe", "hat"], [0.5, 0.5])


@pytest.mark.parametrize("item_id", ["a\x00b", "", "naïve", "\ud800"])
def test_ids_of_every_kind_are_found(item_id: str) -> None:
    ranker = shop_ranker(items=[("a", {}), (item_id, {"brand": "nike"}), ("b", {})])
    ranking = ranked(ranker, {}, ["b", item_id, "a"])
    assert ranking.ids == [item_id, "b", "a"]
    assert not ranking.candidates.unknown


def test_the_last_record_of_an_id_counts() -> None:
    ranker = shop_ranker(items=[("shoe", {"brand": "puma"}), ("hat", {}), ("shoe", {"brand": "nike"})])
    assert scores(ranked(ranker, {}, ["shoe", "hat"])) == {"shoe": -0.75, "hat": -1.0}


def test_a_stored_value_that_does_not_fit_counts_as_missing_and_is_reported() -> None:
    spec = parse({"price": {"side": "item", "kind": "number"}, "age": {"side": "user"}})
    model = Model.build(artefact_of(spec, {b"bias": (1.0, 1), b"price=": (0.5, 1)}), 1)
    catalogue = Catalogue.build(model.plan, [("dear", {"price": "4"}), ("odd", {"price": "four"})])
    assert scores(ranked(Ranker(model, catalogue), {}, ["dear", "odd"])) == {"dear": 3.0, "odd": 1.0}
    assert catalogue.problems == ("item 'odd': price: got 'four', expected a number",)


def test_a_catalogue_of_another_plan_is_refused() -> None:
    model = Model.build(artefact_of(parse(SHOP), SHOP_WEIGHTS), 1)
    other = FeaturePlan.of(parse({"colour": {"side": "item"}}))
    with pytest.raises(ValueError, match="another plan"):
        Ranker(model, Catalogue.build(other, []))


def test_long_and_short_ranges_and_many_candidates_agree_with_the_slow_ranker() -> None:
    spec = parse(SHOP, [["age", "brand"], ["hour", "sku"], ["age", "hour", "brand", "sku"]])
    items = [(f"i{n}", {"brand": f"b{n % 90}"}) for n in range(3000)]
    weights = {f"hour*sku=7*i{n}".encode(): (n % 17 - 8.0, 1) for n in range(0, 3000, 3)}
    weights |= {f"age*brand=25*b{n}".encode(): (n % 5 - 2.0, 1) for n in range(0, 90, 2)}
    weights |= {f"age*hour*brand*sku=25*7*b{n % 90}*i{n}".encode(): (0.5, 1) for n in range(0, 3000, 7)}
    model = Model.build(artefact_of(spec, weights), 1)
    ranker = Ranker(model, Catalogue.build(model.plan, items))
    for some in (items[:5], items[100:300], items):
        expected = slow_scores(spec, weights, {"age": "25", "hour": 7}, [{"sku": i, **f} for i, f in some], 0)
        assert scores(ranked(ranker, {"age": "25", "hour": 7}, [i for i, _ in some])) == pytest.approx(
            {item_id: score for (item_id, _), score in zip(some, expected, strict=True)}
        )


@pytest.mark.parametrize("brands", [range(90), range(30, 60), range(0, 90, 3), [7], [3, 4, 60]])
@pytest.mark.parametrize("shadows", [(), (0,)])
def test_ranges_with_and_without_gaps_agree_with_the_slow_ranker(
    brands: Sequence[int], shadows: tuple[int, ...]
) -> None:
    """Item parts are numbered over all ages, so that the range of one age may lack some, at its ends or between."""
    spec = parse(SHOP, [["age", "brand"]])
    items = [(f"i{n:02}", {"brand": f"b{n:02}"}) for n in range(100)]
    weights = {b"age*brand=31*b%02d" % n: (1.0, 1) for n in range(90)}
    weights |= {b"age*brand=25*b%02d" % n: (n % 5 - 2.5, 1) for n in brands}
    model = Model.build(artefact_of(spec, weights), 1)
    ranker = Ranker(model, Catalogue.build(model.plan, items))
    for some in (items[:5], items[:2] * 2, items[20:70], items):
        expected = slow_scores(spec, weights, {"age": "25"}, [{"sku": i, **f} for i, f in some], 0)
        answer = ranked(ranker, {"age": "25"}, [item_id for item_id, _ in some], shadows=shadows)
        assert scores(answer) == {item_id: score for (item_id, _), score in zip(some, expected, strict=True)}


def test_threads_share_one_ranker() -> None:
    ranker, wrong = shop_ranker(), []

    def ask(age: str, best: float) -> None:
        for _ in range(300):
            if ranked(ranker, {"age": age}, ["hat", "shoe"] * 20).score[0] != best:
                wrong.append(age)

    threads = [threading.Thread(target=ask, args=pair) for pair in [("25", 1.75), ("31", -0.75)] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_id_that_does_not_fit_the_id_field_is_no_feature() -> None:
    spec = parse({"sku": {"side": "item", "column": "item", "kind": "number"}})
    model = Model.build(artefact_of(spec, {b"bias": (1.0, 1), b"sku=": (0.5, 1)}), 1)
    ranker = Ranker(model, Catalogue.build(model.plan, [("6", {}), ("six", {})]))
    assert scores(ranked(ranker, {}, ["6", "six", "8", "eight"])) == {
        "6": 4.0,
        "six": 1.0,
        "8": 5.0,
        "eight": 1.0,
    }
