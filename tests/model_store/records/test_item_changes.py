"""The stream of changed items: what a reader learns, and when it learns that it cannot know."""

from __future__ import annotations

import pytest

from model_store.records.item_changes import ENTRIES_KEPT, IDS_AN_ENTRY, ItemChanges
from model_store.redis.redis_keys import ITEMS_CHANGES
from model_store.store import Store


@pytest.fixture
def changes(store: Store) -> ItemChanges:
    return store.records.item_changes


@pytest.fixture
def position(store: Store, changes: ItemChanges) -> str:
    """Where a reader stands that has seen item `a` put."""
    store.records.put_items([("a", {"n": "1"})])
    seen = changes.state().position
    assert seen is not None
    return seen


def test_a_reader_gets_the_ids_put_since_it_looked_each_once_and_in_order(
    store: Store, changes: ItemChanges, position: str
) -> None:
    assert changes.since(position) == ({}, position)
    store.records.put_items((f"i{n}", {"n": "1"}) for n in range(2500))
    store.records.put_items([("i7", {}), ("a", {"n": "2"})])
    found = changes.since(position)
    assert found is not None
    assert list(found[0]) == [*(f"i{n}" for n in range(2500)), "a"]
    assert changes.since(found[1]) == ({}, found[1])


def test_another_system_may_add_one_id_or_several(store: Store, changes: ItemChanges, position: str) -> None:
    store.client.xadd(ITEMS_CHANGES, {"id": "x"})
    store.client.execute_command("XADD", ITEMS_CHANGES, "*", "id", "y", "id", "z", "by", "me", "id", b"\xff")
    found = changes.since(position)
    assert found is not None
    assert list(found[0]) == ["x", "y", "z", "\udcff"]


def test_what_cannot_be_an_id_is_passed_over(store: Store, changes: ItemChanges, position: str) -> None:
    store.client.execute_command("XADD", ITEMS_CHANGES, "*", "id", "", "id", "x" * 4097, "id", "good")
    found = changes.since(position)
    assert found is not None
    assert list(found[0]) == ["good"]


def test_a_reader_past_whom_the_stream_was_trimmed_learns_so(
    store: Store, changes: ItemChanges, position: str
) -> None:
    store.client.xadd(ITEMS_CHANGES, {"id": "b"}, maxlen=1, approximate=False)
    assert changes.since(position) is None


def test_a_reader_learns_that_the_stream_is_another_one(
    store: Store, changes: ItemChanges, position: str
) -> None:
    store.client.flushall()
    assert changes.since(position) is None
    store.records.put_items([("a", {"n": "1"})])
    assert changes.since(position) is None


def test_the_stream_does_not_grow_without_bound(store: Store, changes: ItemChanges) -> None:
    for _ in range(4):
        with store.client.pipeline() as pipe:
            changes.add(pipe, [f"i{n}" for n in range(ENTRIES_KEPT * IDS_AN_ENTRY // 2)])
            pipe.execute()
    assert ENTRIES_KEPT <= store.client.xlen(ITEMS_CHANGES) < 1.1 * ENTRIES_KEPT


def test_the_epoch_stays_while_the_data_do(store: Store, changes: ItemChanges) -> None:
    epoch = changes.state().epoch
    assert changes.state().epoch == epoch != ""
    store.client.flushall()
    assert changes.state().epoch != epoch


def test_a_store_that_may_not_be_written_to_has_no_epoch_and_is_read_all_the_same(
    store: Store, changes: ItemChanges, position: str
) -> None:
    if not store.url.startswith("embedded:"):
        pytest.skip("a cluster's and Sentinel's servers are not made replicas by hand")
    store.client.delete("ftrie:items:epoch")
    store.client.replicaof("127.0.0.1", "1")  # a replica, read-only, of a server that is not there
    try:
        state = changes.state()
        assert (state.epoch, state.position) == ("", position)
    finally:
        store.client.replicaof("NO", "ONE")
