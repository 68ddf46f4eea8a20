"""Deltas in a real Valkey: published onto their parent, put together and verified, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import ArtefactError, StaleEpoch, StoreError, VersionNotFound
from model_store.model_files import read_named
from model_store.store import Store
from model_store.versions import model_versions
from model_store.versions.chain import chain_of, is_whole, needed_by
from model_store.versions.model_versions import ModelVersions
from tests.model_store.models import large_model, model

ROWS = 300


@pytest.fixture
def ads(store: Store, monkeypatch: pytest.MonkeyPatch) -> ModelVersions:
    monkeypatch.setattr(model_versions, "CHUNK_BYTES", 512)
    return store.model("ads")


def stage(number: int) -> Artefact:
    """The model at its numberth publication: some keys heavier, one gone, one new."""
    large = large_model(ROWS)
    keys = [*large.key_list()[number:], *(b"brand=%d" % each for each in range(number))]
    weight = np.concatenate([large.weight[number:], np.full(number, 0.5, np.float32)])
    weight[::10] += number
    return model(keys, weight.tolist(), metrics={"base": {"logloss": 0.5 - number / 100}})


def publish_line(ads: ModelVersions, stages: int, first: int = 0) -> list[int]:
    """A snapshot and deltas after it."""
    versions = [ads.publish(stage(first))]
    for number in range(first + 1, first + stages):
        delta = stage(number).changes_since(stage(number - 1), version=versions[-1])
        versions.append(ads.publish(delta))
    return versions


def test_a_chain_is_put_together_bit_for_bit(ads: ModelVersions) -> None:
    versions = publish_line(ads, 5)
    for number, version in enumerate(versions):
        assert ads.chain(version) == versions[: number + 1]
        assert ads.materialise(version).to_bytes() == stage(number).to_bytes()
        assert ads.manifest(version).content == stage(number).content


def test_a_version_is_fetched_as_it_is_stored(ads: ModelVersions) -> None:
    publish_line(ads, 2)
    snapshot, delta = ads.fetch(1), ads.fetch(2)
    assert isinstance(snapshot, Artefact)
    assert isinstance(delta, Delta)
    manifest = ads.manifest(2)
    assert (manifest.kind, manifest.parent, manifest.rows) == ("delta", 1, delta.rows)
    assert (manifest.format, ads.manifest(1).format) == (3, 2)
    assert stage(0).with_changes(delta).to_bytes() == stage(1).to_bytes()


def test_a_list_tells_kinds_parents_and_contents(ads: ModelVersions) -> None:
    publish_line(ads, 3)
    assert [(info.kind, info.parent) for info in ads.versions()] == [
        ("snapshot", None),
        ("delta", 1),
        ("delta", 2),
    ]
    assert [info.content for info in ads.versions()] == [stage(number).content for number in range(3)]
    snapshot, delta, _ = ads.versions()
    assert delta.size < snapshot.size
    assert delta.rows < snapshot.rows


def test_a_manifest_of_before_deltas_is_a_snapshot_and_a_parent(store: Store, ads: ModelVersions) -> None:
    version = ads.publish(stage(0))
    store.client.hdel(ads.keys.manifest(version), "kind", "content")
    manifest = ads.manifest(version)
    assert (manifest.kind, manifest.content, manifest.is_delta) == ("snapshot", "", False)
    assert ads.chain(version) == [version]
    assert ads.materialise(version).content == stage(0).content
    delta = ads.publish(stage(1).changes_since(stage(0), version=version))
    assert ads.materialise(delta).to_bytes() == stage(1).to_bytes()


def test_a_delta_is_named_like_any_version(ads: ModelVersions, store_url: str) -> None:
    publish_line(ads, 3)
    ads.activate(2)
    assert read_named("ads", store_url).artefact.to_bytes() == stage(1).to_bytes()
    assert read_named("ads:3", store_url).artefact.to_bytes() == stage(2).to_bytes()


# -- publishing


def test_a_delta_of_a_version_that_is_not_there_is_refused(ads: ModelVersions) -> None:
    delta = stage(1).changes_since(stage(0), version=9)
    with pytest.raises(
        VersionNotFound, match=r"a delta of version 9, which does not exist; publish a snapshot"
    ):
        ads.publish(delta)
    with pytest.raises(StoreError, match="got a delta without a parent"):
        ads.publish(stage(1).changes_since(stage(0)))
    assert ads.versions() == []


def test_a_delta_of_another_content_than_its_parents_is_refused(ads: ModelVersions) -> None:
    parent = ads.publish(stage(2))
    with pytest.raises(
        ArtefactError, match=f"whose content is {stage(2).content}, not what the delta changes"
    ):
        ads.publish(stage(1).changes_since(stage(0), version=parent))
    assert [info.version for info in ads.versions()] == [parent]


def test_a_parent_given_to_publish_goes_into_the_bytes(ads: ModelVersions) -> None:
    ads.publish(model())
    parent = ads.publish(stage(0))
    version = ads.publish(stage(1).changes_since(stage(0)), parent=parent)
    fetched = ads.fetch(version)
    assert isinstance(fetched, Delta)
    assert fetched.parent == parent == ads.manifest(version).parent


def test_a_delta_is_activated_with_its_writers_epoch_or_refused_by_it(ads: ModelVersions) -> None:
    slow = ads.begin()
    first = ads.publish_and_activate(stage(0))
    assert ads.publish_and_activate(stage(1).changes_since(stage(0), version=first)) == 2
    late = ads.publish(stage(2).changes_since(stage(1), version=2), epoch=slow)
    with pytest.raises(StaleEpoch):
        ads.activate(late, epoch=slow)
    assert ads.active() == 2


# -- damage, anywhere in the chain


def lose_a_version(store: Store, ads: ModelVersions) -> str:
    store.client.delete(ads.keys.manifest(2))
    return "version 2, the parent of 3, is gone"


def lose_a_chunk(store: Store, ads: ModelVersions) -> str:
    store.client.delete(ads.keys.chunks(2, 1)[0])
    return "version 2 is incomplete: chunk 0"


def truncate_a_chunk(store: Store, ads: ModelVersions) -> str:
    key = ads.keys.chunks(1, 2)[1]
    store.client.set(key, store.client.get(key)[:-1])
    return "version 1 is incomplete: chunk 1"


def flip_a_bit(store: Store, ads: ModelVersions) -> str:
    key = ads.keys.chunks(3, 1)[0]
    chunk = bytearray(store.client.get(key))
    chunk[100] ^= 4
    store.client.set(key, bytes(chunk))
    return "version 3 is damaged"


def make_it_of_a_newer_format(store: Store, ads: ModelVersions) -> str:
    store.client.hset(ads.keys.manifest(2), "format", "4")
    return "version 2 has format 4, newer than the 3 this ftrie reads: upgrade ftrie"


def name_another_parent(store: Store, ads: ModelVersions) -> str:
    store.client.hset(ads.keys.manifest(3), "parent", "1")
    return (
        "version 3 should produce content .* from version 1, but its bytes produce content .* from version 2"
    )


def name_a_younger_parent(store: Store, ads: ModelVersions) -> str:
    store.client.hset(ads.keys.manifest(2), "parent", "4")
    return "version 2 is a delta and names version 4 as its parent; expected an older one"


def name_no_parent(store: Store, ads: ModelVersions) -> str:
    store.client.hset(ads.keys.manifest(2), "parent", "")
    return "parent: got none, expected one for a delta"


def call_it_a_snapshot(store: Store, ads: ModelVersions) -> str:
    store.client.hset(ads.keys.manifest(2), "kind", "snapshot")
    return "version 2 should be a snapshot, but its bytes are not"


def call_it_something_else(store: Store, ads: ModelVersions) -> str:
    store.client.hset(ads.keys.manifest(2), "kind", "patch")
    return "kind: got 'patch', expected snapshot or delta"


def put_another_snapshot_there(store: Store, ads: ModelVersions) -> str:
    other = store.model("other")
    other.publish(stage(3))
    for key in store.client.scan_iter(match="ftrie:{ads}:version:1*"):
        store.client.delete(key)
    for key in store.client.scan_iter(match="ftrie:{other}:version:1*"):
        store.client.restore(key.replace(b"other", b"ads"), 0, store.client.dump(key))
    return "version 4 cannot be loaded: the delta changes a model with content"


DAMAGES = [
    lose_a_version,
    lose_a_chunk,
    truncate_a_chunk,
    flip_a_bit,
    make_it_of_a_newer_format,
    name_another_parent,
    name_a_younger_parent,
    name_no_parent,
    call_it_a_snapshot,
    call_it_something_else,
    put_another_snapshot_there,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_damaged_chain_is_neither_put_together_nor_activated(
    store: Store, ads: ModelVersions, damage: Callable[[Store, ModelVersions], str]
) -> None:
    *_, newest = publish_line(ads, 4)
    good = ads.publish_and_activate(stage(0))
    complaint = damage(store, ads)
    for attempt in (ads.materialise, ads.activate, ads.rollback):
        with pytest.raises(ArtefactError, match=complaint):
            attempt(newest)
    assert ads.active() == good


def test_the_script_refuses_a_delta_whose_snapshot_lost_a_chunk(store: Store, ads: ModelVersions) -> None:
    epoch = ads.begin()
    *_, newest = publish_line(ads, 3)
    store.client.delete(ads.keys.chunks(1, 2)[1])
    with pytest.raises(
        ArtefactError, match="version 1 is incomplete: chunk 1 should have 512 bytes and has 0"
    ):
        ads.activate(newest, epoch=epoch)
    assert ads.active() is None


def test_a_pointer_to_a_version_that_is_gone_is_named(store: Store, ads: ModelVersions) -> None:
    publish_line(ads, 2)
    store.client.set(ads.keys.active, "7")
    for attempt in (ads.materialise, ads.chain, ads.fetch, ads.manifest):
        with pytest.raises(VersionNotFound, match="ads has no version 7; its versions: 1, 2"):
            attempt(ads.active_or_fail())


# -- collecting and going back


def test_gc_keeps_what_the_kept_deltas_need(store: Store, ads: ModelVersions) -> None:
    first, second = publish_line(ads, 3), publish_line(ads, 4, first=3)
    assert ads.gc(keep=1, dry_run=True) == first
    assert ads.gc(keep=1) == first
    assert [info.version for info in ads.versions()] == second
    assert ads.materialise(second[-1]).to_bytes() == stage(6).to_bytes()
    assert ads.gc(keep=1) == []


def test_gc_keeps_the_chains_of_the_active_version_and_of_the_one_before(ads: ModelVersions) -> None:
    lines = [publish_line(ads, 3, first=3 * number) for number in range(4)]
    ads.activate(lines[1][1])
    ads.activate(lines[2][1])
    kept = [*lines[1][:2], *lines[2][:2], *lines[3]]
    ads.gc(keep=1)
    assert [info.version for info in ads.versions()] == kept
    assert ads.rollback() == lines[1][1]


def test_rollback_goes_to_a_delta_and_from_a_delta(ads: ModelVersions) -> None:
    versions = publish_line(ads, 4)
    for version in versions:
        ads.activate(version)
    assert [ads.rollback(), ads.rollback()] == [versions[2], versions[1]]
    assert ads.rollback(versions[3]) == versions[3]
    assert ads.rollback(versions[0]) == versions[0]


def test_rollback_passes_over_a_delta_that_cannot_be_put_together(store: Store, ads: ModelVersions) -> None:
    snapshot, broken, after = ads.publish(stage(0)), *publish_line(ads, 2)
    newest = ads.publish(stage(2))
    for version in (snapshot, after, newest):
        ads.activate(version)
    store.client.delete(ads.keys.manifest(broken))
    assert ads.rollback() == snapshot


# -- how versions hang together


def test_chains_by_the_numbers() -> None:
    parents = {1: None, 2: 1, 3: 2, 4: None, 6: 5, 7: 6}
    assert chain_of(3, parents) == [1, 2, 3]
    assert chain_of(4, parents) == [4]
    assert [version for version in parents if is_whole(version, parents)] == [1, 2, 3, 4]
    assert not is_whole(9, parents)
    assert needed_by([3, 7, 9], parents) == {1, 2, 3, 6, 7}
    with pytest.raises(ArtefactError, match="version 7 is a delta and cannot be loaded: version 5, the par"):
        chain_of(7, parents)
    with pytest.raises(ArtefactError, match="names version 2 as its parent; expected an older one"):
        chain_of(2, {2: 2})
