"""docs/degradation.md, "The store": it answers, but without writes, memory, password or primary."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrie.api.client import RankFailed
from ftrie.demo.processes import free_port
from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import Valkey
from tests.degradation.test_feedback_not_taken import clicks, not_taken, taken_once
from tests.degradation.test_trainer_and_disk import fill, on_a_disk_of_its_own
from tests.degradation.whole_shop import WholeShop, shop_on
from tests.server import shop
from tests.waiting import eventually


def nothing_is_lost_but_publishing(whole: WholeShop, word: str) -> None:
    """Answers are whole, those that need the store too; who publishes is told why it does not."""
    whole.awaits_whole_answer("u1")
    with pytest.raises(StoreError, match=word):
        whole.versions.publish(shop.artefact(seed=2))
    whole.awaits_whole_answer("u2")
    assert whole.running.healthy()
    assert whole.follows()
    assert whole.metric("ftrie_store_away", model="shop") == 0


def publishes_again(whole: WholeShop, recovered: Recovered) -> None:
    recovered.from_now()
    version = whole.publish(seed=3)
    recovered.when(lambda: whole.serves(version), "a new version is published and served")


def test_store_is_a_replica(whole: WholeShop, recovered: Recovered) -> None:
    whole.store.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    nothing_is_lost_but_publishing(whole, "read only replica")
    whole.store.client.execute_command("REPLICAOF", "NO", "ONE")
    publishes_again(whole, recovered)


def test_store_is_out_of_memory(whole: WholeShop, recovered: Recovered) -> None:
    whole.store.client.config_set("maxmemory", "1")
    nothing_is_lost_but_publishing(whole, "maxmemory")
    whole.store.client.config_set("maxmemory", "0")
    publishes_again(whole, recovered)


def is_full(whole: WholeShop) -> bool:
    try:
        whole.new_user()
    except StoreUnavailable as error:
        return "MISCONF" in str(error)
    return False


@pytest.mark.slow
def test_disk_of_the_store_is_full(tmp_path: Path, recovered: Recovered) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    valkey = Valkey(folder, within=on_a_disk_of_its_own(folder))
    try:
        with shop_on(valkey.url, tmp_path) as whole:
            client = whole.store.client
            client.config_set("appendonly", "yes")
            eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "a file of its own")
            filler = Path(f"/proc/{valkey.process.pid}/root{folder}/filler")
            fill(filler)
            eventually(lambda: is_full(whole), "a write that the disk does not take")
            nothing_is_lost_but_publishing(whole, "MISCONF")
            events = clicks(whole)
            not_taken(whole, events, "accepts no writes now")
            filler.unlink()
            taken_once(whole, recovered, events)
            publishes_again(whole, recovered)
    finally:
        valkey.kill()


def test_store_is_a_replica_without_its_primary(whole: WholeShop, recovered: Recovered) -> None:
    unread = whole.new_user()
    whole.store.client.config_set("replica-serve-stale-data", "no")
    whole.store.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    says_that_the_store_is_away(whole, unread, "MASTERDOWN")
    whole.store.client.execute_command("REPLICAOF", "NO", "ONE")
    recovered.then(lambda: whole.degraded(unread) == (), "answers are whole")
    recovered.when(whole.follows, "versions are followed")


def test_store_refuses_the_password(whole: WholeShop, recovered: Recovered) -> None:
    unread = whole.new_user()
    whole.store.client.config_set("requirepass", "another one")
    whole.store.client.client_kill_filter(_type="normal", skipme=True)
    says_that_the_store_is_away(whole, unread, "refused the name or password")
    with pytest.raises(StoreUnavailable, match="refused the name or password"):
        Store.open(whole.valkey.url)
    whole.store.client.config_set("requirepass", "")
    recovered.then(lambda: whole.degraded(unread) == (), "answers are whole")
    recovered.when(whole.follows, "versions are followed")


def says_that_the_store_is_away(whole: WholeShop, unread: str, word: str) -> None:
    eventually(lambda: any(word in reason for reason in whole.degraded(unread)), f"{word} in degraded")
    assert whole.running.healthy()
    eventually(lambda: whole.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
    with pytest.raises(RankFailed, match=r"UNAVAILABLE"):
        whole.client.rank(candidate_set=whole.new_name())
