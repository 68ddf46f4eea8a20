"""docs/degradation.md, "What is published": versions and items under which every candidate would score the same."""

from __future__ import annotations

import numpy as np

from model_store.artefact.artefact import Artefact
from model_store.spec.keys import BIAS
from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.waiting import eventually


def bias_alone() -> Artefact:
    """A model that knows nothing of any item."""
    weights, size = shop.artefact().weight[:1], len(BIAS)
    return Artefact.from_columns(
        key_data=np.frombuffer(BIAS, np.uint8).copy(),
        key_offsets=np.array([0, size]),
        weight=weights,
        variants=shop.artefact().variants[:1],
        rate=weights * 0,
        spec=shop.spec(),
        metrics={},
    )


def test_version_makes_all_candidates_equal(whole: WholeShop, recovered: Recovered) -> None:
    before = whole.ask()
    refused = whole.metric("ftrie_refused_versions_total", reason="equal")
    version = whole.versions.publish(bias_alone())
    whole.versions.activate(version)
    eventually(lambda: f"{version} was refused (equal)" in whole.running.model()["problem"], "its refusal")
    assert whole.ask().version == before.version
    whole.awaits_whole_answer()
    eventually(lambda: whole.metric("ftrie_refused_versions_total", reason="equal") > refused, "the count")
    sound = whole.publish(seed=3)
    recovered.from_now()
    recovered.when(lambda: whole.serves(sound) and whole.follows(), "the next version is served")


def test_items_lose_all_their_features(whole: WholeShop, recovered: Recovered) -> None:
    whole.store.records.put_items((item, {"of another system": "x"}) for item in shop.ITEMS)
    eventually(lambda: whole.metric("ftrie_items_refused", model=shop.NAME) == 1, "the metric")
    assert "the store's items are refused" in whole.running.model()["problem"]
    said = "items: the store's items are refused"
    eventually(lambda: any(each.startswith(said) for each in whole.degraded()), "what answers say")
    whole.store.records.put_items(shop.ITEMS.items())
    recovered.from_now()
    recovered.when(lambda: whole.degraded() == () and whole.follows(), "nothing is refused")
