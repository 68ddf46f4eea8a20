"""A rebuild beside the deltas changes no answer, holds nothing up, and is given up where a snapshot comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from server.model import live_model
from server.model.catalogue import Catalogue
from server.model.live_model import State
from server.ranking.served import ServedVersion
from tests.matrix import examples
from tests.server import shop
from tests.server.model.models import Run, answers, follow, loaded, runs, served, shop_loaded
from tests.server.ranked import ranked, ranker_of
from tests.server.slow_ranker import artefact_of


@examples(40)
@given(runs(), st.data())
def test_deltas_go_on_while_a_base_is_built_and_answers_stay_the_snapshots(
    run: Run, data: st.DataObject
) -> None:
    artefacts = [artefact_of(run.spec, step) for step in run.steps]
    model = loaded(artefacts[0], run.records)
    begins = data.draw(st.integers(0, len(artefacts) - 1))
    ends = data.draw(st.integers(begins, len(artefacts) - 1))
    work: Callable[[], None] = lambda: None  # noqa: E731
    for number, artefact in enumerate(artefacts):
        if number:
            before = model.parts.values.uid
            follow(model, artefacts[number - 1 : number + 1], number)
            model.released(before)
        if number == begins:
            work = model.begin_rebuild()
            assert model.finish_rebuild() is None
        if number == ends:
            work()
            assert model.finish_rebuild() is model.parts
        assert model.parts.version == number + 1
        expected = answers(ranker_of(artefact, run.records), run.requests, run.records)
        assert answers(served(model), run.requests, run.records) == expected


def test_items_that_came_meanwhile_are_kept() -> None:
    model = shop_loaded()
    work = model.begin_rebuild()
    some = Catalogue.build(FeaturePlan.of(shop.spec()), list(shop.ITEMS.items())[:3])
    model.with_catalogue(some, 5)
    work()
    assert model.finish_rebuild() is not None
    found = ServedVersion.bind(model.parts)
    assert (len(found.catalogue), found.items_generation) == (3, 5)
    assert ranked(found.ranker, {"age": "20"}, list(shop.ITEMS)).candidates.unknown == list(shop.ITEMS)[3:]


def test_a_snapshot_that_comes_meanwhile_is_what_counts() -> None:
    model = shop_loaded()
    work = model.begin_rebuild()
    second = shop.artefact(2)
    parts = model.load(2, "", second, Catalogue.build(FeaturePlan.of(second.spec), []))
    work()
    assert model.finish_rebuild() is None
    assert model.parts is parts


def test_a_delta_that_was_accepted_meanwhile_though_it_makes_items_equal_is_kept() -> None:
    model = shop_loaded()
    work = model.begin_rebuild()
    equal = artefact_of(shop.spec(), {b"age=20": (0.5, 1)})
    model.apply(2, "", equal.changes_since(shop.artefact(1), version=1), allow_equal=True)
    work()
    assert model.finish_rebuild() is model.parts
    assert model.parts.version == 2


def test_a_rebuild_without_memory_leaves_what_is_served_and_is_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_model, "FEWEST_FRESH", 1)
    monkeypatch.setattr(live_model, "FRESH_SHARE", 0.0)
    spec, keys = shop.spec(), dict.fromkeys(shop.masks(), (0.5, 1))
    before = artefact_of(spec, keys)
    model = loaded(before)
    after = artefact_of(spec, keys | {b"age=98": (1.0, 1), b"age=99": (1.0, 1)})
    parts = model.apply(2, "", after.changes_since(before, version=1))
    assert model.wants_rebuild
    with monkeypatch.context() as short:
        short.setattr(State, "rebuilt", _no_memory)
        model.begin_rebuild()()
        with pytest.raises(MemoryError):
            model.finish_rebuild()
    assert model.parts is parts
    assert not model.wants_rebuild
    assert model.rebuild().fresh is None


def _no_memory(*arguments: object) -> State:
    raise MemoryError
