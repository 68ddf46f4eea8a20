"""The items in memory follow those in the store: put, changed, removed, emptied, by us and by other systems."""

from __future__ import annotations

import random

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


def test_where_the_stream_tells_not_all_everything_is_read_again(store: Store, follower: ItemSync) -> None:
    store.client.hset("ftrie:item:x", "n", "9")
    store.client.xadd(ITEMS_CHANGES, {"id": "x"})
    store.client.xadd(ITEMS_CHANGES, {"id": "a"}, maxlen=1, approximate=False)
    assert follower.poll()
    assert "x" in held(follower)
    store.client.flushall()  # a store without a stream, and the first notice in it
    store.client.hset("ftrie:item:a", "n", "1")
    follower = ItemSync(store.records)
    follower.poll()
    store.client.hset("ftrie:item:b", "n", "2")
    store.client.xadd(ITEMS_CHANGES, {"id": "a"})
    assert follower.poll()
    assert len(follower) == 2


def test_items_that_an_emptied_store_lacks_are_kept_until_they_are_written_again(
    store: Store, follower: ItemSync
) -> None:
    store.client.flushall()
    follower.poll()
    assert held(follower) == {"a": {"n": "1"}, "b": {"n": "2", "brand": "x"}}
    assert follower.kept == 2
    store.records.put_items([("a", {"n": "7"}), ("c", {"n": "3"})])
    assert follower.poll()
    assert held(follower) == {"a": {"n": "7"}, "b": {"n": "2", "brand": "x"}, "c": {"n": "3"}}
    assert follower.kept == 1
    store.records.put_items([("b", {})])  # removed by a notice
    assert follower.poll()
    assert (sorted(held(follower)), follower.kept) == (["a", "c"], 0)


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


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_the_items_are_those_of_a_fresh_reading(store: Store, seed: int) -> None:
    draw = random.Random(seed)
    follower = ItemSync(store.records)
    for _ in range(60):
        ids = [f"i{draw.randrange(30)}" for _ in range(draw.randrange(1, 5))]
        match draw.randrange(7):
            case 0 | 1:
                store.records.put_items((item, {"n": str(draw.random())}) for item in ids)
            case 2:
                store.records.put_items((item, {}) for item in ids)
            case 3:
                store.client.hset(f"ftrie:item:{ids[0]}", "by", "others")
                store.client.xadd(ITEMS_CHANGES, {"id": ids[0]}, maxlen=draw.choice([1, 3, 100]))
            case 4:
                store.client.xtrim(ITEMS_CHANGES, maxlen=draw.randrange(3), approximate=False)
            case 5:
                store.client.flushall()
            case 6:
                follower.include(ids)
        if draw.random() < 0.4:
            follower.poll()
    follower.poll()
    there, found = dict(store.records.scan_items()), held(follower)
    assert {item: found[item] for item in there} == there
    assert len(found) - len(there) == follower.kept
    store.records.only_these_items()
    follower.poll()
    assert held(follower) == there
