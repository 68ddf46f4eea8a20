"""docs/degradation.md, "What is published": each kind of damage is refused by name, and what is served stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model_store.store import Store
from tests.degradation.system import Running, Valkey, eventually, serving
from tests.server import shop

CANDIDATES = list(shop.ITEMS)


def chunk_missing(store: Store, bad: int) -> None:
    store.client.delete(*store.model(shop.NAME).keys.chunks(bad, 1))


def chunk_truncated(store: Store, bad: int) -> None:
    chunk = store.model(shop.NAME).keys.chunks(bad, 1)[0]
    store.client.set(chunk, store.client.get(chunk)[:-7])


def bit_flipped(store: Store, bad: int) -> None:
    chunk = store.model(shop.NAME).keys.chunks(bad, 1)[0]
    data = bytearray(store.client.get(chunk))
    data[len(data) // 2] ^= 0x10
    store.client.set(chunk, bytes(data))


def newer_format(store: Store, bad: int) -> None:
    store.client.hset(store.model(shop.NAME).keys.manifest(bad), "format", "99")


def version_gone(store: Store, bad: int) -> None:
    keys = store.model(shop.NAME).keys
    store.client.delete(keys.manifest(bad), *keys.chunks(bad, 1))


def manifest_of_garbage(store: Store, bad: int) -> None:
    store.client.hset(store.model(shop.NAME).keys.manifest(bad), "rows", "many")


DAMAGES: dict[str, Callable[[Store, int], None]] = {
    "a chunk is missing": chunk_missing,
    "a chunk is cut short": chunk_truncated,
    "a bit is flipped": bit_flipped,
    "a manifest of a newer format": newer_format,
    "the pointer names a version that is gone": version_gone,
    "a manifest of garbage": manifest_of_garbage,
}


def point_at(store: Store, version: int) -> None:
    """Make a version active as no command of ours would: without a look at it."""
    store.client.set(store.model(shop.NAME).keys.active, version)


def refusals(running: Running) -> float:
    return running.metric("ftrie_refused_versions_total", model=shop.NAME)


def test_damaged_snapshots(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path) as running, Store.open(valkey.url) as store:
        running.await_ready()
        before = running.client.rank(candidates=CANDIDATES, variant="base").items
        for name, damage in DAMAGES.items():
            bad = store.model(shop.NAME).publish(shop.artefact(seed=2))
            damage(store, bad)
            point_at(store, bad)
            refused = refusals(running)
            eventually(lambda count=refused: refusals(running) > count, f"a refusal because {name}")
            assert str(bad) in running.model()["problem"], name
            answer = running.client.rank(candidates=CANDIDATES, variant="base")
            assert (answer.version, answer.items, answer.degraded) == (1, before, ()), name
            assert running.healthy(), name
        reasons = running.model()["refused"]
        assert sum(reasons.values()) >= len(DAMAGES)
        good = shop.publish(store, seed=3)
        eventually(lambda: running.client.rank(candidates=["item-1"]).version == good, "the good version")
        assert not running.model()["problem"]
        wanted = shop.expected_score(shop.ITEMS["item-1"], 0, seed=3)
        answer = running.client.rank(candidates=["item-1"], variant="base")
        assert answer.items[0].score == pytest.approx(wanted)


def test_delta_chains(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path) as running, Store.open(valkey.url) as store:
        running.await_ready()
        versions = store.model(shop.NAME)
        first, second, third = (shop.artefact(seed=seed) for seed in (1, 2, 3))
        two = versions.publish(second.changes_since(first, version=1))
        versions.activate(two)
        expect(running, two, seed=2)
        assert running.metric("ftrie_reloads_total", kind="delta") == 1

        lost = versions.publish(third.changes_since(second, version=two))
        after_lost = versions.publish(second.changes_since(third, version=lost))
        store.client.delete(versions.keys.manifest(lost), *versions.keys.chunks(lost, 1))
        refused = refusals(running)
        point_at(store, after_lost)
        eventually(lambda: refusals(running) > refused, "a refusal because of a gap")
        expect(running, two, seed=2)

        snapshot = versions.publish(third)
        versions.activate(snapshot)
        expect(running, snapshot, seed=3)


def test_delta_of_another_parent(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path) as running, Store.open(valkey.url) as store:
        running.await_ready()
        versions = store.model(shop.NAME)
        first, second, third = (shop.artefact(seed=seed) for seed in (1, 2, 3))
        other = versions.publish(third)
        wrong = versions.publish(second.changes_since(first, version=1))
        store.client.hset(versions.keys.manifest(wrong), "parent", other)
        refused = refusals(running)
        point_at(store, wrong)
        eventually(lambda: refusals(running) > refused, "a refusal because of the parent")
        expect(running, 1, seed=1)
        two = versions.publish(second.changes_since(first, version=1))
        versions.activate(two)
        expect(running, two, seed=2)


def expect(running: Running, version: int, seed: int) -> None:
    """The version is served, or comes; every score is that of its model, whole."""
    eventually(lambda: running.client.rank(candidates=["item-1"]).version == version, f"version {version}")
    answer = running.client.rank(candidates=CANDIDATES, variant="base")
    for item in answer.items:
        assert item.score == pytest.approx(shop.expected_score(shop.ITEMS[item.id], 0, seed=seed))
