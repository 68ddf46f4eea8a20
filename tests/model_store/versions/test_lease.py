"""One trainer a model: who holds the lease, who may take it, and who is fenced off for good."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from model_store.errors import LeaseHeld, StaleEpoch
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from tests.model_store.kinds import on_every_kind
from tests.model_store.models import model, python
from tests.waiting import eventually

RAN_OUT = 0  # a lease that has run out as soon as it was taken


def lease(store: Store, owner: str, ttl_s: float = 60.0) -> TrainerLease:
    made = store.trainer_lease("ads", owner)
    made.ttl_s = ttl_s
    return made


@on_every_kind
def test_a_second_trainer_is_refused_and_told_who_has_the_model_until_it_is_given_back(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.take()
    said = rf"ads has a trainer: process {os.getpid()} on {socket.gethostname()}, last seen \d+\.\d s ago"
    with pytest.raises(LeaseHeld, match=said):
        second.take()
    first.release()
    assert second.take() > first.epoch


def test_a_lease_that_ran_out_is_renewed_or_taken_and_the_former_holder_learns_of_it(store: Store) -> None:
    slow, quick = lease(store, "a", RAN_OUT), lease(store, "b")
    slow.take()
    slow.ttl_s = 60.0
    slow.renew()
    with pytest.raises(LeaseHeld):
        quick.take()
    slow.ttl_s = RAN_OUT
    slow.renew()
    quick.take()
    with pytest.raises(StaleEpoch, match="another trainer has taken over ads: process"):
        slow.renew()
    with pytest.raises(StaleEpoch):
        slow.release()
    quick.renew()


def test_the_same_owner_takes_over_at_once_with_a_higher_epoch_and_what_was_published(store: Store) -> None:
    killed, successor = lease(store, "a"), lease(store, "a")
    killed.take()
    killed.renew(rows=1234)
    killed.renew()
    assert successor.take() > killed.epoch
    assert (killed.earlier_rows, successor.earlier_rows) == (0, 1234)
    with pytest.raises(StaleEpoch):
        killed.renew()
    successor.release(rows=2345)
    killed.take()
    assert killed.earlier_rows == 2345


def test_what_another_owner_has_published_is_not_taken_for_ones_own(store: Store) -> None:
    first = lease(store, "a")
    first.take()
    first.renew(rows=9)
    first.release()
    other = lease(store, "b")
    other.take()
    other.release()
    again = lease(store, "a")
    again.take()
    assert (other.earlier_rows, again.earlier_rows) == (0, 0)


def test_an_epoch_is_given_once_though_its_counter_was_lost(store: Store) -> None:
    first = lease(store, "a")
    for _ in range(3):
        first.take()
    first.release()
    store.client.delete(first.keys[1])
    assert lease(store, "b").take() > first.epoch


def test_a_trainer_that_slept_while_another_writer_activated_is_stale(store: Store) -> None:
    ads, asleep = store.model("ads"), lease(store, "a", RAN_OUT)
    version = ads.publish(model(), epoch=asleep.take())
    newer = ads.publish_and_activate(model())
    with pytest.raises(StaleEpoch):
        ads.activate(version, epoch=asleep.epoch)
    assert ads.active() == newer


def test_of_many_who_want_a_lease_at_once_one_gets_it(store: Store) -> None:
    together = threading.Barrier(8)

    def contend(mine: TrainerLease) -> str:
        together.wait()
        try:
            return str(mine.take())
        except LeaseHeld:
            return "held"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(contend, [lease(store, str(number)) for number in range(8)]))
    assert outcomes.count("held") == 7


@pytest.mark.parametrize("restored", [False, True])
def test_a_store_that_lost_data_or_is_days_behind_costs_nobody_the_lease(
    store: Store, restored: bool
) -> None:
    holder = lease(store, "a")
    holder.take()
    backup = {key: store.client.dump(key) for key in store.client.scan_iter("ftrie:*")}
    for _ in range(2):  # restarted since
        holder.take()
    holder.renew()
    assert holder.losses == 0
    if not restored:
        store.client.flushall()
    for key, value in backup.items() if restored else ():
        store.client.restore(key, 0, value, replace=True)
    for _ in range(2):
        holder.renew()
    assert holder.losses == 1
    with pytest.raises(LeaseHeld):
        lease(store, "b").take()
    assert lease(store, "a").take() > holder.epoch


@pytest.mark.parametrize("verb", ["take", "refuse_while_held"])
def test_a_store_whose_clock_was_set_back_an_hour_keeps_a_dead_trainers_lease_for_a_term_only(
    store: Store, verb: str
) -> None:
    dead, spare = lease(store, "a", 0.2), lease(store, "b")
    dead.take()
    for name in ("seen_ms", "until_ms"):
        store.client.hincrby(dead.keys[0], name, 3_600_000)
    ask = getattr(spare, verb)
    with pytest.raises(LeaseHeld):
        ask()
    time.sleep(0.25)
    ask()


def test_who_slept_while_the_store_was_emptied_finds_its_successor(store: Store) -> None:
    slow, quick = lease(store, "a"), lease(store, "b")
    for _ in range(3):
        slow.take()
    store.client.flushall()
    quick.take()
    with pytest.raises(StaleEpoch):
        slow.renew()
    quick.renew()


@on_every_kind
def test_who_has_lost_the_lease_can_neither_publish_nor_activate(store: Store) -> None:
    ads = store.model("ads")
    slow, quick = lease(store, "a", RAN_OUT), lease(store, "b")
    slow.take()
    earlier = ads.publish(model(), epoch=slow.epoch)
    quick.take()
    for release in (True, False):
        with pytest.raises(StaleEpoch, match="no longer publishes"):
            ads.publish(model(), epoch=slow.epoch)
        with pytest.raises(StaleEpoch):
            ads.activate(earlier, epoch=slow.epoch)
        if release:  # the fence holds when the successor has ended too
            quick.release()
    assert [info.version for info in ads.versions()] == [earlier]
    assert ads.active() is None


def test_a_training_run_is_refused_while_a_trainer_has_the_model(store: Store) -> None:
    ads = store.model("ads")
    began_before = ads.begin()
    version = ads.publish(model())
    trainer = lease(store, "a")
    trainer.take()
    with pytest.raises(LeaseHeld, match="ads has a trainer"):
        ads.publish_and_activate(model())
    with pytest.raises(StaleEpoch):
        ads.activate(version, epoch=began_before)
    ads.activate(version, epoch=trainer.epoch)
    trainer.release()
    assert ads.active() == version
    ads.publish_and_activate(model())


def test_a_run_that_got_its_epoch_before_the_trainer_came_back_stays_inactive(store: Store) -> None:
    ads = store.model("ads")
    trainer = lease(store, "a")
    trainer.take()
    trainer.release()
    epoch = ads.begin()
    trainer.renew()  # late, but nobody has taken it
    with pytest.raises(LeaseHeld, match=r"stays inactive: ads has a trainer.*ftrie store activate ads 1"):
        ads.activate(ads.publish(model(), epoch=epoch), epoch=epoch)


# Takes the lease, says its epoch, and on each line it reads tries to publish, and says the version or what prevents it.
CONTENDER = """
import sys
from model_store.errors import StoreError
from model_store.store import Store
from tests.model_store.models import model
url, owner, ttl_s = sys.argv[1:]
with Store.open(url) as store:
    ads, lease = store.model("ads"), store.trainer_lease("ads", owner)
    lease.ttl_s = float(ttl_s)
    print(lease.take(), flush=True)
    for _ in sys.stdin:
        try:
            version = ads.publish(model(), epoch=lease.epoch)
            ads.activate(version, epoch=lease.epoch)
            print(version, flush=True)
        except StoreError as error:
            print(type(error).__name__, flush=True)
