"""docs/degradation.md, "What is published": versions and items under which every candidate would score the same."""

from __future__ import annotations

from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.server.sync.served_models import flat
from tests.waiting import eventually


def test_version_makes_all_candidates_equal(whole: WholeShop, recovered: Recovered) -> None:
    before = whole.ask()
    refused = whole.metric("ftrie_refused_versions_total", reason="equal")
    version = whole.versions.publish(flat())
    whole.versions.activate(version)
    eventually(lambda: f"{version} was refused (equal)" in whole.running.model()["problem"], "its refusal")
    assert whole.ask().version == before.version
    whole.awaits_whole_answer()
    eventually(lambda: whole.metric("ftrie_refused_versions_total", reason="equal") > refused, "the count")
    sound = whole.publish(seed=3)
    recovered.then(lambda: whole.serves(sound) and whole.follows(), "the next version is served")


def test_items_lose_all_their_features(whole: WholeShop, recovered: Recovered) -> None:
    whole.store.records.put_items((item, {"of another system": "x"}) for item in shop.ITEMS)
    eventually(lambda: whole.metric("ftrie_items_refused", model=shop.NAME) == 1, "the metric")
    assert "the store's items are refused" in whole.running.model()["problem"]
    said = "items: the store's items are refused"
    eventually(lambda: any(each.startswith(said) for each in whole.degraded()), "what answers say")
    whole.store.records.put_items(shop.ITEMS.items())
    recovered.then(lambda: whole.degraded() == () and whole.follows(), "nothing is refused")
