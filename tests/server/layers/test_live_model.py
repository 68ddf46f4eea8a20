"""A server that came to a version by deltas answers bit for bit as one that loaded its snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.errors import ArtefactError
from model_store.features import FeaturePlan
from model_store.spec import ModelSpec
from model_store.values import Value
from server.catalogue import Catalogue
from server.layers.live_model import LiveModel
from server.layers.parts import Parts
from server.mapped import Mapped
from server.serving import Serving
from tests.server import shop
from tests.server.layers.models import Records, answers, follow, fresh_ranker, live, runs, told
from tests.server.slow_ranker import Weights, artefact_of

Run = tuple[ModelSpec, list[Weights], list[dict[str, Value]], Records]


@settings(max_examples=60)
@given(runs())
def test_after_every_delta_answers_are_those_of_the_snapshot_bit_for_bit(run: Run) -> None:
    spec, steps, requests, records = run
    model = live(spec, steps[0], records)
    for number in range(len(steps)):
        if number:
            follow(model, spec, steps[number - 1 : number + 1], number)
        expected = fresh_ranker(artefact_of(spec, steps[number]), records)
        serving = Serving.bind(model.parts)
        assert serving.version == number + 1
        assert answers(serving.ranker, requests, records) == answers(expected, requests, records)


@settings(max_examples=40)
@given(runs(), st.booleans())
def test_rebuilding_restoring_and_new_items_change_no_answer(run: Run, rebuild: bool) -> None:
    spec, steps, requests, records = run
    model = live(spec, steps[0], [])
    follow(model, spec, steps[:-1])
    if rebuild:
        model.rebuild()
        assert model.parts.fresh is None
    model.with_catalogue(Catalogue.build(Serving.bind(model.parts).model.plan, records), 2)
    other = LiveModel("m")
    other.restore(model.parts)
    follow(other, spec, steps[-2:], len(steps) - 1)
    expected = fresh_ranker(artefact_of(spec, steps[-1]), records)
    serving = Serving.bind(other.parts)
    assert serving.items_generation == 2
    assert answers(serving.ranker, requests, records) == answers(expected, requests, records)


def loaded() -> LiveModel:
    model, artefact = LiveModel(shop.NAME), shop.artefact(1)
    plan = Serving.bind(model.load(1, artefact.sha256, artefact, catalogue())).model.plan
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
    blocks = {role: Mapped.load(tmp_path / role) for role in ("base", "values", "items", "catalogue")}
    again = Parts(parts.name, 2, parts.sha256, parts.content, 0, fresh=None, **blocks)
    one, other = Serving.bind(parts), Serving.bind(again)
    fields = {"age": "20", "likes": ["red"], "device": "u1"}
    ids = list(shop.ITEMS)
    assert told(other.ranker.rank(fields, ids)) == told(one.ranker.rank(fields, ids))


def test_a_model_without_a_version_says_so() -> None:
    with pytest.raises(ArtefactError, match="no version has been loaded"):
        _ = LiveModel("m").parts
