"""A cluster whose slots move and whose masters fail, a demoted master, and what is said of a wrong URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from model_store.errors import StoreError, StoreUnavailable
from model_store.records.lookups import HashFields
from model_store.store import Store
from model_store.streams.feedback import Event, Reported
from tests.model_store.models import model
from tests.stores import Cluster, Node, SentinelTrio, await_that
from tests.waiting import eventually

USERS = [(f"u{n}", {"n": str(n)}) for n in range(60)]
WANTED = HashFields(("n",))


@pytest.fixture
def several(cluster: Cluster) -> Iterator[Store]:
    """An empty cluster with users on all of its masters."""
    cluster.flush()
    with Store.open(cluster.url) as store:
        store.records.put_users(USERS)
        yield store


def wrong(store: Store) -> list[str]:
    """The users who are not as they were written."""
    return [user for user, record in USERS if store.records.user_values(user, WANTED) != [record["n"]]]


def eventually_done(act: Callable[[], object], within_s: float = 10.0) -> None:
    def done() -> bool:
        with suppress(StoreUnavailable):
            act()
            return True
        return False

    eventually(done, "what the store is asked for", within_s)


def another_master(cluster: Cluster, key: str) -> Node:
    return next(node for node in cluster.masters() if node is not cluster.holder(key))


def test_a_read_follows_a_slot_to_its_new_master(cluster: Cluster, several: Store) -> None:
    assert wrong(several) == []
    for user, _ in USERS[:6]:
        key = f"ftrie:user:{user}"
        target = another_master(cluster, key)
        cluster.move_slot(key, target)
        assert cluster.holder(key) is target
    assert wrong(several) == []
    several.records.put_users(USERS)
    assert several.records.items(["none"]) == [None]


def test_keys_in_the_middle_of_a_move_are_read_and_written(cluster: Cluster, several: Store) -> None:
    key = "ftrie:user:{half}"
    several.records.put_users([(f"{{half}}{n}", {"n": str(n)}) for n in range(20)])
    target = another_master(cluster, key)
    cluster.move_slot(key, target, until_half=True)
    try:
        read = [several.records.user_values(f"{{half}}{n}", WANTED) for n in range(20)]
        assert read == [[str(n)] for n in range(20)]
        several.records.put_users([(f"{{half}}{n}", {"n": str(-n)}) for n in range(30)])
        read = [several.records.user_values(f"{{half}}{n}", WANTED) for n in range(30)]
        assert read == [[str(-n)] for n in range(30)]
        assert several.records.put_candidates("home", ["a"]) == 1
    finally:
        cluster.move_slot(key, target)
    assert several.records.user_values("{half}7", WANTED) == ["-7"]


def test_a_model_is_published_and_read_while_its_slot_moves(cluster: Cluster, several: Store) -> None:
    ads = several.model("ads")
    first = ads.publish_and_activate(model())
    several.impressions("ads").append([b"{}", b"{}"])
    for _ in range(2):
        cluster.move_slot(ads.keys.active, another_master(cluster, ads.keys.active))
        assert ads.active() == first
        assert len(several.impressions("ads").read((0, 0), 10)) == 2
        eventually_done(lambda: several.impressions("ads").append([b"{}"]))
        several.impressions("ads").read((0, 0), 10)
        first = ads.publish_and_activate(model())
        assert ads.materialise(first).content == model().content
        several.client.delete(several.impressions("ads").key)
        several.impressions("ads").append([b"{}", b"{}"])


def test_a_waiting_reader_learns_of_a_version_after_its_slot_moved(cluster: Cluster, several: Store) -> None:
    ads = several.model("ads")
    ads.publish_and_activate(model())
    last = ads.last_event()

    def wait() -> str:
        while True:
            with suppress(StoreUnavailable):
                if (found := ads.wait(last, 2.0)) != last:
                    return found

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        cluster.move_slot(ads.keys.active, another_master(cluster, ads.keys.active))
        several.model("ads").publish_and_activate(model())
        assert waiting.result(20) > last


def test_all_items_are_scanned_once_though_slots_move_meanwhile(cluster: Cluster, several: Store) -> None:
    items = [(f"i{n}", {"n": str(n)}) for n in range(3000)]
    several.records.put_items(items)
    scanning = several.records.scan_items()
    found = [next(scanning)]
    cluster.move_slot("ftrie:item:i2999", another_master(cluster, "ftrie:item:i2999"))
    found += scanning
    assert sorted(found) == sorted(items)


def test_after_a_failover_everything_goes_on(cluster: Cluster, several: Store) -> None:
    ads, feedback = several.model("ads"), several.feedback()
    version = ads.publish_and_activate(model())
    several.impressions("ads").append([b"{}"])
    feedback.report("ads", [Event("r1", "a")])
    cluster.holder(ads.keys.active).kill()
    try:
        eventually_done(lambda: several.impressions("ads").append([b"{}"]))
        eventually_done(lambda: wrong(several))
        assert wrong(several) == []
        assert ads.active() == version
        assert feedback.report("ads", [Event("r1", "a"), Event("r2", "a")]) == Reported(1, 1)
        assert ads.publish_and_activate(model()) > version
        several.records.put_users(USERS)
    finally:
        feedback.close()
        cluster.mend()


def test_a_read_waits_no_longer_than_its_limit_while_a_master_fails(cluster: Cluster, several: Store) -> None:
    holder = cluster.holder("ftrie:user:u0")
    elsewhere = next(user for user, _ in USERS if cluster.holder(f"ftrie:user:{user}") is not holder)
    assert wrong(several) == []
    holder.stall()
    try:
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                several.records.user_values("u0", WANTED, 0.05)
            assert time.monotonic() - began < 0.2
        assert several.records.user_values(elsewhere, WANTED, 2.0)
    finally:
        holder.go_on()
        cluster.mend()
    eventually_done(lambda: wrong(several))


def test_a_demoted_master_is_left_for_the_new_one(sentinel_trio: SentinelTrio) -> None:
    sentinel_trio.flush()
    with Store.open(sentinel_trio.url) as store:
        feedback = store.feedback()
        store.records.put_users(USERS)
        feedback.report("ads", [Event("r1", "a")])
        sentinel_trio.fail_over()
        eventually_done(lambda: feedback.report("ads", [Event("r2", "a")]), 5)
        eventually_done(lambda: wrong(store), 5)
        eventually_done(lambda: store.impressions("ads").append([b"{}"]))
        feedback.close()
    sentinel_trio.mend()


@pytest.mark.slow
def test_a_dead_master_is_left_for_the_one_that_sentinel_promotes(sentinel_trio: SentinelTrio) -> None:
    sentinel_trio.flush()
    with Store.open(sentinel_trio.url) as store:
        store.records.put_users(USERS)
        assert wrong(store) == []
        sentinel_trio.master().kill()
        eventually_done(lambda: store.impressions("ads").append([b"{}"]))
        eventually_done(lambda: wrong(store))
    sentinel_trio.mend()


def test_a_write_that_too_few_replicas_confirm_is_not_acknowledged(cluster: Cluster, several: Store) -> None:
    holder = cluster.holder(several.impressions("ads").key)
    replica = next(node for node in cluster.nodes if node.role == "slave" and follows(node, holder))
    with Store.open(f"{cluster.url}?wait=1", timeout_s=1.5) as store:
        feedback = store.feedback(wait_s=1.5)
        assert store.impressions("ads").append([b"{}"]) == 1
        assert feedback.report("ads", [Event("r1", "a")]) == Reported(1, 0)
        replica.stall()
        try:
            for write in (
                lambda: store.impressions("ads").append([b"{}"]),
                lambda: feedback.report("ads", [Event("r1", "a")]),  # known, and yet to be confirmed
                lambda: feedback.report("ads", [Event("r2", "a")]),
                lambda: store.trainer_lease("ads", "folder").take(),
            ):
                with pytest.raises(StoreUnavailable, match="0 replicas have confirmed a write"):
                    write()
        finally:
            replica.go_on()
            cluster.mend()
        assert feedback.report("ads", [Event("r2", "a")]) == Reported(0, 1)
        assert store.impressions("ads").append([b"{}"]) == 1
        feedback.close()


def follows(node: Node, master: Node) -> bool:
    return bool(node.client.info("replication")["master_port"] == master.port)


def test_a_plain_url_of_a_node_says_to_name_the_cluster(cluster: Cluster, several: Store) -> None:
    node = cluster.masters()[0]
    elsewhere = next(user for user, _ in USERS if cluster.holder(f"ftrie:user:{user}") is not node)
    name = next(name for name in "abcdefgh" if cluster.holder(f"ftrie:{{{name}}}:active") is not node)
    with Store.open(f"redis://127.0.0.1:{node.port}") as store:
        for use in (
            lambda: store.records.user(elsewhere),
            lambda: store.model(name).active(),
            lambda: store.model(name).publish(model()),
            lambda: store.records.put_users(USERS),
            lambda: store.impressions(name).append([b"{}"]),
        ):
            with pytest.raises(StoreError, match="is a node of a cluster.*cluster://HOST:PORT"):
                use()


def test_a_clusters_url_of_one_server_says_how_to_name_it_and_of_a_lone_node_that_slots_are_unserved(
    tmp_path: Path,
) -> None:
    for options in ({}, {"cluster-enabled": "yes"}):
        alone = Node(tmp_path, "alone", options)
        try:
            with pytest.raises(StoreError, match="is no Sentinel; name its port"):
                Store.open(f"sentinel://127.0.0.1:{alone.port}/shop")
            if not options:
                with pytest.raises(StoreError, match="is no node of a cluster; name it by redis://HOST:PORT"):
                    Store.open(f"cluster://127.0.0.1:{alone.port}")
                continue
            with Store.open(f"cluster://127.0.0.1:{alone.port}") as store:
                for ask in (lambda: store.records.user("u"), lambda: store.model("ads").active()):
                    with pytest.raises(StoreUnavailable, match="no node of the cluster serves slot"):
                        ask()
        finally:
            alone.kill()


def test_a_master_that_sentinel_does_not_know_is_told_from_those_that_it_knows_and_a_dead_sentinel_passed(
    sentinel_trio: SentinelTrio,
) -> None:
    await_that(sentinel_trio.whole, "a whole trio")
    with pytest.raises(StoreError, match="has no master 'other'; it has: shop"):
        Store.open(sentinel_trio.url.replace("/shop", "/other"))
    with Store.open(sentinel_trio.url.replace("sentinel://", "sentinel://127.0.0.1:1,")) as store:
        store.ping()
