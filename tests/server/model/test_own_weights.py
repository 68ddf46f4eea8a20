"""Models whose variants have their own weights, from publishing to the answer, and beside models that share them."""

from __future__ import annotations

import itertools
import threading

import pytest

from ftrie.api.client import Client
from ftrie.api.messages import Ranking
from model_store.artefact.inspection import one_variant
from model_store.errors import SpecError
from model_store.store import Store
from server.model.model import Model
from tests.server import shop
from tests.server.one_process import Server
from tests.server.ranked import ranked, ranker_of, scores
from tests.waiting import eventually

OWN = "per_variant"
ALL = list(shop.ITEMS)
CONTEXT = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
REQUEST = {"age": "20", "likes": ["red", "blue"], "device": "u1", **CONTEXT}


def expected(variant: str, cookie: str, seed: int = 1, values: str = OWN) -> dict[str, float]:
    user = {"device": cookie, **shop.USERS.get(cookie, {})} if cookie else {}
    examples = {item: {**user, **CONTEXT, **shop.ITEMS[item]} for item in ALL}
    number = shop.VARIANTS.index(variant)
    return {item: shop.expected_score(e, number, seed, values) for item, e in examples.items()}


def answered(answer: Ranking) -> dict[str, float]:
    return {item.id: item.score for item in answer.items}


def test_each_variant_is_scored_by_its_own_weights_also_while_models_that_share_them_come_and_go(
    server: Server, client: Client, store: Store
) -> None:
    versions = {1: (1, "single"), shop.publish(store, 2, OWN): (2, OWN)}
    eventually(lambda: client.rank(candidates=["item-1"]).version == 2)
    for variant, cookie in itertools.product(shop.VARIANTS, ("u1", "u2", "")):
        asked = {"cookie": cookie, "context": CONTEXT, "variant": variant}
        answer, spelled = client.rank(candidates=ALL, **asked), client.rank(items=shop.ITEMS, **asked)
        assert answer.variant == variant
        assert answered(answer) == pytest.approx(expected(variant, cookie, 2), abs=1e-6)
        assert answered(spelled) == answered(answer), "spelled out, bit for bit the same"
    given = [client.rank(cookie=f"c{n}", candidates=ALL, context=CONTEXT) for n in range(20)]
    assert {answer.variant for answer in given} == set(shop.VARIANTS)
    for n, answer in enumerate(given):
        assert answered(answer) == pytest.approx(expected(answer.variant, f"c{n}", 2), abs=1e-6)

    stop = threading.Event()
    answers: list[tuple[int, str, dict[str, float]]] = []
    failures: list[Exception] = []

    def load() -> None:
        with Client(server.address) as other:
            for variant in itertools.cycle(shop.VARIANTS):
                if stop.is_set():
                    return
                try:
                    answer = other.rank(cookie="u1", candidates=ALL, context=CONTEXT, variant=variant)
                    answers.append((answer.version, answer.variant, answered(answer)))
                except Exception as error:
                    failures.append(error)

    clients = [threading.Thread(target=load) for _ in range(3)]
    for thread in clients:
        thread.start()
    eventually(lambda: answers != [])
    for seed, values in enumerate(["single", OWN, OWN, "single"], start=3):
        version = shop.publish(store, seed, values)
        versions[version] = (seed, values)
        eventually(lambda version=version: answers[-1][0] == version)  # type: ignore[misc]
    stop.set()
    for thread in clients:
        thread.join()
    assert failures == []
    assert {version for version, _, _ in answers} == set(versions) - {1}
    for version, name in itertools.product(versions, shop.VARIANTS):
        found = [scored for answered, variant, scored in answers if (answered, variant) == (version, name)]
        assert all(one == found[0] for one in found), "two answers of one version and variant differ"
        if found:
            assert found[0] == pytest.approx(expected(name, "u1", *versions[version]), abs=1e-6)


@pytest.mark.parametrize("values", ["single", OWN])
def test_one_variant_is_a_model_of_its_own_that_scores_as_the_variant_did(values: str) -> None:
    artefact = shop.artefact(values=values)
    together = ranker_of(artefact, shop.ITEMS.items())
    for variant, name in enumerate(shop.VARIANTS):
        alone = one_variant(artefact, name)
        assert not alone.per_variant
        assert list(alone.spec.variants) == [name]
        assert alone.rows < artefact.rows or name == "base"
        found = scores(ranked(ranker_of(alone, shop.ITEMS.items()), REQUEST, ALL))
        assert found == pytest.approx(scores(ranked(together, REQUEST, ALL, variant=variant)), abs=1e-9)
    with pytest.raises(SpecError, match="no variant 'bold'; the model has: base, plain"):
        one_variant(artefact, "bold")


def test_shared_weights_are_held_once() -> None:
    artefact = shop.artefact()
    model = Model.build(artefact, 1)
    weights = model.base.values.weights
    assert weights.shape == (1, artefact.rows)
    assert weights.base is artefact.weight or weights.base is artefact.weight.base
    own = Model.build(shop.artefact(values=OWN), 1)
    assert own.nbytes - model.nbytes == artefact.weight.nbytes + artefact.rate.nbytes
