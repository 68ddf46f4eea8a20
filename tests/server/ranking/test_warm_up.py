"""After `run_kernels`, a server compiles nothing more."""

from __future__ import annotations

import numpy as np

import model_store.trie.trie_kernels
import server.model.ids_kernels
import server.model.items_kernels
import server.model.layers_kernels
import server.ranking.multi_variant_kernels
import server.ranking.request_kernels
import server.ranking.scoring_kernels
import server.ranking.select.select_kernels
from model_store.features.features import FeaturePlan
from model_store.normal_kernels import normal_cdfs
from server.model.catalogue import Catalogue
from server.model.live_model import LiveModel
from server.model.model import Model
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from server.ranking.warmup import run_kernels
from tests.server import shop
from tests.server.ranked import options_of, ranked
from tests.server.ranking.test_ranker import FIELDS, parse
from tests.server.slow_ranker import artefact_of

MODULES = (
    model_store.trie.trie_kernels,
    server.model.ids_kernels,
    server.model.layers_kernels,
    server.ranking.request_kernels,
    server.model.items_kernels,
    server.ranking.scoring_kernels,
    server.ranking.multi_variant_kernels,
    server.ranking.select.select_kernels,
    server.ranking.request_kernels,
)

THOMPSON = {"thompson": {"width": 1.0}}
CAPS = [{"field": "brand", "at_most": 1}]


def compiled() -> dict[str, int]:
    functions = {name: value for module in MODULES for name, value in vars(module).items()}
    kernels = {name: value for name, value in functions.items() if hasattr(value, "signatures")}
    kernels["normal_cdfs"] = normal_cdfs
    # An inlined function has no code of its own once its kernels come from the cache.
    return {n: len(k.signatures) for n, k in kernels.items() if not k.targetoptions.get("forceinline")}


def test_nothing_is_compiled_after_warm_up() -> None:
    run_kernels()
    before = compiled()
    assert {name for name, count in before.items() if count == 0} == set()

    crosses = [["age", "tags", "price"], ["likes", "brand"]]
    spec = parse(FIELDS, crosses)
    weights = {b"bias": (0.5, 1), b"likes*brand=a*b": (1.0, 1), b"age*tags*price=1*x*": (1.0, 1)}
    model = Model.build(artefact_of(spec, weights), 1)
    catalogue = Catalogue.build(model.plan, [("1", {"tags": ["x", "y"], "price": "2.5"})])
    ranking = ranked(
        Ranker(model, catalogue), {"likes": ["a"], "age": 1}, ["1", "2"], [("3", {"brand": "b"})], 0, 1
    )
    assert ranking.ids == ["1"]
    assert ranking.score == [3.0]
    for options in (
        options_of(exploration=THOMPSON),
        options_of(exploration=THOMPSON, caps=CAPS, objective="ctr"),
    ):
        ranked(Ranker(model, catalogue), {}, ["1", "2"], [("3", {"brand": "b"})], 0, 2, options=options)
    vague = Model.build(artefact_of(parse(FIELDS, crosses, learner={"algorithm": "adpredictor"}), weights), 1)
    ranked(
        Ranker(vague, catalogue), {"likes": ["a"]}, ["1", "2"], [("3", {"brand": "b"})], 0, 1, shadows=(0,)
    )
    own = parse(FIELDS, learner={"values": "per_variant"}, variants={"a": {}, "b": {}})
    owning = Model.build(artefact_of(own, {b"bias": ((0.5, 0.25), 3), b"brand=b": ((0.5, 0.0), 1)}), 1)
    ranker = Ranker(owning, Catalogue.build(owning.plan, [("1", {"brand": "b"})]))
    assert [ranked(ranker, {}, ["1"], [("2", {})], variant).score for variant in (0, 1)] == [
        [1.0, 0.5],
        [0.25, 0.25],
    ]
    trie = model.base.trie
    assert trie.get_many(np.frombuffer(b"bias", np.uint8), np.array([0, 4])).tolist() == [1]
    assert compiled() == before


def test_nothing_is_compiled_for_the_first_delta() -> None:
    run_kernels()
    before = compiled()
    model, artefact = LiveModel(shop.NAME), shop.artefact(1, "per_variant")
    model.load(1, "", artefact, Catalogue.build(FeaturePlan.of(artefact.spec), shop.ITEMS.items()))
    for version in (2, 3):
        after = shop.artefact(version, "per_variant")
        model.apply(version, "", after.changes_since(artefact, version=version - 1))
        ranked(ServedVersion.bind(model.parts).ranker, {"age": "20"}, list(shop.ITEMS), shadows=(1,))
        artefact = after
    assert compiled() == before
