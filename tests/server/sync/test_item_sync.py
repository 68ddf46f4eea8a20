"""The items in memory follow those in the store: put, changed, removed, emptied, by us and by other systems."""

from __future__ import annotations

import pytest

from model_store.errors import StoreUnavailable
from model_store.keys import ITEMS_CHANGES, ITEMS_GENERATION
from model_store.store import Store
from server.sync.item_sync import ItemSync
from tests.stalling import stalled


@pytest.fixture
def follower(store: Store) -> ItemSync:
    """Follows a store with the items a and b, and has seen them."""
    store.records.put_items([("a", {"n": "1"}), ("b", {"n": "2", "brand": "x"})])
    following = ItemSync(store.records)
    assert following.poll()
    assert dict(following.items()) == {"a": {"n": "1"}, "b": {"n": "2", "brand": "x"}}
    return following


def scans(store: Store) -> int:
    """How often the store was asked for key names."""
    found = store.client.info("commandstats").get("cmdstat_scan")
    return int(found["calls"]) if found else 0


def held(follower: ItemSync) -> dict[str, object]:
    return dict(follower.items())


def test_only_what_changed_is_read_again(store: Store, follower: ItemSync) -> None:
    before, generation = scans(store), follower.generation
    assert not follower.poll()
    store.client.xadd(ITEMS_CHANGES, {"id": "a"})  # notice of an item that is as it was
    assert not follower.poll()
    assert follower.generation == generation
    store.records.put_items([("b", {"n": "3"}), ("c", {"n": "4"})])
    assert follower.poll()
    assert held(follower) == {"a": {"n": "1"}, "b": {"n": "3"}, "c": {"n": "4"}}
    store.records.put_items([("a", {})])
    store.client.delete("ftrie:item:b")
    store.client.xadd(ITEMS_CHANGES, {"id": "b"})
    assert follower.poll()
    assert held(follower) == {"c": {"n": "4"}}
    assert scans(store) == before


def test_items_of_others_come_by_notice_on_demand_and_when_a_request_has_found_them(
    store: Store, follower: ItemSync
) -> None:
    for item in "xyz":
        store.client.hset(f"ftrie:item:{item}", "n", "9")
    assert not follower.poll()
    store.client.execute_command("XADD", ITEMS_CHANGES, "*", "id", "x", "id", "no such item")
    assert follower.poll()
    assert held(follower).keys() == {"a", "b", "x"}
    generation = follower.generation
    follower.include(["y", "no such item"])
    assert follower.poll()
    assert held(follower).keys() == {"a", "b", "x", "y"}
    assert follower.generation != generation
    store.client.incr(ITEMS_GENERATION)  # everything is read again
    assert follower.poll()
    assert held(follower).keys() == {"a", "b", "x", "y", "z"}
    assert not follower.poll()


def test_items_of_a_restored_backup_are_taken_and_newer_ones_kept(store: Store, follower: ItemSync) -> None:
    backup = {key: store.client.dump(key) for key in store.client.keys("ftrie:*")}
    store.records.put_items([("c", {"n": "3"})])
    assert follower.poll()
    store.client.flushall()
    follower.poll()
    store.client.flushall()
    for key, value in backup.items():
        store.client.restore(key, 0, value)
    assert follower.poll()
    assert sorted(held(follower)) == ["a", "b", "c"]
    assert follower.kept == 1


def test_a_store_that_was_emptied_and_refilled_between_two_looks_keeps_what_it_lacks_until_an_order(
    store: Store, follower: ItemSync
) -> None:
    seen = follower.generation
    store.client.flushall()
    store.client.hset("ftrie:item:a", "n", "2")
    assert follower.poll()
    assert held(follower) == {"a": {"n": "2"}, "b": {"n": "2", "brand": "x"}}
    assert (follower.kept, follower.orders, follower.generation != seen) == (1, 0, True)
    store.records.only_these_items()
    assert follower.poll()
    assert (held(follower), follower.kept, follower.orders) == ({"a": {"n": "2"}}, 0, 1)


def test_a_store_that_stalls_costs_nothing_but_time(store: Store, store_url: str) -> None:
    store.records.put_items([("a", {"n": "1"})])
    with Store.open(store_url, user_timeout_s=0.1) as impatient:
        follower = ItemSync(impatient.records)
        follower.poll()
        with stalled(store):
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    follower.poll()
        assert held(follower) == {"a": {"n": "1"}}
        store.records.put_items([("a", {"n": "2"})])
        assert follower.poll()
        assert held(follower) == {"a": {"n": "2"}}
