"""After `run_kernels`, a server compiles nothing more."""

from __future__ import annotations

import numpy as np

import model_store.trie.trie_kernels
import server.model.byte_kernels
import server.model.event_form_kernels
import server.model.items_kernels
import server.ranking.multi_variant_kernels
import server.ranking.request_kernels
import server.ranking.scoring_kernels
import server.ranking.select.select_kernels
from model_store.normal_kernels import normal_cdfs
from server.model.model import Model
from server.ranking.warmup import run_kernels
from tests.server import shop
from tests.server.model.models import FIELDS, follow, loaded, parse
from tests.server.ranked import options_of, ranked, ranker_of
from tests.server.slow_ranker import artefact_of

MODULES = (
    model_store.trie.trie_kernels,
    server.model.byte_kernels,
    server.model.event_form_kernels,
    server.ranking.request_kernels,
    server.model.items_kernels,
    server.ranking.scoring_kernels,
    server.ranking.multi_variant_kernels,
    server.ranking.select.select_kernels,
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
    weights = {b"bias": (0.5, 1), b"likes*brand=a*b": (1.0, 1), b"age*tags*price=1*x*": (1.0, 1)}
    artefact, spelled = artefact_of(parse(FIELDS, crosses), weights), [("3", {"brand": "b"})]
    ranker = ranker_of(artefact, [("1", {"tags": ["x", "y"], "price": "2.5"})])
    ranking = ranked(ranker, {"likes": ["a"], "age": 1}, ["1", "2"], spelled, 0, 1)
    assert (ranking.ids, ranking.score) == (["1"], [3.0])
    for options in (
        options_of(exploration=THOMPSON),
        options_of(exploration=THOMPSON, caps=CAPS, objective="ctr"),
    ):
        ranked(ranker, {}, ["1", "2"], spelled, 0, 2, options=options)
    vague = ranker_of(artefact_of(parse(FIELDS, crosses, learner={"algorithm": "adpredictor"}), weights))
    ranked(vague, {"likes": ["a"]}, ["1", "2"], spelled, 0, 1, shadows=(0,))
    own = parse(FIELDS, learner={"values": "per_variant"}, variants={"a": {}, "b": {}})
    owning = artefact_of(own, {b"bias": ((0.5, 0.25), 3), b"brand=b": ((0.5, 0.0), 1)})
    of_own = ranker_of(owning, [("1", {"brand": "b"})])
    found = [ranked(of_own, {}, ["1"], [("2", {})], variant).score for variant in (0, 1)]
    assert found == [[1.0, 0.5], [0.25, 0.25]]
    trie = Model.build(artefact, 1).base.trie
    assert trie.get_many(np.frombuffer(b"bias", np.uint8), np.array([0, 4])).tolist() == [1]
    assert compiled() == before


def test_nothing_is_compiled_for_the_first_delta() -> None:
    run_kernels()
    before = compiled()
    artefacts = [shop.artefact(seed, "per_variant") for seed in (1, 2, 3)]
    model = loaded(artefacts[0], shop.ITEMS.items())
    for version in (1, 2):
        ranker = follow(model, artefacts[version - 1 : version + 1], version)
        ranked(ranker, {"age": "20"}, list(shop.ITEMS), shadows=(1,))
    assert compiled() == before
