"""docs/degradation.md, "The trainer": its store is away, hangs, or takes no writes."""

from __future__ import annotations

import pytest

from ftrie.demo.processes import free_port
from model_store.store import Store
from tests.degradation.learning import LONG_S, OfFiles, OfStreams
from tests.degradation.recovered import Recovered
from tests.degradation.system import Valkey
from tests.waiting import eventually


def learns_on_and_says_so(system: OfFiles) -> None:
    """Learning does not wait for the store; that nothing reaches it is told."""
    failed = system.trainer.status()["published"]["failed"]
    system.learns()
    eventually(lambda: system.trainer.status()["store_away"], "a status that says so", LONG_S)
    eventually(lambda: system.trainer.metric("ftrie_trainer_store_away") == 1, "the metric")
    eventually(lambda: system.trainer.status()["published"]["failed"] > failed, "a failed version", LONG_S)
    assert "learning continues" in system.trainer.said()
    assert not system.is_served()


def configured(valkey: Valkey, name: str, value: str) -> None:
    with Store.open(valkey.url) as store:
        store.client.config_set(name, value)


def replica_of(valkey: Valkey, *where: str) -> None:
    with Store.open(valkey.url) as store:
        store.client.execute_command("REPLICAOF", *where)


def publishes_again(system: OfFiles, recovered: Recovered) -> None:
    recovered.then(system.is_served, "a version of all that was learned meanwhile is served", LONG_S)
    eventually(lambda: not system.trainer.status()["store_away"], "a status that says so")


@pytest.mark.slow
def test_store_refuses_a_trainer_that_learns_from_files(of_files: OfFiles, recovered: Recovered) -> None:
    of_files.valkey.save()
    of_files.valkey.kill()
    learns_on_and_says_so(of_files)
    of_files.valkey.start()
    publishes_again(of_files, recovered)


@pytest.mark.slow
def test_store_stalls_while_a_trainer_learns_from_files(of_files: OfFiles, recovered: Recovered) -> None:
    of_files.valkey.stall()
    learns_on_and_says_so(of_files)
    of_files.valkey.go_on()
    publishes_again(of_files, recovered)


@pytest.mark.slow
def test_store_of_a_trainer_is_a_replica(of_files: OfFiles, recovered: Recovered) -> None:
    replica_of(of_files.valkey, "127.0.0.1", str(free_port()))
    learns_on_and_says_so(of_files)
    replica_of(of_files.valkey, "NO", "ONE")
    publishes_again(of_files, recovered)


@pytest.mark.slow
def test_store_of_a_trainer_is_out_of_memory(of_files: OfFiles, recovered: Recovered) -> None:
    configured(of_files.valkey, "maxmemory", "1")
    learns_on_and_says_so(of_files)
    configured(of_files.valkey, "maxmemory", "0")
    publishes_again(of_files, recovered)


@pytest.mark.slow
def test_store_refuses_a_trainer_that_learns_from_its_streams(
    of_streams: OfStreams, recovered: Recovered
) -> None:
    of_streams.valkey.save()
    of_streams.valkey.kill()
    eventually(lambda: of_streams.trainer.status()["store_away"], "a status that says so", LONG_S)
    of_streams.valkey.start()
    learns_what_came_since(of_streams, recovered)


@pytest.mark.slow
def test_store_stalls_while_a_trainer_learns_from_its_streams(
    of_streams: OfStreams, recovered: Recovered
) -> None:
    of_streams.valkey.stall()
    eventually(lambda: of_streams.trainer.status()["store_away"], "a status that says so", LONG_S)
    of_streams.valkey.go_on()
    learns_what_came_since(of_streams, recovered)


def learns_what_came_since(system: OfStreams, recovered: Recovered) -> None:
    recovered.from_now()
    system.more()
    recovered.when(system.has_learned_all, "what came since is learned and served", LONG_S)
    assert system.trainer.status()["events"] == system.day.given
