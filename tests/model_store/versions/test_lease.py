"""One trainer a model: who holds the lease, who may take it, and who is fenced off for good."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from model_store.errors import LeaseHeld, StaleEpoch
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from tests.model_store.models import model

ROOT = Path(__file__).resolve().parents[3]
SHORT_S = 0.05
RAN_OUT = 0  # a lease that has run out as soon as it was taken


def lease(store: Store, owner: str, ttl_s: float = 60.0) -> TrainerLease:
    made = store.trainer_lease("ads", owner)
    made.ttl_s = ttl_s
    return made


def test_a_second_trainer_is_refused_and_told_who_has_the_model(store: Store) -> None:
    lease(store, "a").take()
    said = rf"ads has a trainer: process {os.getpid()} on {socket.gethostname()}, last seen \d+\.\d s ago"
    with pytest.raises(LeaseHeld, match=said):
        lease(store, "b").take()


def test_a_lease_that_was_given_back_may_be_taken_at_once(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.take()
    first.release()
    assert second.take() > first.epoch


def test_a_lease_that_ran_out_may_be_taken_and_the_former_holder_learns_of_it(store: Store) -> None:
    slow, quick = lease(store, "a", RAN_OUT), lease(store, "b")
    slow.take()
    quick.take()
    with pytest.raises(StaleEpoch, match="another trainer has taken over ads: process"):
        slow.renew()
    with pytest.raises(StaleEpoch):
        slow.release()
    quick.renew()


def test_a_lease_that_ran_out_untaken_is_renewed(store: Store) -> None:
    slow = lease(store, "a", RAN_OUT)
    slow.take()
    slow.ttl_s = 60.0
    slow.renew()
    with pytest.raises(LeaseHeld):
        lease(store, "b").take()


def test_the_same_owner_takes_over_at_once_with_a_higher_epoch_and_what_was_published(store: Store) -> None:
    killed, successor = lease(store, "a"), lease(store, "a")
    killed.take()
    killed.renew(rows=1234)
    killed.renew()
    assert successor.take() > killed.epoch
    assert (killed.earlier_rows, successor.earlier_rows) == (0, 1234)
    with pytest.raises(StaleEpoch):
        killed.renew()


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


def test_of_many_who_want_a_lease_at_once_one_gets_it(store: Store) -> None:
    wanted, outcomes = [lease(store, str(number)) for number in range(8)], list[str]()
    together = threading.Barrier(len(wanted))

    def contend(mine: TrainerLease) -> None:
        together.wait()
        try:
            mine.take()
            outcomes.append("taken")
        except LeaseHeld:
            outcomes.append("held")

    threads = [threading.Thread(target=contend, args=(mine,)) for mine in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held"] * 7 + ["taken"]


def test_a_store_that_has_lost_its_data_gets_the_lease_back_from_its_holder(store: Store) -> None:
    holder = lease(store, "a")
    for _ in range(3):
        holder.take()
    store.client.flushall()
    holder.renew()
    with pytest.raises(LeaseHeld):
        lease(store, "b").take()
    assert lease(store, "a").take() > holder.epoch


def test_a_loss_of_the_stores_data_is_counted_once(store: Store) -> None:
    holder = lease(store, "a")
    holder.take()
    holder.renew()
    assert holder.losses == 0
    store.client.flushall()
    holder.renew()
    holder.renew()
    assert holder.losses == 1


def test_a_restored_backup_of_the_days_before_costs_nobody_the_lease(store: Store) -> None:
    holder = lease(store, "a")
    holder.take()
    backup = {key: store.client.dump(key) for key in store.client.scan_iter("ftrie:*")}
    holder.take()  # restarted since
    for key, value in backup.items():
        store.client.restore(key, 0, value, replace=True)
    holder.renew()
    assert holder.losses == 1
    with pytest.raises(LeaseHeld):
        lease(store, "b").take()
    assert lease(store, "a").take() > holder.epoch


def test_who_slept_while_the_store_was_emptied_finds_its_successor(store: Store) -> None:
    slow, quick = lease(store, "a"), lease(store, "b")
    for _ in range(3):
        slow.take()
    store.client.flushall()
    quick.take()
    with pytest.raises(StaleEpoch):
        slow.renew()
    quick.renew()


# -- the fence


def test_who_has_lost_the_lease_can_neither_publish_nor_activate(store: Store) -> None:
    ads = store.model("ads")
    slow, quick = lease(store, "a", RAN_OUT), lease(store, "b")
    slow.take()
    earlier = ads.publish(model(), epoch=slow.epoch)
    quick.take()
    with pytest.raises(StaleEpoch, match="no longer publishes"):
        ads.publish(model(), epoch=slow.epoch)
    with pytest.raises(StaleEpoch):
        ads.activate(earlier, epoch=slow.epoch)
    assert [info.version for info in ads.versions()] == [earlier]
    assert ads.active() is None


def test_the_fence_holds_when_the_successor_has_ended_too(store: Store) -> None:
    ads = store.model("ads")
    slow, quick = lease(store, "a", RAN_OUT), lease(store, "b")
    slow.take()
    quick.take()
    quick.release()
    with pytest.raises(StaleEpoch):
        ads.publish(model(), epoch=slow.epoch)


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


def test_an_operator_overrules_a_trainer_which_goes_on_when_it_is_told_to(store: Store) -> None:
    ads, trainer = store.model("ads"), lease(store, "a")
    trainer.take()
    first, second = (ads.publish(model(), epoch=trainer.epoch) for _ in range(2))
    ads.activate(second, epoch=trainer.epoch)
    ads.activate(first)
    with pytest.raises(StaleEpoch, match="an operator has pinned"):
        ads.activate(second, epoch=trainer.epoch)
    ads.pin.resume()
    ads.activate(second, epoch=trainer.epoch)
    assert ads.active() == second


# -- in processes of their own


class Contender:
    """A trainer in a process of its own."""

    def __init__(self, url: str, owner: str, ttl_s: float) -> None:
        command = [sys.executable, "-m", "tests.model_store.contender", url, owner, str(ttl_s)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.epoch = int(self._line())

    def publishes(self) -> str:
        """What comes of trying to."""
        self.ask()
        return self._line()

    def ask(self) -> None:
        """Let it try, now or when it goes on."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def contender(url: str, owner: str, ttl_s: float) -> Iterator[Contender]:
    made = Contender(url, owner, ttl_s)
    with made.process:
        yield made
        made.process.kill()


