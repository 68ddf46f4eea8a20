"""Models whose variants have their own weights, from publishing to the answer, and beside models that share them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrie.client.client import Client
from ftrie.client.messages import Ranking
from model_store.artefact.inspection import one_variant
from model_store.errors import SpecError
from model_store.store import Store
from server.model.catalogue import Catalogue
from server.model.model import Model
from server.ranking.ranker import Ranker
from tests.server import shop
from tests.server.one_process import Server
from tests.server.ranking.test_ranker import SHOP, parse
from tests.server.slow_ranker import Weights, artefact_of
from tests.waiting import eventually

OWN = "per_variant"
ALL = list(shop.ITEMS)
CONTEXT = {"hour": "2024-05-01T08:00:00", "distance": 2.5}
REQUEST = {"age": "20", "likes": ["red", "blue"], "device": "u1", **CONTEXT}
USER = {"device": "u1", **shop.USERS["u1"]}


def expected(variant: int, seed: int = 1, values: str = OWN, **user: object) -> dict[str, float]:
    examples = {item: {**user, **CONTEXT, **shop.ITEMS[item]} for item in ALL}
    return {item: shop.expected_score(e, variant, seed, values) for item, e in examples.items()}  # type: ignore[arg-type]


def scores(answer: Ranking) -> dict[str, float]:
    return {item.id: item.score for item in answer.items}


def ranker_of(model: Model) -> Ranker:
    return Ranker(model, Catalogue.build(model.plan, shop.ITEMS.items()))


def ranked(ranker: Ranker, variant: int) -> dict[str, float]:
    found = ranker.rank(ranker.query(REQUEST, ALL, variant=variant))  # type: ignore[arg-type]
    return dict(zip(found.ids, found.score, strict=True))


@pytest.fixture
def own_client(store: Store, start: Callable[[], Server]) -> Iterator[Client]:
    """A client of a server whose model has a weight of a key for each variant."""
    shop.fill(store, values=OWN)
    server = start()
    assert server.ready.wait(180)
    with Client(server.address, timeout_s=20.0) as client:
        yield client


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("cookie", ["u1", "u2", ""])
def test_a_forced_variant_is_scored_by_its_own_weights(own_client: Client, cookie: str, variant: int) -> None:
    user = {"device": cookie, **shop.USERS[cookie]} if cookie else {}
    name = shop.VARIANTS[variant]
    answer = own_client.rank(cookie=cookie, candidates=ALL, context=CONTEXT, variant=name)
    spelled = own_client.rank(cookie=cookie, items=shop.ITEMS, context=CONTEXT, variant=name)
    assert answer.variant == name
    assert scores(answer) == pytest.approx(expected(variant, **user), abs=1e-6)
    assert scores(spelled) == scores(answer), "spelled out, bit for bit the same"


def test_a_cookie_is_scored_by_the_variant_that_it_is_given(own_client: Client) -> None:
    answers = [own_client.rank(cookie=f"c{n}", candidates=ALL, context=CONTEXT) for n in range(20)]
    assert {answer.variant for answer in answers} == set(shop.VARIANTS)
    for n, answer in enumerate(answers):
        variant = shop.VARIANTS.index(answer.variant)
        assert scores(answer) == pytest.approx(expected(variant, device=f"c{n}"), abs=1e-6)


def test_swaps_between_shared_and_own_weights_fail_no_call_and_mix_no_answer(
    server: Server, store: Store
) -> None:
    versions = {1: (1, "single")}
    stop = threading.Event()
    answers: list[tuple[int, str, dict[str, float]]] = []
    failures: list[Exception] = []

    def load() -> None:
        with Client(server.address) as client:
            for variant in itertools.cycle(shop.VARIANTS):
                if stop.is_set():
                    return
                try:
                    answer = client.rank(cookie="u1", candidates=ALL, context=CONTEXT, variant=variant)
                    answers.append((answer.version, answer.variant, scores(answer)))
                except Exception as error:
                    failures.append(error)

    clients = [threading.Thread(target=load) for _ in range(3)]
    for thread in clients:
        thread.start()
    eventually(lambda: answers != [])
    for seed, values in enumerate([OWN, "single", OWN, OWN, "single"], start=2):
        version = shop.publish(store, seed, values)
        versions[version] = (seed, values)
        eventually(lambda version=version: answers[-1][0] == version)  # type: ignore[misc]
    stop.set()
    for thread in clients:
        thread.join()
    assert failures == []
    assert {version for version, _, _ in answers} == set(versions)
    for version, name in itertools.product(versions, shop.VARIANTS):
        seed, values = versions[version]
        given = [found for answered, variant, found in answers if (answered, variant) == (version, name)]
        assert all(found == given[0] for found in given), "two answers of one version and variant differ"
        if given:
            wanted = expected(shop.VARIANTS.index(name), seed, values, **USER)
            assert given[0] == pytest.approx(wanted, abs=1e-6)


def test_thirty_two_variants_have_thirty_two_scores() -> None:
    variants = {f"v{n}": {} for n in range(32)}
    spec = parse(SHOP, [["age", "brand"]], variants=variants, learner={"values": "per_variant"})
    keys = (b"bias", b"age=25", b"brand=nike", b"age*brand=25*nike", b"sku=shoe")
    weights: Weights = {
        key: (tuple((n + 1.0) * 2.0**-place for n in range(32)), 2**32 - 1) for place, key in enumerate(keys)
    }
    model = Model.build(artefact_of(spec, weights), 1)
    ranker = Ranker(model, Catalogue.build(model.plan, [("shoe", {"brand": "nike"})]))
    given = [ranker.rank(ranker.query({"age": "25"}, ["shoe"], variant=n)).score for n in range(32)]
    assert given == [[(n + 1.0) * 1.9375] for n in range(32)]


def test_a_prefix_is_weighed_for_each_variant(tmp_path: Path) -> None:
    artefact = shop.artefact(values=OWN)
    model = Model.build(artefact, 1)
    for variant, weights in enumerate(model.base.values.weights):
        under = [
            float(weight)
            for key, weight in zip(artefact.key_list(), artefact.weights_of(variant).tolist(), strict=True)
            if key.startswith(b"age*")
        ]
        found = model.base.trie.statistics(b"age*", weights)
        assert (found.keys, found.weight_sum) == (len(under), pytest.approx(sum(under)))


@pytest.mark.parametrize("values", ["single", OWN])
def test_one_variant_is_a_model_of_its_own_that_scores_as_the_variant_did(values: str) -> None:
    artefact = shop.artefact(values=values)
    together = ranker_of(Model.build(artefact, 1))
    for variant, name in enumerate(shop.VARIANTS):
        alone = one_variant(artefact, name)
        assert not alone.per_variant
        assert list(alone.spec.variants) == [name]
        assert alone.rows < artefact.rows or name == "base"
        assert ranked(ranker_of(Model.build(alone, 1)), 0) == pytest.approx(
            ranked(together, variant), abs=1e-9
        )


def test_a_variant_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="no variant 'bold'; the model has: base, plain"):
        one_variant(shop.artefact(), "bold")


def test_shared_weights_are_held_once() -> None:
    artefact = shop.artefact()
    model = Model.build(artefact, 1)
    weights = model.base.values.weights
    assert weights.shape == (1, artefact.rows)
    assert weights.base is artefact.weight or weights.base is artefact.weight.base
    own = Model.build(shop.artefact(values=OWN), 1)
    assert own.nbytes - model.nbytes == artefact.weight.nbytes + artefact.rate.nbytes
