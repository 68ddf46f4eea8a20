"""docs/degradation.md, "What is published": each kind of damage is refused by name, and what is served stays."""

from __future__ import annotations

from collections.abc import Callable

from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.waiting import eventually

DAMAGED, GONE, NEWER, UNREADABLE = "damaged", "gone", "newer", "unreadable"


class Published:
    """Versions that come into the store as no command of ours would let them."""

    def __init__(self, whole: WholeShop, recovered: Recovered) -> None:
        self.whole, self.recovered = whole, recovered
        self.client, self.keys = whole.store.client, whole.versions.keys
        self.before = whole.ask()

    def point_at(self, version: int) -> None:
        self.client.set(self.keys.active, version)
        self.client.xadd(self.keys.events, {"version": version})

    def in_manifest(self, version: int, name: str, value: object) -> None:
        self.client.hset(self.keys.manifest(version), name, value)

    def refused(self, version: int, reason: str) -> None:
        """Point at it: it is refused for this reason, and all else stays as it was."""
        refusals = self.refusals(reason)
        self.whole.answers_as(version, seed=-1)  # a model that there is not: it must not answer
        self.point_at(version)
        eventually(lambda: self.refusals(reason) > refusals, f"a refusal of version {version}: {reason}")
        assert f"version {version} was refused ({reason})" in self.whole.running.model()["problem"]
        assert self.whole.running.model()["refused"][reason] == self.refusals(reason)
        self.answers_as_before()

    def answers_as_before(self) -> None:
        answer = self.whole.ask()
        assert (answer.version, answer.items, answer.degraded) == (self.before.version, self.before.items, ())
        assert self.whole.running.healthy()

    def recovers_by(self, version: int) -> None:
        """A good version has been activated just now."""
        self.recovered.then(lambda: self.whole.serves(version), "a good version is served")
        eventually(self.whole.follows, "no problem any more")  # the status is a moment behind the answers

    def refusals(self, reason: str) -> float:
        return self.whole.metric("ftrie_refused_versions_total", model=shop.NAME, reason=reason)


def damaged_snapshot(
    whole: WholeShop, recovered: Recovered, damage: Callable[[Published, int], None], reason: str
) -> None:
    """One that is published whole, then damaged, then pointed at."""
    published = Published(whole, recovered)
    bad = whole.versions.publish(shop.artefact(seed=2))
    damage(published, bad)
    published.refused(bad, reason)
    published.recovers_by(whole.publish(seed=3))


def first_chunk(published: Published, version: int) -> str:
    return published.keys.chunks(version, 1)[0]


def flip_a_bit(published: Published, version: int) -> None:
    chunk = first_chunk(published, version)
    data = bytearray(published.client.get(chunk))
    data[len(data) // 2] ^= 0x10
    published.client.set(chunk, bytes(data))


def remove(published: Published, version: int) -> None:
    published.client.delete(published.keys.manifest(version), first_chunk(published, version))


def test_chunk_is_missing(whole: WholeShop, recovered: Recovered) -> None:
    damaged_snapshot(whole, recovered, lambda p, version: p.client.delete(first_chunk(p, version)), DAMAGED)


def test_chunk_is_cut_short(whole: WholeShop, recovered: Recovered) -> None:
    def damage(published: Published, version: int) -> None:
        chunk = first_chunk(published, version)
        published.client.set(chunk, published.client.get(chunk)[:-7])

    damaged_snapshot(whole, recovered, damage, DAMAGED)


def test_bit_is_flipped(whole: WholeShop, recovered: Recovered) -> None:
    damaged_snapshot(whole, recovered, flip_a_bit, DAMAGED)


def test_manifest_is_of_a_newer_format(whole: WholeShop, recovered: Recovered) -> None:
    damaged_snapshot(whole, recovered, lambda p, version: p.in_manifest(version, "format", 99), NEWER)


def test_manifest_is_garbage(whole: WholeShop, recovered: Recovered) -> None:
    damaged_snapshot(whole, recovered, lambda p, version: p.in_manifest(version, "rows", "many"), DAMAGED)


def test_pointer_names_a_version_that_is_gone(whole: WholeShop, recovered: Recovered) -> None:
    damaged_snapshot(whole, recovered, remove, GONE)


def test_pointer_is_junk(whole: WholeShop, recovered: Recovered) -> None:
    published = Published(whole, recovered)
    refusals = published.refusals(UNREADABLE)
    published.client.set(published.keys.active, "abc")
    eventually(lambda: published.refusals(UNREADABLE) > refusals, "a refusal of the pointer")
    problem = whole.running.model()["problem"]
    assert "active: got 'abc'" in problem and "ftrie store check shop --repair" in problem
    published.answers_as_before()
    assert all(each.repaired for each in whole.store.check([shop.NAME], repair=True))
    assert whole.versions.active() == published.before.version
    recovered.then(lambda: whole.running.model()["problem"] == "", "all is well")
    assert whole.follows()


def test_version_is_mended(whole: WholeShop, recovered: Recovered) -> None:
    published = Published(whole, recovered)
    version = whole.versions.publish(shop.artefact(seed=2))
    chunk = first_chunk(published, version)
    data = published.client.get(chunk)
    published.client.delete(chunk)
    published.refused(version, DAMAGED)
    whole.answers_as(version, seed=2)
    published.client.set(chunk, data)
    published.recovers_by(version)


ARTEFACTS = [shop.artefact(seed=seed) for seed in (1, 2, 3)]


def on_a_snapshot(whole: WholeShop, recovered: Recovered) -> tuple[Published, int]:
    """The model 1 is served, as a version that deltas can be published upon."""
    base = whole.publish(seed=1)
    eventually(lambda: whole.serves(base), "a snapshot")
    return Published(whole, recovered), base


def test_delta_is_missing_in_the_chain(whole: WholeShop, recovered: Recovered) -> None:
    published, base = on_a_snapshot(whole, recovered)
    first, second, third = ARTEFACTS
    lost = whole.versions.publish(second.changes_since(first, version=base))
    after = whole.versions.publish(third.changes_since(second, version=lost))
    remove(published, lost)
    published.refused(after, DAMAGED)
    published.recovers_by(whole.publish(seed=3))


def test_delta_is_of_another_parent(whole: WholeShop, recovered: Recovered) -> None:
    published, base = on_a_snapshot(whole, recovered)
    first, second, third = ARTEFACTS
    other = whole.versions.publish(third)
    wrong = whole.versions.publish(second.changes_since(first, version=base))
    published.in_manifest(wrong, "parent", other)
    published.refused(wrong, DAMAGED)
    right = whole.versions.publish(second.changes_since(first, version=base))
    whole.answers_as(right, seed=2)
    deltas = whole.metric("ftrie_reloads_total", kind="delta")
    whole.versions.activate(right)
    published.recovers_by(right)
    assert whole.metric("ftrie_reloads_total", kind="delta") == deltas + 1


def test_bit_of_a_delta_is_flipped(whole: WholeShop, recovered: Recovered) -> None:
    published, base = on_a_snapshot(whole, recovered)
    bad = whole.versions.publish(ARTEFACTS[1].changes_since(ARTEFACTS[0], version=base))
    flip_a_bit(published, bad)
    published.refused(bad, DAMAGED)
    published.recovers_by(whole.publish(seed=2))