def await_taken(take: Callable[[], int]) -> int:
    """The epoch, once the lease before has run out."""
    pause = threading.Event()
    while True:
        try:
            return take()
        except LeaseHeld:
            pause.wait(SHORT_S)


def test_a_trainer_that_was_stopped_past_its_lease_comes_back_and_publishes_nothing(
    store: Store, store_url: str
) -> None:
    with ExitStack() as last:
        stopped = last.enter_context(contender(store_url, "a", SHORT_S))
        assert stopped.publishes() == "1"
        os.kill(stopped.process.pid, signal.SIGSTOP)
        stopped.ask()  # it will find this when it wakes
        successor = lease(store, "b")
        assert await_taken(successor.take) > stopped.epoch
        ads = store.model("ads")
        ads.activate(ads.publish(model(), epoch=successor.epoch), epoch=successor.epoch)
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert stopped._line() == "StaleEpoch"
        assert stopped.publishes() == "StaleEpoch"
        assert ads.active() == 2


def test_a_trainer_that_was_killed_is_succeeded_by_its_own_folder_at_once(
    store: Store, store_url: str
) -> None:
    with contender(store_url, "a", 600.0) as killed:
        killed.process.kill()
        killed.process.wait()
        with pytest.raises(LeaseHeld):
            lease(store, "b").take()
        with contender(store_url, "a", 600.0) as successor:
            assert successor.epoch > killed.epoch
            assert successor.publishes() == "1"
