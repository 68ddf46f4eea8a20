"""A running server's features follow the store, and outlive it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ftrie.client.client import Client
from model_store.redis.redis_keys import ITEMS_CHANGES
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server
from tests.stalling import stalled
from tests.waiting import eventually


def score(client: Client, item: str, cookie: str = "") -> float:
    return client.rank(cookie=cookie, candidates=[item], variant="base").items[0].score


def scores(client: Client, item: str, expected: float) -> bool:
    return score(client, item) == pytest.approx(expected)


def test_items_are_followed_whoever_changes_them(client: Client, store: Store) -> None:
    changed = shop.expected_score({**shop.ITEMS["item-1"], "brand": "b3"}, 0)
    assert score(client, "item-1") != pytest.approx(changed)
    store.client.hset("ftrie:item:item-1", "brand", "b3")  # another system, which gives notice
    store.client.xadd(ITEMS_CHANGES, {"id": "item-1"})
    eventually(partial(scores, client, "item-1", changed))
    store.records.put_items([("item-1", {"brand": "b2"})])
    eventually(partial(scores, client, "item-1", shop.expected_score({"brand": "b2"}, 0)))
    store.records.put_items([("item-1", {})])
    eventually(lambda: client.rank(candidates=["item-1"]).unknown_items == ("item-1",))


def test_a_known_user_and_a_known_candidate_set_serve_while_the_store_stalls(
    shop_store: Store, start: Callable[..., Server]
) -> None:
    server = start(user_ttl_s=0.0)
    assert server.ready.wait(180)
    fields = {"device": "u1", **shop.USERS["u1"], **shop.ITEMS["item-1"]}
    with Client(server.address, timeout_s=20.0) as client:
        client.rank(cookie="u1", candidates=["item-1"])
        before = client.rank(candidate_set="front page", variant="base")
        with stalled(shop_store):
            answer = client.rank(cookie="u1", candidates=["item-1"], variant="base")
            by_set = client.rank(candidate_set="front page", variant="base")
    assert answer.items[0].score == pytest.approx(shop.expected_score(fields, 0))
    assert str(answer.degraded[0]).startswith("user_features: stale, read ")
    assert by_set.items == before.items


def test_users_are_read_from_their_own_store_once_within_the_time_to_live(
    shop_store: Store, store_url: str, start: Callable[..., Server]
) -> None:
    users = f"unix://{store_url.removeprefix('embedded:')}/valkey.sock?db=2"
    with Store.open(users) as own:
        own.records.put_users([("u1", {"age": "40"})])
    server = start(user_store=users)
    assert server.ready.wait(180)

    def reads() -> int:
        return int(shop_store.client.info("commandstats")["cmdstat_hmget"]["calls"])

    fields = {"device": "u1", "age": "40", **shop.ITEMS["item-1"]}
    with Client(server.address, timeout_s=20.0) as client:
        for _ in range(5):
            assert score(client, "item-1", "u1") == pytest.approx(shop.expected_score(fields, 0))
            client.rank(cookie="nobody", candidates=["item-1"])
        before = reads()
        for cookie in ("u1", "nobody"):
            client.rank(cookie=cookie, candidates=["item-1"])
        assert before >= 2
        assert reads() == before
