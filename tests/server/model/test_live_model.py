"""A server that came to a version by deltas answers bit for bit as one that loaded its snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import ArtefactError
from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec
from server.model.catalogue import Catalogue
from server.model.live_model import LiveModel
from server.model.shared_memory import Parts, SharedBlock
from server.ranking.served import ServedVersion
from tests.matrix import examples
from tests.server import shop
from tests.server.model.models import Records, answers, follow, fresh_ranker, live, runs, told
from tests.server.ranked import ranked
from tests.server.ranking.test_ranker import SHOP, parse
from tests.server.slow_ranker import Weights, artefact_of

Run = tuple[ModelSpec, list[Weights], list[dict[str, Value]], Records]


@examples(60)
@given(runs())
def test_after_every_delta_answers_are_those_of_the_snapshot_bit_for_bit(run: Run) -> None:
    spec, steps, requests, records = run
    model = live(spec, steps[0], records)
    for number in range(len(steps)):
        if number:
            follow(model, spec, steps[number - 1 : number + 1], number)
        expected = fresh_ranker(artefact_of(spec, steps[number]), records)
        served = ServedVersion.bind(model.parts)
        assert served.version == number + 1
        assert answers(served.ranker, requests, records) == answers(expected, requests, records)


@pytest.mark.slow
@examples(40)
@given(runs(), st.booleans())
def test_rebuilding_restoring_and_new_items_change_no_answer(run: Run, rebuild: bool) -> None:
    spec, steps, requests, records = run
    model = live(spec, steps[0], [])
    follow(model, spec, steps[:-1])
    if rebuild:
        model.rebuild()
        assert model.parts.fresh is None
    model.with_catalogue(Catalogue.build(ServedVersion.bind(model.parts).model.plan, records), 2)
    other = LiveModel("m")
    other.restore(model.parts)
    follow(other, spec, steps[-2:], len(steps) - 1)
    expected = fresh_ranker(artefact_of(spec, steps[-1]), records)
    served = ServedVersion.bind(other.parts)
    assert served.items_generation == 2
    assert answers(served.ranker, requests, records) == answers(expected, requests, records)


def loaded() -> LiveModel:
    model, artefact = LiveModel(shop.NAME), shop.artefact(1)
    plan = ServedVersion.bind(model.load(1, artefact.sha256, artefact, catalogue())).model.plan
    assert plan.variants == shop.VARIANTS
    return model


def catalogue() -> Catalogue:
    return Catalogue.build(FeaturePlan.of(shop.spec()), shop.ITEMS.items())


def test_a_delta_of_another_parent_is_refused_and_changes_nothing() -> None:
    model, third = loaded(), shop.artefact(3)
    before = model.parts
    for wrong in (
        third.changes_since(shop.artefact(2), version=1),
        third.changes_since(shop.artefact(1), version=7),
    ):
        with pytest.raises(ArtefactError, match="fetch the versions between, or a snapshot"):
            model.apply(2, wrong.sha256, wrong)
    assert model.parts is before


def test_a_delta_that_makes_another_content_is_refused_and_changes_nothing() -> None:
    model = loaded()
    before = model.parts
    delta = shop.artefact(2).changes_since(shop.artefact(1), version=1)
    damaged = replace(delta, weight=delta.weight * 2)
    with pytest.raises(ArtefactError, match="makes the content"):
        model.apply(2, damaged.sha256, damaged)
    assert model.parts is before
    model.apply(2, delta.sha256, delta)
    assert model.parts.version == 2


def test_parts_on_disk_are_served_again(tmp_path: Path) -> None:
    model = loaded()
    delta = shop.artefact(2).changes_since(shop.artefact(1), version=1)
    parts = model.apply(2, delta.sha256, delta)
    for role in ("base", "values", "items", "catalogue"):
        getattr(parts, role).save(tmp_path / role)
    blocks = {role: SharedBlock.load(tmp_path / role) for role in ("base", "values", "items", "catalogue")}
    again = Parts(parts.name, 2, parts.sha256, parts.content, 0, fresh=None, **blocks)
    one, other = ServedVersion.bind(parts), ServedVersion.bind(again)
    fields = {"age": "20", "likes": ["red"], "device": "u1"}
    ids = list(shop.ITEMS)
    assert told(ranked(other.ranker, fields, ids)) == told(ranked(one.ranker, fields, ids))


def test_a_model_without_a_version_says_so() -> None:
    with pytest.raises(ArtefactError, match="no version has been loaded"):
        _ = LiveModel("m").parts


def test_long_and_short_ranges_of_fresh_keys_score_as_the_snapshots() -> None:
    spec = parse(SHOP, [["age", "brand"], ["hour", "sku"], ["age", "hour", "brand", "sku"]])
    items: Records = [(f"i{n}", {"brand": f"b{n % 90}"}) for n in range(3000)]
    whole: Weights = {f"hour*sku=7*i{n}".encode(): (n % 17 - 8.5, 1) for n in range(0, 3000, 2)}
    whole |= {f"age*brand=25*b{n}".encode(): (n % 5 - 2.25, 1) for n in range(0, 90, 2)}
    whole |= {f"age*hour*brand*sku=25*7*b{n % 90}*i{n}".encode(): (0.7, 1) for n in range(0, 3000, 7)}
    some = {key: entry for number, (key, entry) in enumerate(sorted(whole.items())) if number % 3 == 0}
    model = live(spec, some, items)
    follow(model, spec, [some, whole])
    ours, theirs = ServedVersion.bind(model.parts).ranker, fresh_ranker(artefact_of(spec, whole), items)
    request: dict[str, Value] = {"age": "25", "hour": 7}
    for few in (items[:5], items[100:300], items):
        ids = [item_id for item_id, _ in few]
        assert told(ranked(ours, request, ids)) == told(ranked(theirs, request, ids))
        shadowed = ranked(ours, request, ids, shadows=(0,))
        assert (shadowed.ids, shadowed.score) == (
            ranked(theirs, request, ids).ids,
            ranked(theirs, request, ids).score,
        )


def test_a_model_of_thirty_two_variants_follows_deltas() -> None:
    variants = {f"v{n}": {} for n in range(32)}
    spec = parse(SHOP, [["age", "brand"]], variants=variants, learner={"values": "per_variant"})
    keys = (b"bias", b"age=25", b"brand=nike", b"age*brand=25*nike", b"sku=shoe")
    steps: list[Weights] = [
        {
            key: (tuple(float(n + at + step) for n in range(32)), 2**32 - 1)
            for at, key in enumerate(keys[: 2 + step])
        }
        for step in range(4)
    ]
    items: Records = [("shoe", {"brand": "nike"})]
    model = live(spec, steps[0], items)
    follow(model, spec, steps)
    ours, theirs = ServedVersion.bind(model.parts).ranker, fresh_ranker(artefact_of(spec, steps[-1]), items)
    for variant in range(32):
        asked = {"age": "25"}, ["shoe"], items, variant
        assert told(ranked(ours, *asked)) == told(ranked(theirs, *asked))  # type: ignore[arg-type]
    shadows = ranked(ours, {"age": "25"}, ["shoe"], shadows=range(32)).shadows
    assert [s.score for s in shadows] == [
        ranked(theirs, {"age": "25"}, ["shoe"], (), v).score for v in range(32)
    ]


def test_a_catalogue_of_another_plan_is_refused_and_changes_nothing() -> None:
    model = loaded()
    before = model.parts
    other = Catalogue.build(FeaturePlan.of(parse({"colour": {"side": "item"}})), [])
    with pytest.raises(ArtefactError, match="build it again"):
        model.with_catalogue(other)
    with pytest.raises(ArtefactError, match="build it again"):
        model.load(2, "", shop.artefact(2), other)
    assert model.parts is before


def test_parts_of_two_versions_are_refused() -> None:
    model, spec = loaded(), parse(SHOP)
    other = live(spec, {b"bias": (1.0, 1)}, [])
    with pytest.raises(ArtefactError, match="parts of two versions"):
        ServedVersion.bind(replace(model.parts, values=other.parts.values))


def test_parts_of_another_model_are_not_restored() -> None:
    with pytest.raises(ArtefactError, match="parts of model 'shop', expected 'm'"):
        LiveModel("m").restore(loaded().parts)


def test_a_key_is_looked_up_in_both_layers_and_not_found_once_it_is_gone() -> None:
    spec = parse(SHOP, [["age", "brand"]])
    steps: list[Weights] = [
        {b"age=25": (0.5, 1), b"bias": (-1.0, 1)},
        {b"age=31": (0.25, 1), b"bias": (-2.0, 1)},
    ]
    model = live(spec, steps[0], [])
    follow(model, spec, steps)
    found = ServedVersion.bind(model.parts).model
    entries = [found.look_up(key, 0) for key in (b"bias", b"age=31", b"age=25", b"age=2")]
    assert [entry and entry.weight for entry in entries] == [-2.0, 0.25, None, None]
    assert [entry and entry.rate for entry in entries[:2]] == [1.0, 1.0]
