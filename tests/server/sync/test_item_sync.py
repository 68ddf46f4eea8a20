"""The items in memory follow those in the store: put, changed, removed, emptied, by us and by other systems."""

from __future__ import annotations

import random

import pytest

from model_store.errors import StoreUnavailable
from model_store.redis.redis_keys import ITEMS_CHANGES, ITEMS_GENERATION
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


def test_only_what_changed_is_read_again(store: Store, follower: ItemSync) -> None:
    before = scans(store)
    assert not follower.poll()
    store.records.put_items([("b", {"n": "3"}), ("c", {"n": "4"})])
    assert follower.poll()
    assert dict(follower.items()) == {"a": {"n": "1"}, "b": {"n": "3"}, "c": {"n": "4"}}
    assert scans(store) == before


def test_an_item_that_was_removed_disappears(store: Store, follower: ItemSync) -> None:
    store.records.put_items([("a", {})])
    store.client.delete("ftrie:item:b")
    store.client.xadd(ITEMS_CHANGES, {"id": "b"})
    assert follower.poll()
    assert dict(follower.items()) == {}


def test_notice_of_an_item_that_is_as_it_was_changes_nothing(store: Store, follower: ItemSync) -> None:
    generation = follower.generation
    store.client.xadd(ITEMS_CHANGES, {"id": "a"})
    assert not follower.poll()
    assert follower.generation == generation


def test_another_systems_items_come_by_their_notice(store: Store, follower: ItemSync) -> None:
    store.client.hset("ftrie:item:x", "n", "9")
    assert not follower.poll()
    store.client.execute_command("XADD", ITEMS_CHANGES, "*", "id", "x", "id", "y")
    assert follower.poll()
    assert dict(follower.items())["x"] == {"n": "9"}


def test_everything_is_read_again_on_demand(store: Store, follower: ItemSync) -> None:
    store.client.hset("ftrie:item:x", "n", "9")
    store.client.incr(ITEMS_GENERATION)
    assert follower.poll()
    assert "x" in dict(follower.items())
    assert not follower.poll()


def test_an_item_a_request_has_found_is_read_without_any_notice(store: Store, follower: ItemSync) -> None:
    store.client.hset("ftrie:item:x", "n", "9")
    generation = follower.generation
    follower.include(["x", "no such item"])
    assert follower.poll()
    assert dict(follower.items())["x"] == {"n": "9"}
    assert follower.generation != generation
    assert not follower.poll()


def test_a_stream_trimmed_past_us_has_everything_read_again(store: Store, follower: ItemSync) -> None:
    store.client.hset("ftrie:item:x", "n", "9")
    store.client.xadd(ITEMS_CHANGES, {"id": "x"})
    store.client.xadd(ITEMS_CHANGES, {"id": "a"}, maxlen=1, approximate=False)
    assert follower.poll()
    assert "x" in dict(follower.items())


def test_the_first_notice_in_a_store_without_a_stream_has_everything_read_again(store: Store) -> None:
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
    assert dict(follower.items()) == {"a": {"n": "1"}, "b": {"n": "2", "brand": "x"}}
    assert follower.kept == 2
    store.records.put_items([("a", {"n": "7"}), ("c", {"n": "3"})])
    assert follower.poll()
    assert dict(follower.items()) == {"a": {"n": "7"}, "b": {"n": "2", "brand": "x"}, "c": {"n": "3"}}
    assert follower.kept == 1
    store.records.put_items([("b", {})])  # removed by a notice
    assert follower.poll()
    assert (sorted(dict(follower.items())), follower.kept) == (["a", "c"], 0)


def test_an_order_ends_the_keeping_of_items(store: Store, follower: ItemSync) -> None:
    store.client.flushall()
    follower.poll()
    assert (follower.kept, follower.orders) == (2, 0)
    store.records.only_these_items()
    assert follower.poll()
    assert (len(follower), follower.kept, follower.orders) == (0, 0, 1)


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
    assert sorted(dict(follower.items())) == ["a", "b", "c"]
    assert follower.kept == 1


def test_a_store_that_was_emptied_and_refilled_between_two_looks_keeps_what_it_lacks(
    store: Store, follower: ItemSync
) -> None:
    seen = follower.generation
    store.client.flushall()
    store.client.hset("ftrie:item:a", "n", "2")
    assert follower.poll()
    assert dict(follower.items()) == {"a": {"n": "2"}, "b": {"n": "2", "brand": "x"}}
    assert (follower.kept, follower.generation != seen) == (1, True)


def test_a_store_that_stalls_costs_nothing_but_time(store: Store, store_url: str) -> None:
    store.records.put_items([("a", {"n": "1"})])
    with Store.open(store_url, user_timeout_s=0.1) as impatient:
        follower = ItemSync(impatient.records)
        follower.poll()
        with stalled(store):
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    follower.poll()
        assert dict(follower.items()) == {"a": {"n": "1"}}
        store.records.put_items([("a", {"n": "2"})])
        assert follower.poll()
        assert dict(follower.items()) == {"a": {"n": "2"}}


@pytest.mark.parametrize("seed", range(5))
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
    there, held = dict(store.records.scan_items()), dict(follower.items())
    assert {item: held[item] for item in there} == there
    assert len(held) - len(there) == follower.kept
    store.records.only_these_items()
    follower.poll()
    assert dict(follower.items()) == there