"""


class Contender:
    def __init__(self, url: str, owner: str, ttl_s: float) -> None:
        self.process = python(CONTENDER, url, owner, str(ttl_s))
        self.epoch = int(self.line())

    def publishes(self) -> str:
        self.ask()
        return self.line()

    def ask(self) -> None:
        """Let it try, now or when it goes on."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def contender(url: str, owner: str, ttl_s: float) -> Iterator[Contender]:
    made = Contender(url, owner, ttl_s)
    with made.process:
        yield made
        made.process.kill()


def test_a_trainer_that_was_stopped_past_its_lease_comes_back_and_publishes_nothing(
    store: Store, store_url: str
) -> None:
    ads, successor = store.model("ads"), lease(store, "b")

    def taken() -> int:
        with suppress(LeaseHeld):
            return successor.take()
        return 0

    with contender(store_url, "a", 0.05) as stopped:
        assert stopped.publishes() == "1"
        os.kill(stopped.process.pid, signal.SIGSTOP)
        stopped.ask()  # it will find this when it wakes
        eventually(taken, "a lease that runs out")
        assert successor.epoch > stopped.epoch
        ads.activate(ads.publish(model(), epoch=successor.epoch), epoch=successor.epoch)
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert stopped.line() == "StaleEpoch"
        assert stopped.publishes() == "StaleEpoch"
        assert ads.active() == 2


def test_a_trainer_that_was_killed_is_succeeded_by_its_folder_at_once(store: Store, store_url: str) -> None:
    with contender(store_url, "a", 600.0) as killed:
        killed.process.kill()
        killed.process.wait()
        with pytest.raises(LeaseHeld):
            lease(store, "b").take()
        assert lease(store, "a").take() > killed.epoch


def test_who_activated_while_the_store_had_lost_the_lease_does_not_fence_its_holder_off(store: Store) -> None:
    holder, ads = lease(store, "a"), store.model("ads")
    holder.take()
    store.client.flushall()
    store.client.set(ads.keys.epoch, holder.epoch)  # they begin anew, and may pass the holder's
    ads.publish_and_activate(model())
    holder.renew()
    version = ads.publish(model(), epoch=holder.epoch)
    ads.activate(version, epoch=holder.epoch)
    assert ads.active() == version
