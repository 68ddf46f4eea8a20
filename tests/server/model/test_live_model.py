"""A server that came to a version by deltas answers bit for bit as one that loaded its snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_store.errors import ArtefactError
from model_store.features.features import FeaturePlan
from model_store.spec.values import Value
from server.model import live_model
from server.model.columns import Catalogue
from server.model.live_model import LiveModel, ModelState
from server.ranking.served import ServedVersion
from tests.server import shop
from tests.server.model.models import (
    SHOP,
    Records,
    follow,
    loaded,
    parse,
    shop_loaded,
    told,
)
from tests.server.ranked import ranked, ranker_of, scores
from tests.server.slow_ranker import Weights, artefact_of, slow_scores


def test_a_delta_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    model, third = shop_loaded(), shop.artefact(3)
    before = model.parts
    delta = shop.artefact(2).changes_since(shop.artefact(1), version=1)
    for wrong, message in (
        (third.changes_since(shop.artefact(2), version=1), "fetch the versions between, or a snapshot"),
        (third.changes_since(shop.artefact(1), version=7), "fetch the versions between, or a snapshot"),
        (replace(delta, weight=delta.weight * 2), "makes the content"),
    ):
        with pytest.raises(ArtefactError, match=message):
            model.apply(2, wrong.sha256, wrong)
        assert model.parts is before
    model.apply(2, delta.sha256, delta)
    assert model.parts.version == 2


def test_long_and_short_ranges_of_old_and_fresh_keys_score_as_the_slow_ranker() -> None:
    spec = parse(SHOP, [["age", "brand"], ["hour", "sku"], ["age", "hour", "brand", "sku"]])
    items: Records = [(f"i{n}", {"brand": f"b{n % 90}"}) for n in range(3000)]
    whole: Weights = {f"hour*sku=7*i{n}".encode(): (n % 17 - 8.5, 1) for n in range(0, 3000, 2)}
    whole |= {f"age*brand=25*b{n}".encode(): (n % 5 - 2.25, 1) for n in range(0, 90, 2)}
    whole |= {f"age*hour*brand*sku=25*7*b{n % 90}*i{n}".encode(): (0.7, 1) for n in range(0, 3000, 7)}
    some = {key: entry for number, (key, entry) in enumerate(sorted(whole.items())) if number % 3 == 0}
    steps = [artefact_of(spec, weights) for weights in (some, whole)]
    ours, theirs = follow(loaded(steps[0], items), steps), ranker_of(steps[1], items)
    request: dict[str, Value] = {"age": "25", "hour": 7}
    for few in (items[:5], items[100:300], items):
        asked = request, [item_id for item_id, _ in few]
        alone = ranked(theirs, *asked)
        expected = slow_scores(spec, whole, request, [{"sku": name, **item} for name, item in few], 0)
        assert scores(alone) == pytest.approx(dict(zip(asked[1], expected, strict=True)))
        assert told(ranked(ours, *asked)) == told(alone)
        shadowed = ranked(ours, *asked, shadows=(0,))
        assert (shadowed.ids, shadowed.score) == (alone.ids, alone.score)


def test_a_model_of_thirty_two_variants_follows_deltas() -> None:
    variants = {f"v{n}": {} for n in range(32)}
    spec = parse(SHOP, [["age", "brand"]], variants=variants, learner={"values": "per_variant"})
    keys = (b"bias", b"age=25", b"brand=nike", b"age*brand=25*nike", b"sku=shoe")

    def step(number: int) -> Weights:
        of_keys = enumerate(keys[: 2 + number])
        return {k: (tuple(float(n + at + number) for n in range(32)), 2**32 - 1) for at, k in of_keys}

    artefacts = [artefact_of(spec, step(number)) for number in range(4)]
    items: Records = [("shoe", {"brand": "nike"})]
    ours = follow(loaded(artefacts[0], items), artefacts)
    expected = [sum(range(n + 3, n + 8)) for n in range(32)]
    found = [ranked(ours, {"age": "25"}, ["shoe"], items, variant).score for variant in range(32)]
    assert found == [[score, score] for score in expected]
    shadows = ranked(ours, {"age": "25"}, ["shoe"], shadows=range(32)).shadows
    assert [shadow.score for shadow in shadows] == [[score] for score in expected]


def test_parts_that_do_not_belong_together_are_refused_and_change_nothing() -> None:
    with pytest.raises(ArtefactError, match="no version has been loaded"):
        _ = LiveModel("m").parts
    model = shop_loaded()
    before = model.parts
    other = Catalogue.build(FeaturePlan.of(parse({"colour": {"side": "item"}})), [])
    with pytest.raises(ArtefactError, match="build it again"):
        model.with_catalogue(other)
    with pytest.raises(ArtefactError, match="build it again"):
        model.load(2, "", shop.artefact(2), other)
    small = loaded(artefact_of(parse(SHOP), {b"bias": (1.0, 1)}))
    with pytest.raises(ArtefactError, match="parts of two versions"):
        ServedVersion.bind(replace(model.parts, values=small.parts.values))
    with pytest.raises(ArtefactError, match="parts of model 'shop', expected 'm'"):
        LiveModel("m").restore(model.parts)
    assert model.parts is before


def test_a_key_is_looked_up_in_both_layers_and_not_found_once_it_is_gone() -> None:
    spec = parse(SHOP, [["age", "brand"]])
    before: Weights = {b"age=25": (0.5, 1), b"bias": (-1.0, 1)}
    after: Weights = {b"age=31": (0.25, 1), b"bias": (-2.0, 1)}
    steps = [artefact_of(spec, before), artefact_of(spec, after)]
    model = loaded(steps[0])
    follow(model, steps)
    found = ServedVersion.bind(model.parts).model
    entries = [found.look_up(key, 0) for key in (b"bias", b"age=31", b"age=25", b"age=2")]
    assert [entry and entry.weight for entry in entries] == [-2.0, 0.25, None, None]
    assert [entry and entry.rate for entry in entries[:2]] == [1.0, 1.0]


def test_what_came_during_a_rebuild_is_kept() -> None:
    model, first, second = shop_loaded(), shop.artefact(1), shop.artefact(2)
    some = Catalogue.build(FeaturePlan.of(shop.spec()), list(shop.ITEMS.items())[:3])
    work = model.begin_rebuild()
    model.with_catalogue(some, 5)
    work()
    assert model.finish_rebuild() is not None
    found = ServedVersion.bind(model.parts)
    assert (len(found.catalogue), found.items_generation) == (3, 5)
    assert ranked(found.ranker, {"age": "20"}, list(shop.ITEMS)).candidates.unknown == list(shop.ITEMS)[3:]
    # A delta that was accepted, although it makes items equal.
    work = model.begin_rebuild()
    equal = artefact_of(shop.spec(), {b"age=20": (0.5, 1)})
    model.apply(2, "", equal.changes_since(first, version=1), allow_equal=True)
    work()
    assert model.finish_rebuild() is model.parts
    assert model.parts.version == 2
    # A snapshot is what counts.
    work = model.begin_rebuild()
    parts = model.load(3, "", second, Catalogue.build(FeaturePlan.of(second.spec), []))
    work()
    assert model.finish_rebuild() is None
    assert model.parts is parts


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
        short.setattr(ModelState, "rebuilt", _no_memory)
        model.begin_rebuild()()
        with pytest.raises(MemoryError):
            model.finish_rebuild()
    assert model.parts is parts
    assert not model.wants_rebuild
    assert model.rebuild().fresh is None


def _no_memory(*arguments: object) -> ModelState:
    raise MemoryError
