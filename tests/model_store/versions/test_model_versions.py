"""Versions in a real Valkey: complete or absent, verified, fenced, rolled back, collected."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from model_store.errors import ArtefactError, StaleEpoch, StoreError, UsageError, VersionNotFound
from model_store.store import Store
from model_store.versions import model_versions
from model_store.versions.manifest import UPLOAD_EXPIRY_S, Manifest, VersionInfo
from model_store.versions.model_versions import ModelVersions, _thinned, shown_numbers
from tests.matrix import slow_except
from tests.model_store.kinds import on_every_kind
from tests.model_store.models import KEYS, large_model, model, python


@pytest.fixture
def ads(store: Store, monkeypatch: pytest.MonkeyPatch) -> ModelVersions:
    monkeypatch.setattr(model_versions, "CHUNK_BYTES", 512)
    return store.model("ads")


def keys_of(store: Store, pattern: str = "*") -> set[str]:
    return {key.decode() for key in store.client.scan_iter(match=pattern)}


def publish(ads: ModelVersions, versions: int, activate: Iterable[int] = ()) -> None:
    for _ in range(versions):
        ads.publish(model())
    for version in activate:
        ads.activate(version)


def numbers(ads: ModelVersions) -> list[int]:
    return [info.version for info in ads.versions()]


@on_every_kind
def test_a_published_version_is_fetched_as_it_was_and_active_once_it_is_activated(
    store: Store, ads: ModelVersions
) -> None:
    artefact, seen = large_model(500), list[tuple[int, int]]()
    version = ads.publish(artefact, on_progress=lambda done, total: seen.append((done, total)))
    manifest = ads.manifest(version)
    assert manifest.chunks > 5
    assert (manifest.rows, manifest.sha256, manifest.metrics) == (500, artefact.sha256, artefact.metrics)
    assert ads.fetch(version).to_bytes() == artefact.to_bytes()
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(manifest.chunk_sizes())
    lasting = keys_of(store) - keys_of(store, "*:answer:*")
    assert {store.client.ttl(key) for key in lasting} == {-1}  # nothing is left to expire
    assert ads.active() is None
    assert ads.activate(version) is None
    assert ads.active() == version
    assert (store.model("other").versions(), store.model("other").active()) == ([], None)


def test_versions_are_listed_oldest_first_with_the_active_one(ads: ModelVersions) -> None:
    for rows in range(1, 12):
        ads.publish(model(KEYS[:1] + [b"age=%d" % row for row in range(rows - 1)]))
    ads.activate(3)
    found = ads.versions()
    assert [(info.version, info.rows) for info in found] == [(n, n) for n in range(1, 12)]
    assert [info.version for info in found if info.active] == [3]


PUBLISH = """
import sys
from model_store.versions import model_versions
from model_store.store import Store
from tests.model_store.models import large_model
model_versions.CHUNK_BYTES = 512
artefact = large_model(3000)
with Store.open(sys.argv[1]) as store:
    versions = store.model("ads")
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        print(versions.publish_and_activate(artefact), flush=True)
"""


@pytest.mark.parametrize("seed", slow_except(range(1), range(2)))
def test_a_publisher_killed_at_any_moment_leaves_nothing_half_visible(
    store: Store, store_url: str, seed: int
) -> None:
    ads = store.model("ads")
    with python(PUBLISH, store_url) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        publisher.stdout.readline()
        publisher.stdin.write("go\n")
        publisher.stdin.flush()
        chunks_to_see = random.Random(seed).randrange(1, 150)
        while len(keys_of(store, "ftrie:{ads}:version:*:chunk:*")) < chunks_to_see:
            pass
        publisher.kill()
    visible = ads.versions()
    for info in visible:
        assert ads.fetch(info.version).rows == info.rows
    active = ads.active()
    assert active is None or active in [info.version for info in visible]
    for key in keys_of(store, "ftrie:{ads}:version:*"):
        if int(key.split(":")[3]) not in [info.version for info in visible]:
            assert 0 < store.client.ttl(key) <= UPLOAD_EXPIRY_S


@pytest.mark.parametrize("becomes_a_list", [False, True])
def test_a_version_whose_chunk_expired_while_uploading_stays_absent(
    store: Store, ads: ModelVersions, becomes_a_list: bool
) -> None:
    def lose_the_first(done: int, total: int) -> None:
        if done == total:
            first = ads.keys.chunks(1, 1)[0]
            store.client.delete(first)
            if becomes_a_list:
                store.client.lpush(first, "junk")

    with pytest.raises(ArtefactError, match=r"chunk 0 should have 512 bytes and has 0"):
        ads.publish(large_model(500), on_progress=lose_the_first)
    assert ads.versions() == []
    with pytest.raises(VersionNotFound):
        ads.manifest(1)


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_damaged_version_is_not_fetched_or_activated(store: Store, ads: ModelVersions, damage: str) -> None:
    good, bad = ads.publish_and_activate(model()), ads.publish(large_model(500))
    key = ads.keys.chunks(bad, 3)[2]
    chunk = store.client.get(key)
    flipped = chunk[:100] + bytes([chunk[100] ^ 4]) + chunk[101:]
    store.client.set(key, {"missing": b"", "truncated": chunk[:-1], "flipped": flipped}[damage])
    if damage == "missing":
        store.client.delete(key)
    for attempt in (ads.fetch, ads.activate, ads.rollback):
        with pytest.raises(ArtefactError, match=f"version {bad} is (incomplete|damaged)"):
            attempt(bad)
    assert ads.active() == good


@pytest.mark.parametrize("size", [0, 511, 513])
def test_the_script_refuses_a_chunk_of_another_size_by_itself(
    store: Store, ads: ModelVersions, size: int
) -> None:
    epoch = ads.begin()
    version = ads.publish(large_model(500), epoch=epoch)
    store.client.set(ads.keys.chunks(version, 2)[1], bytes(size))
    with pytest.raises(ArtefactError, match=f"chunk 1 should have 512 bytes and has {size}"):
        ads.activate(version, epoch=epoch)
    assert ads.active() is None


def test_a_manifest_that_cannot_be_read_or_is_of_a_newer_format_is_refused(
    store: Store, ads: ModelVersions
) -> None:
    manifest = ads.manifest(ads.publish(model(), parent=7, epoch=3))
    fields = {name.encode(): value.encode() for name, value in manifest.to_hash().items()}
    assert Manifest.from_hash(fields) == manifest
    assert (manifest.parent, manifest.epoch) == (7, 3)
    store.client.hset(ads.keys.manifest(1), "format", "4")
    for attempt in (ads.fetch, ads.activate):
        with pytest.raises(ArtefactError, match="format 4, newer than the 3 this ftrie reads: upgrade ftrie"):
            attempt(1)
    store.client.hset(ads.keys.manifest(1), mapping={"format": "3", "rows": "many"})
    with pytest.raises(ArtefactError, match="manifest cannot be read"):
        ads.fetch(1)
    store.client.hdel(ads.keys.manifest(1), "rows")
    with pytest.raises(ArtefactError, match="manifest has no field 'rows'"):
        ads.fetch(1)
    assert ads.active() is None


def test_an_unknown_version_is_named_with_those_there_are_or_the_first_and_the_last(
    ads: ModelVersions,
) -> None:
    ads.publish(model())
    for attempt in (ads.fetch, ads.activate, ads.manifest, ads.rollback, ads.materialise, ads.chain):
        with pytest.raises(VersionNotFound, match="ads has no version 9; its versions: 1"):
            attempt(9)
    assert shown_numbers([]) == "none"
    assert shown_numbers(range(1, 101)).endswith("98, 99, 100")
    assert shown_numbers(range(1, 2001)) == "1, 2, 3, … 1998, 1999, 2000 (2,000 in total)"


@on_every_kind
def test_a_writer_overtaken_while_publishing_is_refused(ads: ModelVersions) -> None:
    slow, epoch = ads.begin(), ads.begin()
    for _ in range(2):  # again under the same epoch
        ads.activate(ads.publish(model(), epoch=epoch), epoch=epoch)
    late = ads.publish(model(), epoch=slow)
    with pytest.raises(StaleEpoch, match="another writer"):
        ads.activate(late, epoch=slow)
    assert ads.active() == 2


def test_a_rollback_fences_off_a_writer_that_began_before_it(ads: ModelVersions) -> None:
    publish(ads, 2, activate=(1, 2))
    training = ads.begin()
    ads.rollback()
    with pytest.raises(StaleEpoch):
        ads.activate(ads.publish(model(), epoch=training), epoch=training)
    assert ads.active() == 1


def test_rollback_goes_back_through_what_was_active_not_the_numbers(store: Store, ads: ModelVersions) -> None:
    with pytest.raises(VersionNotFound, match=r"none is active\); its versions: none"):
        ads.rollback()
    publish(ads, 4, activate=(1, 3, 2, 4))
    assert [ads.rollback(), ads.rollback(), ads.rollback()] == [2, 3, 1]
    none = r"no version before the active one \(1\); its versions: 1, 2, 3, 4"
    with pytest.raises(VersionNotFound, match=none):
        ads.rollback()
    for version in (2, 3, 4):
        ads.activate(version)
    assert [ads.rollback(2), ads.rollback()] == [2, 1], "to a version, it forgets what came after it"
    ads.activate(3)
    store.client.delete(ads.keys.history)
    assert [ads.rollback(), ads.rollback()] == [2, 1], "without history, the newest older version"


def test_going_back_tells_what_was_active_when_it_happened(
    ads: ModelVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ads, 3, activate=(1, 2, 3))
    verify = ads._verify

    def while_another_activates(manifest: Manifest) -> None:
        ads.activate(1, epoch=ads.begin())
        verify(manifest)

    monkeypatch.setattr(ads, "_verify", while_another_activates)
    assert ads.go_back() == (2, 1)


def test_rollback_passes_over_versions_that_are_gone(ads: ModelVersions) -> None:
    publish(ads, 5, activate=(5, 1, 4))
    assert ads.gc(keep=1) == [2, 3]
    assert ads.rollback() == 1
    ads.activate(5)
    assert ads.gc(keep=1) == [4]


def test_activating_the_active_version_changes_nothing(store: Store, ads: ModelVersions) -> None:
    ads.publish_and_activate(model())
    event = ads.last_event()
    assert ads.activate(1) == 1
    assert ads.last_event() == event
    assert store.client.llen(ads.keys.history) == 0


def test_by_default_gc_keeps_a_snapshot_of_each_of_the_last_minutes_hours_and_days(
    ads: ModelVersions,
) -> None:
    publish(ads, 1)
    (first,) = ads.versions()
    at = datetime(2026, 1, 10, 12, 30, 30, tzinfo=UTC)
    infos = [
        replace(first, version=number, published=at - timedelta(seconds=ago), kind=kind, refused=refused)
        for number, (ago, kind, refused) in enumerate(
            [
                (5 * 86_400, "snapshot", ""),  # too long ago
                (30 * 3_600, "delta", ""),  # a chain of its own would be needed
                (29 * 3_600, "snapshot", "refused"),
                (28 * 3_600, "snapshot", ""),
                (27 * 3_600, "snapshot", ""),
                (2 * 3_600, "snapshot", ""),
                (100, "snapshot", ""),
                (95, "snapshot", ""),
                (-400, "snapshot", ""),  # of a clock that was ahead
                (10, "snapshot", ""),
            ],
            1,
        )
    ]
    assert _thinned(infos) == {4, 6, 7, 10}
    publish(ads, 8)
    assert 1 not in ads.gc() and ads.gc(keep=1)


@on_every_kind
def test_gc_keeps_the_newest_the_active_and_the_one_to_roll_back_to(store: Store, ads: ModelVersions) -> None:
    publish(ads, 8, activate=(2, 4))
    assert ads.gc(keep=5) == [1, 3]
    assert ads.gc(keep=2, dry_run=True) == ads.gc(keep=2) == [5, 6]
    assert numbers(ads) == [2, 4, 7, 8]
    left = {int(key.split(":")[3]) for key in keys_of(store, "ftrie:{ads}:version:*")}
    assert left == {2, 4, 7, 8}
    assert ads.gc(keep=2) == []
    with pytest.raises(StoreError, match="expected at least 1"):
        ads.gc(keep=0)
    store.client.delete(ads.keys.manifest(7))  # a broken manifest keeps no version
    assert ads.gc(keep=1) == [7]
    assert numbers(ads) == [2, 4, 8]


def test_a_version_activated_while_gc_decides_is_kept(
    store: Store, ads: ModelVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ads, 3)
    decide = ads._numbers

    def activated_meanwhile() -> list[int]:
        monkeypatch.setattr(ads, "_numbers", decide)
        numbers = decide()
        store.model("ads").activate(1)
        return numbers

    monkeypatch.setattr(ads, "_numbers", activated_meanwhile)
    assert ads.gc(keep=1) == [2]
    assert ads.fetch(1).rows == len(KEYS)


def test_a_version_that_a_guard_begins_to_watch_while_gc_decides_is_kept(
    store: Store, ads: ModelVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ads, 3)
    decide = ads.versions

    def watched_meanwhile() -> list[VersionInfo]:
        monkeypatch.setattr(ads, "versions", decide)
        store.model("ads").guard.watch(1, 2)
        return decide()

    monkeypatch.setattr(ads, "versions", watched_meanwhile)
    assert ads.gc(keep=1) == []
    assert ads.fetch(1).rows == len(KEYS)


@on_every_kind
def test_wait_returns_when_a_version_is_activated(ads: ModelVersions, store_url: str) -> None:
    before = ads.last_event()

    def activate_elsewhere() -> None:
        with Store.open(store_url) as other:
            other.model("ads").publish_and_activate(model())

    activator = threading.Thread(target=activate_elsewhere)
    activator.start()
    after = ads.wait(before, timeout_s=30.0)
    activator.join()
    assert after != before
    assert ads.active() == 1
    assert ads.wait(before, timeout_s=30.0) == after == ads.last_event()  # it was before this wait began


def test_wait_gives_the_same_id_back_when_nothing_happens(store_url: str) -> None:
    with Store.open(store_url, timeout_s=0.2) as impatient:  # waits longer than the socket's timeout
        ads = impatient.model("ads")
        event = ads.last_event()
        began = time.monotonic()
        assert ads.wait(event, timeout_s=0.5) == event
        assert time.monotonic() - began >= 0.5


def test_wait_goes_on_when_the_only_server_becomes_a_replica(valkey_url: str) -> None:
    with Store.open(valkey_url) as store, ThreadPoolExecutor(1) as pool:
        ads = store.model("ads")
        waiting = pool.submit(ads.wait, event := ads.last_event(), 30.0)
        while not store.client.info("clients")["blocked_clients"]:
            assert not waiting.done()
        store.client.replicaof("127.0.0.1", "1")  # Valkey answers what blocks with UNBLOCKED
        store.client.replicaof("NO", "ONE")
        ads.publish_and_activate(model())
        assert waiting.result() == ads.last_event() != event


def test_names_and_pointers_that_cannot_be_are_refused(ads: ModelVersions, store: Store) -> None:
    for name in ("", "a b", "a{b}", "ä", "a" * 129, "a\n"):
        with pytest.raises(UsageError, match="1 to 128 letters, digits"):
            store.model(name)
    store.client.set(ads.keys.active, "newest")
    with pytest.raises(StoreError, match=r"ftrie:\{ads\}:active: got 'newest', expected a whole number"):
        ads.active()
