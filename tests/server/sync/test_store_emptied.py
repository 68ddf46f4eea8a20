"""A store that loses its data, versions and items that make all candidates equal: what is served stays, and says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftrie.api.client import Client
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server
from tests.server.sync.served_models import (
    CANDIDATES,
    asking,
    expected,
    flat,
    publish,
    publish_delta,
    scores,
    status,
)
from tests.waiting import eventually

Start = Callable[..., Server]
SAID = "items: the store lost its data"


def degraded(client: Client, part: str, **asked: object) -> bool:
    asked = asked if "candidate_set" in asked else {"candidates": CANDIDATES, **asked}
    said = map(str, client.rank(variant="base", **asked).degraded)  # type: ignore[arg-type]
    return any(each.startswith(part) for each in said)


def refused(server: Server, reason: str) -> int:
    return status(server).refused.get(reason, 0)


def test_an_emptied_store_takes_neither_items_nor_users_nor_sets_before_an_order(
    store: Store, shop_store: Store, start: Start
) -> None:
    server = start(user_ttl_s=0.0)
    with asking(server) as client:
        before = client.rank(cookie="u1", candidate_set="front page", variant="base")
        assert scores(client, "u1") == pytest.approx(expected("u1"))
        store.client.flushall()
        version = shop.publish(store, seed=2)  # as a trainer does, which knows no items
        eventually(lambda: degraded(client, SAID))
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)
        eventually(lambda: scores(client, "u1") == pytest.approx(expected("u1", seed=2)))
        assert degraded(client, "user_features: stale, read ", cookie="u1")
        eventually(lambda: degraded(client, "candidate_set: stale", candidate_set="front page"))
        by_set = client.rank(candidate_set="front page", variant="base")
        assert {item.id for item in by_set.items} == {item.id for item in before.items}
        assert status(server).kept_items == len(shop.ITEMS)
        assert "12 items that it lacks are kept" in status(server).problem
        shop.fill(store, seed=2)
        eventually(lambda: not status(server).problem)
        eventually(lambda: not degraded(client, "", cookie="u1", candidate_set="front page"))
        store.client.flushall()
        shop.publish(store, seed=1)
        eventually(lambda: degraded(client, SAID) and degraded(client, "user_features: stale", cookie="u1"))
        store.records.only_these_items()  # an order: everything is taken as the store has it
        eventually(lambda: client.rank(candidates=CANDIDATES).unknown_items == tuple(CANDIDATES))
        eventually(lambda: not degraded(client, "", cookie="u1"))
        assert status(server).kept_items == 0


def test_what_is_kept_is_said_before_anything_is_published_until_a_backup_is_restored(
    server: Server, client: Client, store: Store
) -> None:
    backup = {key: store.client.dump(key) for key in store.client.keys("*")}
    store.client.flushall()
    eventually(lambda: degraded(client, SAID))
    assert scores(client) == pytest.approx(expected())
    eventually(lambda: "no active version" in status(server).problem and SAID[7:] in status(server).problem)
    for key, value in backup.items():
        store.client.restore(key, 0, value, replace=True)
    eventually(lambda: status(server).problem == "")
    eventually(lambda: not degraded(client, "", cookie="u1"))
    assert scores(client, "u1") == pytest.approx(expected("u1"))


def test_a_server_that_starts_while_the_store_has_no_items_takes_those_on_its_disk(
    store: Store, shop_store: Store, start: Start, tmp_path: Path
) -> None:
    first = start(state=str(tmp_path))
    assert first.ready.wait(180)
    first.end()
    store.client.flushall()
    version = shop.publish(store, seed=2)
    with asking(start(state=str(tmp_path))) as client:
        assert client.rank(candidates=CANDIDATES).version == version
        assert scores(client) == pytest.approx(expected(seed=2))
        assert degraded(client, SAID)
        shop.fill(store, seed=2)
        eventually(lambda: not degraded(client, "items"))
        assert scores(client) == pytest.approx(expected(seed=2))


def test_a_version_that_makes_all_candidates_equal_is_refused_until_it_is_forced(
    server: Server, client: Client, store: Store
) -> None:
    versions = store.model(shop.NAME)
    version = publish(store, flat())
    eventually(lambda: refused(server, "equal") == 1)
    assert scores(client) == pytest.approx(expected())
    assert f"version {version} was refused (equal)" in status(server).problem
    assert f"ftrie store activate shop {version} --force" in status(server).problem
    versions.activate(version, force=True)
    eventually(lambda: status(server).version == version)
    eventually(lambda: len(set(scores(client).values())) == 1)
    again = publish(store, flat())  # what is served tells nothing apart either
    eventually(lambda: status(server).version == again)
    sound = shop.publish(store, seed=1)
    eventually(lambda: status(server).version == sound and not status(server).problem)
    # A delta is refused as a snapshot is, and the next one is taken.
    emptied = publish_delta(store, flat(), shop.artefact(1), parent=sound)
    versions.activate(emptied)
    eventually(lambda: refused(server, "equal") == 2)
    assert scores(client) == pytest.approx(expected())
    version = publish_delta(store, shop.artefact(2), flat(), parent=emptied)
    versions.activate(version)
    eventually(lambda: status(server).version == version)
    eventually(lambda: scores(client) == pytest.approx(expected(seed=2)))
    assert status(server).problem == ""


def test_items_that_have_lost_all_their_features_are_refused_until_they_have_some_or_an_order(
    server: Server, client: Client, store: Store
) -> None:
    store.records.put_items((item, {"Brand": "x"}) for item in shop.ITEMS)
    eventually(lambda: status(server).items_refused)
    store.records.put_items(shop.ITEMS.items())
    eventually(lambda: not status(server).problem and not degraded(client, "items"))
    assert scores(client) == pytest.approx(expected())
    store.records.put_items((item, {"Brand": "x"}) for item in shop.ITEMS)
    eventually(lambda: status(server).items_refused)
    eventually(lambda: degraded(client, "items: the store's items are refused"))
    assert scores(client) == pytest.approx(expected())
    assert "ftrie store load items FILE --only" in status(server).problem
    version = shop.publish(store, seed=2)  # a snapshot, which is built with the items of before
    eventually(lambda: status(server).version == version)
    eventually(lambda: scores(client) == pytest.approx(expected(seed=2)))
    assert status(server).items_refused
    store.records.only_these_items()
    eventually(lambda: len(set(scores(client).values())) == 1)
    eventually(lambda: not status(server).problem)


def test_a_first_model_of_the_bias_alone_is_served(store: Store, start: Start) -> None:
    store.records.put_items(shop.ITEMS.items())
    version = publish(store, flat())
    server = start()
    assert server.ready.wait(180)
    assert (status(server).version, status(server).problem) == (version, "")
    version = shop.publish(store, seed=1)
    eventually(lambda: status(server).version == version)
