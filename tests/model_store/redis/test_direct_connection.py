"""The hot path's connection: an answer belongs to the command that asked for it, or there is none."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from model_store.errors import StoreError, StoreUnavailable
from model_store.records.lookups import HashFields
from model_store.redis.connection import StoreConnection
from model_store.redis.direct_connection import DirectConnection
from model_store.store import Store
from tests.matrix import slow_except
from tests.stalling import Line, disturb, stalled
from tests.waiting import eventually


@pytest.fixture
def line(store: Store, store_url: str) -> Iterator[Line]:
    """A TCP line to the store, which tests make lose, hold back and cut."""
    proxy = Line(f"{store_url.removeprefix('embedded:')}/valkey.sock")
    yield proxy
    proxy.close()


@pytest.fixture
def far(store: Store, line: Line) -> Iterator[Store]:
    """The same store at the other end of the line, with users u0 … u49."""
    store.records.put_users((f"u{n}", {"n": str(n), "more": "x" * 50}) for n in range(50))
    with Store.open(line.url) as opened:
        yield opened


def test_an_answer_that_comes_late_is_not_taken_for_the_next(far: Store, store: Store, line: Line) -> None:
    wanted = HashFields(("more", "nothing", "n"))
    assert far.records.user_values("u1", wanted) == ["x" * 50, None, "1"]
    assert far.records.user_values("nobody", wanted) == [None, None, None]
    with line.silent(), pytest.raises(StoreUnavailable, match="no answer within 20 ms"):
        far.records.user("u2", 0.02)
    store.client.set("ftrie:user:odd", "no hash")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        far.records.user_values("odd", wanted)
    assert far.records.user("u3", 5.0)["n"] == "3"


def test_an_answer_that_breaks_off_is_asked_for_again_once(far: Store, line: Line) -> None:
    far.records.user("u1", 5.0)
    line.cut()  # between two reads: costs neither
    assert far.records.user("u2", 5.0)["n"] == "2"
    before = line.connections
    line.cuts_after = 30
    with pytest.raises(StoreUnavailable):
        far.records.user("u2", 5.0)
    line.cuts_after = None
    assert line.connections == before + 1
    assert far.records.user("u3", 5.0)["n"] == "3"


def test_the_wait_is_the_callers_each_time(far: Store, store: Store) -> None:
    for _ in range(2):  # no time left: at once, on a new connection too
        with pytest.raises(StoreUnavailable):
            far.records.user_values("u1", HashFields(("n",)), 0.0)
    assert far.records.user("u1", 5.0)["n"] == "1"
    with stalled(store):
        for wait_s in (0.01, 0.03):
            with pytest.raises(StoreUnavailable):
                far.records.user("u1", wait_s)
    assert far.records.user("u1", 5.0)["n"] == "1"


def test_a_store_that_is_reading_its_data_is_away(store: Store) -> None:
    store.records.user("u")
    store.client.replicaof("127.0.0.1", "1")
    store.client.config_set("replica-serve-stale-data", "no")
    try:
        with pytest.raises(StoreUnavailable, match="MASTERDOWN"):
            store.records.user("u")
    finally:
        store.client.config_set("replica-serve-stale-data", "yes")
        store.client.replicaof("NO", "ONE")


@pytest.mark.parametrize("seed", slow_except(range(1), range(2)))
def test_answers_never_cross_whatever_the_line_does(far: Store, store: Store, line: Line, seed: int) -> None:
    ended = threading.Event()
    outcomes = {"answered": 0, "failed": 0}

    def ask(number: int) -> list[object]:
        draw, wrong = random.Random(seed * 100 + number), list[object]()
        wanted = HashFields(("n",))
        while not ended.is_set():
            ids = [draw.randrange(50) for _ in range(draw.randrange(1, 4))]
            wait_s = draw.choice([0.002, 0.01, 0.03])
            try:
                for n in ids:
                    got = far.records.user_values(f"u{n}", wanted, wait_s)
                    wrong += [(n, got)] if got != [str(n)] else []
                nothing = far.records.items([f"none{n}" for n in ids], wait_s)
                wrong += [(ids, nothing)] if nothing != [None] * len(ids) else []
                outcomes["answered"] += 1
            except StoreUnavailable:
                outcomes["failed"] += 1
        return wrong

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        disturb(line, store, random.Random(seed), steps=40)
        eventually(lambda: outcomes["answered"], "an answer in time")  # a busy machine may have given none
        ended.set()
        assert [each.result() for each in asking] == [[]] * 8
    assert all(outcomes.values()), outcomes


def test_silent_sentinels_are_waited_for_no_longer_together_than_one_answer() -> None:
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]  # they accept, and say nothing
    try:
        hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in silent)
        store = StoreConnection(f"sentinel://{hosts}/shop", 0.5)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            DirectConnection(store, 0.5).ask_each([(b"k", b"PING\r\n")], 0.5)
        assert time.monotonic() - began < 4 * 0.5  # five times as long, one by one
        store.close()
    finally:
        for each in silent:
            each.close()
