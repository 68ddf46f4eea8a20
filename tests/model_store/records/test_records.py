"""Records of users and items, and candidate sets, in a real Valkey."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_store.errors import StoreError
from model_store.keys import CANDIDATES, USER, history_key, record_key
from model_store.records.lookups import HashFields
from model_store.redis.servers import slot_of
from model_store.store import Store
from tests.matrix import examples
from tests.model_store.kinds import on_every_kind

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
RECORDS = st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, max_size=4), max_size=6)


@settings(examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS)
def test_records_of_any_text_are_read_back(store: Store, records: dict[str, dict[str, str]]) -> None:
    store.client.flushall()
    store.records.put_users(records.items())
    store.records.put_items(records.items())
    assert {cookie: store.records.user(cookie) for cookie in records} == records
    assert store.records.items(list(records)) == [record or None for record in records.values()]
    assert dict(store.records.scan_items()) == {item: record for item, record in records.items() if record}


def test_an_unknown_user_has_an_empty_record_and_an_unknown_item_none(store: Store) -> None:
    store.records.put_items([("a", {"brand": "acme"})])
    assert store.records.user("nobody") == {}
    assert store.records.items(["x", "a", "y"]) == [None, {"brand": "acme"}, None]
    assert store.records.items([]) == []
    store.client.hset(b"ftrie:user:\xff", b"\xfe", b"\xfd")  # bytes that are no text pass through
    assert store.records.user("\udcff") == {"\udcfe": "\udcfd"}
    # Put again, all of a record is replaced.
    store.records.put_users([("u", {"age": "25", "city": "Kyoto"})])
    store.records.put_users([("u", {"age": "26"})])
    assert store.records.user("u") == {"age": "26"}
    store.records.put_users([("u", {})])
    assert store.records.user("u") == {}


@on_every_kind
def test_many_records_are_put_in_batches_and_counted(store: Store) -> None:
    done: list[int] = []
    items = [(f"i{n}", {"n": str(n)}) for n in range(2500)]
    assert store.records.put_items(iter(items), done.append) == 2500
    assert done == [1000, 2000, 2500]
    assert dict(store.records.scan_items()) == dict(items)
    assert store.records.items([item for item, _ in items]) == [record for _, record in items]


def test_the_generation_moves_with_every_load_of_items_also_a_failed_one(store: Store) -> None:
    def generation() -> str:
        return store.records.item_changes.state().generation

    seen = [generation()]
    store.records.put_items([("a", {"brand": "acme"})])
    seen.append(generation())
    with pytest.raises(StoreError):
        store.records.put_items([*((f"i{n}", {"n": "1"}) for n in range(1000)), ("", {"brand": "acme"})])
    seen.append(generation())
    store.records.put_users([("u", {})])
    assert generation() == seen[-1]
    store.client.incr("ftrie:items:generation")
    seen.append(generation())
    for _ in range(2):  # emptied and filled again
        store.client.flushall()
        store.client.incr("ftrie:items:generation")
        seen.append(generation())
    assert len(set(seen)) == len(seen)


@on_every_kind
def test_candidates_keep_their_order_sets_come_by_bytes_and_sorted_sets_by_rank(store: Store) -> None:
    ids = [f"i{n * 7919 % 3000}" for n in range(3000)]
    assert store.records.put_candidates("home", ids) == 3000
    assert store.records.candidates("home") == ids
    store.records.put_candidates("home", ["z", "a"])
    assert store.records.candidates("home") == ["z", "a"]
    store.client.sadd(CANDIDATES + b"set", "b", "a", "é", "Z")
    store.client.zadd(CANDIDATES + b"zset", {"b": 1, "a": 3, "c": 2})
    assert store.records.candidates("set") == ["Z", "a", "b", "é"]
    assert store.records.candidates("zset") == ["b", "c", "a"]
    assert store.records.candidates("none") is None
    store.client.set(CANDIDATES + b"text", "a,b")
    with pytest.raises(StoreError, match="expected a LIST, SET or ZSET .* got a STRING"):
        store.records.candidates("text")
    store.client.rpush(CANDIDATES + b"odd", "a", b"\xff")
    with pytest.raises(StoreError, match="expected UTF-8 ids"):
        store.records.candidates("odd")


@on_every_kind
def test_an_answer_that_is_an_error_does_not_shift_the_next_ones(store: Store) -> None:
    store.records.put_items([("a", {"n": "a"}), ("b", {"n": "b"})])
    store.client.set("ftrie:item:bad", "no hash")
    assert store.records.items(["bad", "a"]) == [None, {"n": "a"}]
    store.client.set("ftrie:user:bad", "no hash")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.records.user("bad")
    assert store.records.items(["b"]) == [{"n": "b"}]


@on_every_kind
def test_a_connection_the_store_has_dropped_is_opened_again(store: Store) -> None:
    store.records.put_users([("u", {"age": "25"})])
    for _ in range(2):
        assert store.records.user("u") == {"age": "25"}
        store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert store.records.user("u") == {"age": "25"}


def test_scanning_items_passes_over_what_is_no_item(store: Store) -> None:
    store.records.put_users([("u", {"age": "25"})])
    store.records.put_items([("a", {"n": "a"})])
    store.client.set("ftrie:item:no hash", "text")
    store.client.hset("ftrie:item:", "n", "an item without an id")
    store.client.hset("ftrie:item:" + "x" * 4097, "n", "an id that is too long")
    assert list(store.records.scan_items()) == [("a", {"n": "a"})]


@on_every_kind
def test_a_user_and_his_history_come_in_one_read(store: Store) -> None:
    for cookie in ("u", "Ümit", "a b*c"):
        assert slot_of(history_key("m", cookie.encode())) == slot_of(record_key(USER, cookie))
    store.records.put_users([("u", {"age": "25"})])
    records = [(b"u", bytes(range(256))), ("Ümit}{:history:n".encode(), b"other")]
    assert store.records.put_histories("m", records, 60_000) == 2
    age = HashFields(("age", "city"))
    assert store.records.user_and_history("u", age, "m") == (["25", None], bytes(range(256)))
    assert store.records.user_and_history("u", HashFields(()), "m") == ([], bytes(range(256)))
    assert store.records.user_and_history("Ümit}{:history:n", age, "m") == ([None, None], b"other")
    assert store.records.user_and_history("u", age, "n") == (["25", None], None)
    store.client.lpush("ftrie:{ftrie:user:u}:history:n", "no STRING")
    assert store.records.user_and_history("u", age, "n") == (["25", None], b"")
    assert 0 < store.client.pttl(history_key("m", b"u")) <= 60_000
