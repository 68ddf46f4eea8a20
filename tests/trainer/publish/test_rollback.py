"""Going back when users do not do what was promised: on a real store, with versions as a trainer publishes them."""

from __future__ import annotations

import pytest

from model_store.spec.sections import GuardSection
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from tests.trainer.publish.shop import EVERY, GuardedRun, rows
from trainer.publish.rollback import Evidence, Rollback, RollbackWatch

BOUNDS = GuardSection(online_clicks=100)
SOUND = rows(2_600, seed=1)
Known = dict[int, Evidence]


class Watched:
    """A trainer that publishes, and a watch over what it publishes."""

    def __init__(self, versions: ModelVersions, bounds: GuardSection | None = BOUNDS) -> None:
        self.versions = versions
        self.run = GuardedRun(versions)
        self.warnings: list[str] = []
        self.epoch = self.run.publisher._epoch
        self.watch = RollbackWatch(bounds, versions, self.warnings.append)
        self._learned = 0

    def publish(self, count: int) -> None:
        self.run.learn(SOUND[self._learned : self._learned + count * EVERY])
        self._learned += count * EVERY

    def after(self, known: Known) -> Rollback | None:
        return self.watch.check(lambda since_us: known, self.epoch)


@pytest.fixture
def shop(store: Store) -> ModelVersions:
    return store.model("shop")


@pytest.fixture
def watched(shop: ModelVersions) -> Watched:
    """Version 1 is found good; then 2 and 3 are served, and the candidate is 3."""
    begun = Watched(shop)
    begun.publish(1)
    assert begun.after({}) is None
    begun.publish(2)
    assert begun.after({1: Evidence(120.0, 110.0)}) is None
    return begun


BAD: Known = {1: Evidence(120.0, 110.0), 3: Evidence(90.0, 20.0), 5: Evidence(60.0, 10.0)}


def test_a_candidate_within_the_band_is_good_and_too_little_evidence_decides_nothing(watched, shop):
    record = shop.guard.record()
    assert (record.good, record.candidate) == (1, 3)
    watched.publish(2)
    assert watched.after({3: Evidence(50.0, 0.0), 5: Evidence(49.0, 0.0)}) is None
    assert (shop.active(), watched.warnings) == (5, [])


def test_beyond_the_band_servers_go_back_to_what_was_good_until_the_cooldown_is_over(watched, shop):
    watched.publish(2)
    went = watched.after(BAD)
    assert went == Rollback(origin=5, target=1, reason=went.reason if went else "")
    assert shop.active() == 1 and watched.run.refused == [3, 4, 5]
    assert shop.manifest(5).refused == (
        "rolled back: online calibration since version 3: got 5 (150 clicks predicted, 30 observed), above the band "
        "from 0.5 to 2"
    )
    record = shop.guard.record()
    assert (record.rolled_back, record.origin, record.target, record.candidate) == (1, 5, 1, 1)
    (warning,) = watched.warnings
    assert warning.startswith("ROLLED BACK from version 5 to 1: online calibration since version 3: got 5")
    assert "ftrie store activate shop 5 --force" in warning
    watched.publish(2)  # the trainer goes on
    assert shop.active() == 1 and watched.run.refused == [3, 4, 5]
    assert watched.after(BAD | {7: Evidence(500.0, 1.0)}) is None
    assert shop.guard.record().rolled_back == 1
    # After the cooldown the next version is served and watched again. The evidence of versions that were rolled back
    # still comes in, and says nothing of the new one.
    over = shop.guard.now_us() - BOUNDS.cooldown_s * 1_000_000 - 1
    shop._client.hset(shop.keys.guard, "when_us", over)
    watched.publish(1)
    assert shop.active() == 8
    late = BAD | {1: Evidence(190.0, 180.0), 3: Evidence(900.0, 20.0), 8: Evidence(5.0, 4.0)}
    assert watched.after(late) is None
    assert watched.after(late | {8: Evidence(90.0, 80.0)}) is None
    record = shop.guard.record()
    assert (record.good, record.candidate, shop.active()) == (1, 8, 8)
    # So it is this one that a second rollback refuses, and not the good one.
    went = watched.after(late | {8: Evidence(150.0, 10.0)})
    assert (went and went.target, shop.active(), watched.run.refused) == (1, 1, [3, 4, 5, 8])


def test_without_a_good_version_it_goes_to_what_was_served_before_the_candidate(shop: ModelVersions) -> None:
    begun = Watched(shop)
    begun.publish(3)
    begun.after({})
    begun.publish(1)
    assert begun.after({3: Evidence(200.0, 10.0)}) is not None and shop.active() == 2


def test_with_no_way_back_it_says_so_once_and_changes_nothing(shop: ModelVersions) -> None:
    begun = Watched(shop)
    begun.publish(1)
    begun.after({})
    for clicks in (10.0, 11.0):
        assert begun.after({1: Evidence(200.0, clicks)}) is None
    (warning,) = begun.warnings
    assert warning.startswith(
        "VERSION 1 SHOULD BE ROLLED BACK AND IS NOT: online calibration since version 1: got "
    )
    assert "there is no earlier version to roll back to" in warning
    assert (shop.active(), begun.run.refused) == (1, [])


def test_an_operator_who_activated_since_is_not_overruled(watched: Watched, shop: ModelVersions) -> None:
    watched.publish(2)
    shop.activate(4)
    assert watched.after(BAD) is None and (shop.active(), watched.run.refused) == (4, [])
    assert "another writer" in watched.warnings[0]


def test_another_process_goes_on_watching_and_what_an_operator_forced_is_watched_from_then_on(watched, shop):
    watched.publish(2)
    went = RollbackWatch(BOUNDS, shop, watched.warnings.append).check(lambda since_us: BAD, watched.epoch)
    assert went is not None and went.target == 1
    shop.activate(5, force=True)
    record = shop.guard.record()
    assert (record.candidate, record.when_us) == (5, 0)
    watched.publish(1)
    assert shop.active() == 6
    asked = list[int]()
    watched.watch.check(lambda since_us: asked.append(since_us) or {5: Evidence(90.0, 80.0)}, watched.epoch)
    assert asked == [record.since_us] and record.since_us > 0
    assert watched.after({5: Evidence(90.0, 80.0), 6: Evidence(90.0, 80.0)}) is None
    assert shop.guard.record().good == 5


def test_gc_spares_the_candidate_and_the_good_version_and_an_older_one_gone_back_to_is_the_next_candidate(
    watched: Watched, shop: ModelVersions
) -> None:
    watched.publish(8)
    shop.gc(1)
    assert {1, 3, 11} <= {info.version for info in shop.versions()} and shop.materialise(3)
    shop.rollback(3)
    shop.activate(1)
    assert watched.after(BAD) is None and shop.guard.record().candidate == 1


@pytest.mark.parametrize("bounds", [None, GuardSection(online_calibration="off")])
def test_nothing_is_watched_unless_asked(shop: ModelVersions, bounds: GuardSection | None) -> None:
    begun = Watched(shop, bounds)
    begun.publish(2)
    for _ in range(2):
        assert begun.after({1: Evidence(1e6, 1.0), 2: Evidence(1e6, 1.0)}) is None
    assert shop.active() == 2 and shop.guard.record().candidate == 0
