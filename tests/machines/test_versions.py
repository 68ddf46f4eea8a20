"""The versions of a model against a model of them: any order of publishing, activating, rolling back, collecting,
importing, losing and restoring, by writers that crash, gives what these few lines say.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from model_store.errors import FtrieError, Pinned, StaleEpoch, VersionNotFound
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from model_store.versions.model_versions import ModelVersions
from tests.model_store.models import KEYS, model
from tests.sweeps.failing import Failing, Fault

NAME = "ads"
WEIGHTS = st.integers(1, 5)


class Versions(RuleBasedStateMachine):
    """`contents` and `parents`: what is published. `history`: the versions active before, latest first.

    `last`: the epoch of the last activation. `lease`, `pinned`, `resumed`: the trainer's, as activate.lua has them.
    """

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.store.client.flushall()
        self.saved: tuple[dict[bytes, bytes], tuple[object, ...]] | None = None
        self.epochs: list[int] = []
        self.newest = 0
        self.reset()

    def reset(self) -> None:
        self.contents: dict[int, str] = {}
        self.parents: dict[int, int | None] = {}
        self.active: int | None = None
        self.history: list[int] = []
        self.last = self.lease = self.resumed = 0
        self.pinned: int | None = None
        self.trainer: TrainerLease | None = None
        self.is_alive = False

    @property
    def ads(self) -> ModelVersions:
        return self.store.model(NAME)

    # -- what the model does

    def published(self, version: int, content: str, parent: int | None = None) -> None:
        assert version > max(self.contents, default=0)
        self.contents[version], self.parents[version] = content, parent

    def pointed(self, version: int, epoch: int, *, is_rollback: bool = False, is_order: bool = False) -> None:
        self.last = max(self.last, epoch)
        if is_order and self.lease:
            self.pinned = version
        if version == self.active:
            return
        if is_rollback:
            at = self.history.index(version) + 1 if version in self.history else 0
            self.history = self.history[at:]
        elif self.active is not None:
            self.history.insert(0, self.active)
        self.active = version

    @property
    def previous(self) -> int | None:
        before = [each for each in self.history if each in self.contents and each != self.active]
        older = [each for each in self.contents if self.active is not None and each < self.active]
        return before[0] if before else max(older, default=None)

    # -- rules

    @initialize(weights=st.lists(WEIGHTS, max_size=4))
    def begin(self, weights: list[int]) -> None:
        for weight in weights:
            self.release(weight)

    @rule(weight=WEIGHTS)
    def release(self, weight: int) -> None:
        if not self.is_alive:
            made = model(weights=[float(weight)] * len(KEYS))
            version = self.ads.publish_and_activate(made)
            self.published(version, made.content)
            self.pointed(version, self._epoch_of_the_store())

    @rule(weight=WEIGHTS)
    def publish(self, weight: int) -> None:
        made = model(weights=[float(weight)] * len(KEYS))
        self.published(self.ads.publish(made), made.content)

    @precondition(lambda self: self.contents)
    @rule(weight=WEIGHTS, data=st.data())
    def publish_a_delta(self, weight: int, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(self.contents)))
        made = model(weights=[weight * 1.5, *[float(weight)] * (len(KEYS) - 1)])
        delta = made.changes_since(self.ads.materialise(parent), version=parent)
        self.published(self.ads.publish(delta), made.content, parent)

    @rule(weight=WEIGHTS, at=st.integers(0, 40), failure=st.sampled_from(["ECONNRESET", "OOM", "READONLY"]))
    def a_publisher_crashes(self, weight: int, at: int, failure: str) -> None:
        """It is visible with all its bytes, or not at all."""
        made = model(weights=[float(weight)] * len(KEYS))
        before = set(self.contents)
        with Store.open(self.store.url) as other, suppress(FtrieError):
            versions = other.model(NAME)
            with Failing(Fault(at, "send", failure, for_good=True), self.store.client):
                versions.publish(made)
        new = {info.version for info in self.ads.versions()} - before
        assert len(new) <= 1
        for version in new:
            self.published(version, made.content)

    @precondition(lambda self: self.contents)
    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.contents)))
        assert self.ads.activate(version) == self.active
        self.pointed(version, self._epoch_of_the_store(), is_order=True)

    @rule()
    def activate_what_is_not_there(self) -> None:
        with pytest.raises(VersionNotFound):
            self.ads.activate(max(self.contents, default=0) + 7)

    @rule()
    def roll_back(self) -> None:
        if (target := self.previous) is None:
            with pytest.raises(VersionNotFound):
                self.ads.rollback()
            return
        assert self.ads.rollback() == target
        self.pointed(target, self._epoch_of_the_store(), is_rollback=True, is_order=True)

    @rule()
    def a_writer_begins(self) -> None:
        """A program that will activate; it is refused while a trainer lives."""
        if not self.is_alive:
            epoch = self.ads.begin()
            assert epoch not in self.epochs and epoch != self.lease
            self.epochs.append(epoch)

    @precondition(lambda self: self.contents and self.epochs)
    @rule(data=st.data())
    def a_writer_activates(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.epochs))
        version = data.draw(st.sampled_from(sorted(self.contents)))
        if epoch < self.last or epoch < self.lease or self.is_alive:
            with pytest.raises(FtrieError):
                self.ads.activate(version, epoch=epoch)
            return
        self.ads.activate(version, epoch=epoch)
        self.pointed(version, epoch)

    @precondition(lambda self: not self.is_alive)
    @rule()
    def a_writer_is_overtaken(self) -> None:
        epoch = self.ads.begin()
        self.release(5)
        with pytest.raises(StaleEpoch):
            self.ads.activate(max(self.contents), epoch=epoch)

    @rule()
    def a_trainer_takes_the_model(self) -> None:
        self.trainer = self.store.trainer_lease(NAME, "t")
        self.lease, self.is_alive = self.trainer.take(), True
        assert self.lease not in self.epochs, "only the trainer has the lease's epoch"

    @precondition(lambda self: self.is_alive)
    @rule(others_write=st.booleans())
    def the_trainer_is_suspended(self, others_write: bool) -> None:
        """Its lease expires; it may come back, and knows nothing of it."""
        assert self.trainer is not None
        self.store.client.hset(self.trainer.keys[0], "until_ms", 1)
        self.is_alive = False
        if others_write:
            self.release(4)

    @precondition(lambda self: self.trainer)
    @rule()
    def the_trainer_ends(self) -> None:
        assert self.trainer is not None
        self.trainer.release()
        self.trainer, self.is_alive = None, False

    @precondition(lambda self: self.trainer and self.contents)
    @rule(data=st.data())
    def the_trainer_activates(self, data: st.DataObject) -> None:
        assert self.trainer is not None
        version, epoch = data.draw(st.sampled_from(sorted(self.contents))), self.trainer.epoch
        if self.pinned is not None:
            with pytest.raises(Pinned):
                self.ads.activate(version, epoch=epoch)
        elif epoch < self.last and self.last > self.resumed:
            with pytest.raises(StaleEpoch):
                self.ads.activate(version, epoch=epoch)
        else:
            self.ads.activate(version, epoch=epoch)
            self.pointed(version, epoch)

    @rule()
    def resume(self) -> None:
        assert self.ads.resume() == self.pinned
        if self.pinned is not None:
            self.pinned, self.resumed = None, self.last

    @rule(keep=st.integers(1, 3))
    def collect(self, keep: int) -> None:
        kept = {*sorted(self.contents)[-keep:], self.active, self.previous} - {None}
        for version in sorted(self.contents, reverse=True):
            if version in kept and self.parents[version] is not None:
                kept.add(self.parents[version])
        gone = sorted(set(self.contents) - kept)
        assert self.ads.gc(keep) == gone
        for version in gone:
            del self.contents[version], self.parents[version]

    @rule()
    def save(self) -> None:
        """What a backup of the store's file has."""
        keys = [key for key in self.store.client.keys("*") if b":answer:" not in key]
        dumped = {key: self.store.client.dump(key) for key in keys}
        model_of = (dict(self.contents), dict(self.parents), self.active, list(self.history))
        fences = (self.last, self.lease, self.resumed, self.pinned)
        self.saved = dumped, (*model_of, *fences)

    @rule(
        lost=st.lists(
            st.sampled_from(["begin", "release", "publish", "take", "activate"]), min_size=1, max_size=3
        ),
        first=st.sampled_from(["begin", "take", "neither"]),
        data=st.data(),
    )
    def fail_over(self, lost: list[str], first: str, data: st.DataObject) -> None:
        """To a replica that lacks the last writes, where the next epoch is assigned to a writer or a trainer."""
        self.save()
        for each in lost:
            match each:
                case "begin":
                    self.a_writer_begins()
                case "release":
                    self.release(1)
                case "publish":
                    self.publish(2)
                case "take":
                    self.a_trainer_takes_the_model()
                case "activate" if self.contents:
                    self.activate(data)
        self.restore(is_failover=True)
        if first == "begin":
            self.a_writer_begins()
        elif first == "take":
            self.a_trainer_takes_the_model()

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self, is_failover: bool = False) -> None:
        """The writers of before are gone, as after the loss of the store's machine.

        Where a replica takes over they live, with epochs that the store has lost; the trainer finds it at its next
        renewal.
        """
        assert self.saved is not None
        dumped, state = self.saved
        self.store.client.flushall()
        for key, value in dumped.items():
            self.store.client.restore(key, 0, value)
        contents, parents, self.active, history, self.last, self.lease, self.resumed, self.pinned = state
        self.contents, self.parents, self.history = dict(contents), dict(parents), list(history)
        if is_failover:
            if self.trainer and self.is_alive:
                losses = self.trainer.losses
                self.trainer.renew()
                assert (self.trainer.losses > losses) == (self.lease < self.trainer.epoch)
                self.lease = self.trainer.epoch
            return
        self.epochs = []
        self.trainer, self.is_alive = None, False
        if self.lease:  # of a trainer that is gone: it ends with the time, here at once
            ended = self.store.trainer_lease(NAME, "t")
            self.lease = ended.take()
            ended.release()

    @rule()
    def flush(self) -> None:
        self.store.client.flushall()
        self.reset()
        self.epochs = []

    def _epoch_of_the_store(self) -> int:
        return int(self.store.client.get(self.ads.keys.active_epoch))

    # -- what holds after each

    @invariant()
    def a_reader_finds_what_the_model_has(self) -> None:
        ads = self.ads
        assert {
            info.version: ads.materialise(info.version).content for info in ads.versions()
        } == self.contents
        assert (ads.active(), ads.pinned()) == (self.active, self.pinned)
        assert ads.history() == self.history
        assert [info.version for info in ads.versions() if info.active] == (
            [self.active] if self.active in self.contents else []
        )

    def teardown(self) -> None:
        findings = self.store.check()
        assert not findings, findings


@pytest.mark.parametrize(
    ("examples", "steps"), [(8, 12), pytest.param(50, 30, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_any_order_of_what_changes_versions(valkey_url: str, examples: int, steps: int) -> None:
    with Store.open(valkey_url) as store:

        class OnAStore(Versions):
            pass

        OnAStore.store = store
        run_state_machine_as_test(
            OnAStore, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        )  # type: ignore[no-untyped-call]
