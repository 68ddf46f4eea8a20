"""One trainer a model: who is second is refused or waits; who lost its lease ends, and publishes nothing more."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from model_store.errors import LeaseHeld, StaleEpoch
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from tests.simulated import event_logs
from tests.trainer.runs.running import NAME, Trainer
from tests.waiting import eventually
from trainer.runs.lease import LeaseHolder


@pytest.fixture
def streams(store: Store) -> Store:
    """The store, its streams filled with 200 requests and their clicks."""
    store.impressions(NAME).append(event_logs(200).impressions)
    store.clicks(NAME).append(event_logs(200).clicks)
    return store


@pytest.mark.slow
def test_a_second_trainer_is_refused_and_named_the_first(
    streams: Store, store_url: str, tmp_path: Path
) -> None:
    first = Trainer(tmp_path, store_url)
    first.until("version", 1)
    code, said = Trainer(tmp_path, store_url, state="second").failed()
    assert code == 5
    assert f"hotels has a trainer: process {first.process.pid}" in said
    first.terminate()


@pytest.mark.slow
def test_a_spare_waits_and_takes_over_once_the_first_has_ended(
    streams: Store, store_url: str, tmp_path: Path
) -> None:
    first = Trainer(tmp_path, store_url)
    first.until("version", 1)
    spare = Trainer(tmp_path, store_url, "--wait", state="spare")
    first.terminate()
    assert spare.until("version", 1)["version"] > 1
    spare.terminate()


@pytest.mark.slow
def test_one_that_slept_beyond_its_lease_publishes_nothing_and_ends(
    streams: Store, store_url: str, tmp_path: Path
) -> None:
    sleeper = Trainer(tmp_path, store_url)
    sleeper.until("version", 1)
    sleeper.process.send_signal(signal.SIGSTOP)
    other = Trainer(tmp_path, store_url, "--wait", state="other")
    taken = other.until("version", 1)["version"]
    streams.impressions(NAME).append(event_logs(201).impressions[-1:])
    sleeper.process.send_signal(signal.SIGCONT)
    code, said = sleeper.failed()
    assert code == 5
    assert f"another trainer has taken over hotels: process {other.process.pid}" in said
    last = other.terminate()
    versions = streams.model(NAME)
    assert versions.active() == last["version"]
    assert [info.version for info in versions.versions()] == list(range(taken, last["version"] + 1)) or (
        {info.version for info in versions.versions()} >= set(range(taken, last["version"] + 1))
    )


def test_the_same_folder_takes_its_lease_over_at_once_after_a_kill(
    streams: Store, store_url: str, tmp_path: Path
) -> None:
    killed = Trainer(tmp_path, store_url, "--every", "100")
    version = killed.until("version", 1)["version"]
    killed.kill()
    again = Trainer(tmp_path, store_url)
    streams.impressions(NAME).append(event_logs(202).impressions[-2:])
    streams.clicks(NAME).append(event_logs(202).clicks[-2:])
    assert again.until("version", 1)["version"] > version
    again.terminate()


@pytest.mark.slow
def test_one_that_does_not_publish_leaves_letters_and_online_metrics_to_the_models_trainer(
    streams: Store, store_url: str, tmp_path: Path
) -> None:
    streams.impressions(NAME).append([b"no event"])
    lease = streams.trainer_lease(NAME, "the one in production")
    lease.ttl_s = 600.0
    lease.take()
    trial = Trainer(tmp_path, store_url, "--once", "--no-publish", state="trial").last()
    assert trial["dead_letters"] == 1
    assert streams.dead_letters(NAME).last() == 0
    assert not list(streams.client.scan_iter(match=f"ftrie:{{{NAME}}}:online:*"))
    lease.release()
    alone = Trainer(tmp_path, store_url, "--once", "--no-publish", state="trial").last()
    assert alone["dead_letters"] == 1
    assert streams.dead_letters(NAME).last() == 1
    assert list(streams.client.scan_iter(match=f"ftrie:{{{NAME}}}:online:*"))


def test_one_whose_lease_is_overdue_asks_before_it_writes_what_no_fence_holds_back(store: Store) -> None:
    asleep, other = (store.trainer_lease(NAME, name) for name in ("asleep", "other"))
    asleep.ttl_s = 0.01
    asleep.take()
    holder = LeaseHolder(asleep, lambda: 0)  # not entered: nothing renews it
    eventually(lambda: taken(other), "the lease to run out")
    with pytest.raises(StaleEpoch, match="another trainer has taken over"):
        holder.confirm()
    with pytest.raises(StaleEpoch):
        holder.check()


def taken(lease: TrainerLease) -> bool:
    try:
        lease.take()
    except LeaseHeld:
        return False
    return True
