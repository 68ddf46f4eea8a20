"""The stream of changed items: what a reader learns, and when it learns that it cannot know."""

from __future__ import annotations

import pytest

from model_store.keys import ITEMS_CHANGES
from model_store.records import records as item_changes
from model_store.records.records import IDS_AN_ENTRY, ItemChanges
from model_store.store import Store
from tests.model_store.kinds import on_every_kind


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


@on_every_kind
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
    ids = [word for each in ("y", "z", b"\xff", "", "x" * 4097, "good") for word in ("id", each)]
    store.client.execute_command("XADD", ITEMS_CHANGES, "*", "by", "me", *ids)
    found = changes.since(position)
    assert found is not None
    assert list(found[0]) == ["x", "y", "z", "\udcff", "good"]  # what cannot be an id is skipped


@on_every_kind
def test_a_reader_learns_that_the_stream_was_trimmed_past_it_or_is_another_one(
    store: Store, changes: ItemChanges, position: str
) -> None:
    epoch = changes.state().epoch
    store.client.xadd(ITEMS_CHANGES, {"id": "b"}, maxlen=1, approximate=False)
    assert changes.since(position) is None
    assert changes.state().epoch == epoch != ""
    store.client.flushall()
    assert changes.since(position) is None
    store.records.put_items([("a", {"n": "1"})])
    assert changes.since(position) is None
    assert changes.state().epoch != epoch


def test_the_stream_does_not_grow_without_bound(
    store: Store, changes: ItemChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_changes, "ENTRIES_KEPT", 500)
    for _ in range(4):
        with store.client.pipeline() as pipe:
            changes.add(pipe, [f"i{n}" for n in range(500 * IDS_AN_ENTRY // 2)])
            pipe.execute()
    assert 500 <= store.client.xlen(ITEMS_CHANGES) < 700


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
