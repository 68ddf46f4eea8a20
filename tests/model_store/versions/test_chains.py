"""Deltas in a real Valkey: published onto their parent, put together and verified, or refused by name."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import ArtefactError, StaleEpoch, StoreError, VersionNotFound
from model_store.model_files import read_named
from model_store.store import Store
from model_store.versions import model_versions
from model_store.versions.manifest import chain_of, is_whole, needed_by
from model_store.versions.model_versions import ModelVersions
from tests.model_store.kinds import on_every_kind
from tests.model_store.models import large_model, model

ROWS = 300


@pytest.fixture
def ads(store: Store, monkeypatch: pytest.MonkeyPatch) -> ModelVersions:
    monkeypatch.setattr(model_versions, "CHUNK_BYTES", 512)
    return store.model("ads")


@cache
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
        versions.append(ads.publish(stage(number).changes_since(stage(number - 1), version=versions[-1])))
    return versions


def test_a_version_between_that_is_of_no_chain_needs_the_snapshot(ads: ModelVersions) -> None:
    first = ads.publish(stage(0))
    beside = ads.publish(stage(7))
    delta = ads.publish(stage(1).changes_since(stage(0), version=first))
    assert ads.delta_chain(beside, ads.manifest(delta), at_most=9) is None


@on_every_kind
def test_a_chain_is_put_together_bit_for_bit_and_listed_and_fetched_as_it_is_stored(
    ads: ModelVersions, store_url: str
) -> None:
    versions = publish_line(ads, 5)
    for number, version in enumerate(versions):
        assert [each.version for each in ads.chain(version)] == versions[: number + 1]
        assert ads.materialise(version).to_bytes() == stage(number).to_bytes()
        assert ads.manifest(version).content == stage(number).content
    assert [each.version for each in ads.delta_chain(1, ads.manifest(4), at_most=3) or ()] == [2, 3, 4]
    assert ads.delta_chain(1, ads.manifest(4), at_most=2) is None
    found = ads.versions()
    assert [info.kind for info in found] == ["snapshot", *["delta"] * 4]
    assert [info.parent for info in found] == [None, 1, 2, 3, 4]
    assert [info.content for info in found] == [stage(number).content for number in range(5)]
    assert found[1].size < found[0].size and found[1].rows < found[0].rows
    snapshot, delta, manifest = ads.fetch(1), ads.fetch(2), ads.manifest(2)
    assert isinstance(snapshot, Artefact) and isinstance(delta, Delta)
    assert (manifest.kind, manifest.parent, manifest.rows) == ("delta", 1, delta.rows)
    assert (manifest.format, ads.manifest(1).format) == (3, 2)
    assert stage(0).with_changes(delta).to_bytes() == stage(1).to_bytes()
    ads.activate(2)
    assert read_named("ads", store_url).artefact.to_bytes() == stage(1).to_bytes()
    assert read_named("ads:3", store_url).artefact.to_bytes() == stage(2).to_bytes()


def test_a_delta_of_what_is_not_its_parent_is_refused(ads: ModelVersions) -> None:
    absent = "a delta of version 9, which does not exist; publish a snapshot"
    with pytest.raises(VersionNotFound, match=absent):
        ads.publish(stage(1).changes_since(stage(0), version=9))
    with pytest.raises(StoreError, match="got a delta without a parent"):
        ads.publish(stage(1).changes_since(stage(0)))
    assert ads.versions() == []
    parent = ads.publish(stage(2))
    other = f"whose content is {stage(2).content}, not what the delta changes"
    with pytest.raises(ArtefactError, match=other):
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


def change_chunk(store: Store, key: str, damage: str) -> None:
    chunk = store.client.get(key)
    if damage == "lost":
        store.client.delete(key)
    else:
        flipped = chunk[:100] + bytes([chunk[100] ^ 4]) + chunk[101:]
        store.client.set(key, chunk[:-1] if damage == "truncated" else flipped)


def put_another_snapshot_there(store: Store) -> None:
    store.model("other").publish(stage(3))
    for key in store.client.scan_iter(match="ftrie:{ads}:version:1*"):
        store.client.delete(key)
    for key in store.client.scan_iter(match="ftrie:{other}:version:1*"):
        store.client.restore(key.replace(b"other", b"ads"), 0, store.client.dump(key))


ANOTHER = (
    "version 3 should produce content .* from version 1, but its bytes produce content .* from version 2"
)
# What is damaged of versions 1 to 4: (version, field of the manifest or number of the chunk, what becomes of it).
DAMAGES: list[tuple[int, str | int, str, str]] = [
    (2, "", "lost", "version 2, the parent of 3, is gone"),
    (2, 0, "lost", "version 2 is incomplete: chunk 0"),
    (1, 1, "truncated", "version 1 is incomplete: chunk 1"),
    (3, 0, "flipped", "version 3 is damaged"),
    (2, "format", "4", "version 2 has format 4, newer than the 3 this ftrie reads: upgrade ftrie"),
    (3, "parent", "1", ANOTHER),
    (2, "parent", "4", "version 2 is a delta and names version 4 as its parent; expected an older one"),
    (2, "parent", "", "parent: got none, expected one for a delta"),
    (2, "kind", "snapshot", "version 2 should be a snapshot, but its bytes are not"),
    (2, "kind", "patch", "kind: got 'patch', expected snapshot or delta"),
    (1, "", "replaced", "version 4 cannot be loaded: the delta changes a model with content"),
]


@pytest.mark.parametrize(("version", "part", "damage", "complaint"), DAMAGES)
def test_a_damaged_chain_is_neither_put_together_nor_activated(
    store: Store, ads: ModelVersions, version: int, part: str | int, damage: str, complaint: str
) -> None:
    *_, newest = publish_line(ads, 4)
    good = ads.publish_and_activate(stage(0))
    if isinstance(part, int):
        change_chunk(store, ads.keys.chunks(version, part + 1)[part], damage)
    elif part:
        store.client.hset(ads.keys.manifest(version), part, damage)
    elif damage == "lost":
        store.client.delete(ads.keys.manifest(version))
    else:
        put_another_snapshot_there(store)
    for attempt in (ads.materialise, ads.activate, ads.rollback):
        with pytest.raises(ArtefactError, match=complaint):
            attempt(newest)
    assert ads.active() == good


def test_the_script_refuses_a_delta_whose_snapshot_lost_a_chunk(store: Store, ads: ModelVersions) -> None:
    epoch = ads.begin()
    *_, newest = publish_line(ads, 3)
    store.client.delete(ads.keys.chunks(1, 2)[1])
    said = "version 1 is incomplete: chunk 1 should have 512 bytes and has 0"
    with pytest.raises(ArtefactError, match=said):
        ads.activate(newest, epoch=epoch)
    assert ads.active() is None


@on_every_kind
def test_gc_keeps_what_the_kept_deltas_need(store: Store, ads: ModelVersions) -> None:
    first, second = publish_line(ads, 3), publish_line(ads, 4, first=3)
    assert ads.gc(keep=1, dry_run=True) == first
    assert ads.gc(keep=1) == first
    assert [info.version for info in ads.versions()] == second
    assert ads.materialise(second[-1]).to_bytes() == stage(6).to_bytes()
    assert ads.gc(keep=1) == []


def test_rollback_goes_to_a_delta_and_from_a_delta(ads: ModelVersions) -> None:
    versions = publish_line(ads, 4)
    for version in versions:
        ads.activate(version)
    assert [ads.rollback(), ads.rollback()] == [versions[2], versions[1]]
    assert ads.rollback(versions[3]) == versions[3]
    assert ads.rollback(versions[0]) == versions[0]


def test_rollback_passes_over_a_delta_that_cannot_be_put_together(store: Store, ads: ModelVersions) -> None:
    snapshot, broken, after = ads.publish(stage(0)), *publish_line(ads, 2)
    for version in (snapshot, after, ads.publish(stage(2))):
        ads.activate(version)
    store.client.delete(ads.keys.manifest(broken))
    assert ads.rollback() == snapshot


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
