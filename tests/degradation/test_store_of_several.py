"""docs/degradation.md, "A store of several servers": masters die, slots move, Sentinel promotes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from model_store.errors import StoreError
from tests.degradation.load import Load
from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import BUDGET_MS, WholeShop, shop_on
from tests.server import shop
from tests.stores import Cluster, Node, SentinelTrio
from tests.waiting import eventually

OF_MODEL = f"ftrie:{{{shop.NAME}}}:active"


@pytest.fixture(scope="module")
def shared(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeShop]:
    cluster.flush()
    with shop_on(cluster.url, tmp_path_factory.mktemp("shop")) as whole:
        yield whole


@pytest.fixture
def on_cluster(shared: WholeShop, cluster: Cluster) -> Iterator[WholeShop]:
    """A shop on a whole cluster, which must be whole again in the end."""
    yield shared
    cluster.mend()
    eventually(shared.is_whole, "a whole shop after the test")


def user_on(whole: WholeShop, cluster: Cluster, master: Node, *, elsewhere: bool = False) -> str:
    """A user of whom no server has read anything yet, on this master, or on another one."""
    while True:
        user = whole.new_user()
        if (cluster.holder(f"ftrie:user:{user}") is master) != elsewhere:
            return user


def publishes(whole: WholeShop) -> bool:
    """Whether a version could be published, of the model that is served already."""
    with suppress(StoreError):
        whole.publish(1)
        return True
    return False


def asked_in_time(whole: WholeShop, cookie: str) -> tuple[str, ...]:
    """What the answer lacks, and that it took no longer than the user's budget and some work."""
    began = time.monotonic()
    reasons = whole.degraded(cookie)
    assert time.monotonic() - began < BUDGET_MS / 1000 + 1.0
    return reasons


def test_master_of_the_model_and_of_users_is_killed(
    on_cluster: WholeShop, cluster: Cluster, recovered: Recovered
) -> None:
    whole, master = on_cluster, cluster.holder(OF_MODEL)
    here = user_on(whole, cluster, master)
    elsewhere = [user_on(whole, cluster, master, elsewhere=True) for _ in range(5)]
    with Load(whole.running.address).running() as load:
        master.kill()
        recovered.from_now()
        seen = set[str]()
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            seen |= set(asked_in_time(whole, here))
            if elsewhere:  # a primary that fails keeps no request from the others
                assert asked_in_time(whole, elsewhere.pop()) == ()
        assert any(reason.startswith("user_features: ") for reason in seen)
        recovered.when(lambda: whole.degraded(here) == (), "answers are whole")
        recovered.when(lambda: publishes(whole), "a version is published")
        recovered.when(lambda: whole.serves(whole.versions.active_or_fail()), "it is served")
    assert (load.failed, load.wrong) == (0, 0)
    assert whole.running.healthy()


def test_slots_are_moved(on_cluster: WholeShop, cluster: Cluster, recovered: Recovered) -> None:
    whole = on_cluster
    user = whole.new_user()
    with Load(whole.running.address).running() as load:
        for key in (OF_MODEL, f"ftrie:user:{user}"):
            holder = cluster.holder(key)
            cluster.move_slot(key, next(node for node in cluster.masters() if node is not holder))
        recovered.then(lambda: whole.degraded(user) == (), "answers are whole")
        recovered.when(lambda: publishes(whole), "a version is published")
        recovered.when(lambda: whole.serves(whole.versions.active_or_fail()), "it is served")
        load.some_more()
    assert (load.failed, load.wrong) == (0, 0)


def test_cluster_is_down(on_cluster: WholeShop, cluster: Cluster, recovered: Recovered) -> None:
    whole, user = on_cluster, on_cluster.new_user()
    first, second, _ = cluster.masters()
    first.kill()
    second.kill()  # no majority is left to promote a replica
    with Load(whole.running.address).running() as load:
        for _ in range(12):
            asked_in_time(whole, whole.new_name())
        eventually(lambda: any("user_features: " in each for each in asked_in_time(whole, user)), "a reason")
        eventually(lambda: whole.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away", 60.0)
        assert not publishes(whole)
        assert whole.running.healthy()
        cluster.mend()
        recovered.then(lambda: whole.degraded(user) == (), "answers are whole")
        recovered.when(whole.follows, "versions are followed")
    assert (load.failed, load.wrong) == (0, 0)


@pytest.mark.slow
def test_sentinel_promotes_a_replica(
    sentinel_trio: SentinelTrio, tmp_path: Path, recovered: Recovered
) -> None:
    sentinel_trio.flush()
    with shop_on(sentinel_trio.url, tmp_path) as whole:
        user = whole.new_user()
        with Load(whole.running.address).running() as load:
            sentinel_trio.master().kill()
            recovered.from_now()
            assert asked_in_time(whole, user)[0].startswith("user_features: ")
            recovered.when(lambda: whole.degraded(user) == (), "answers are whole")
            recovered.when(lambda: publishes(whole), "a version is published")
            recovered.when(lambda: whole.serves(whole.versions.active_or_fail()), "it is served")
        assert (load.failed, load.wrong) == (0, 0)
        sentinel_trio.mend()
        eventually(whole.is_whole, "a whole shop")
