"""A user's features: from the request, from memory, from the store, from memory again when the store is away."""

from __future__ import annotations

import gc
import random
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import RankRequest
from model_store.errors import StoreUnavailable
from model_store.redis.connection import StoreConnection
from model_store.redis.direct_connection import DirectConnection
from model_store.spec.values import Value
from model_store.store import Store
from server.errors import DeadlinePassed
from server.ranking.features import StoredUser
from server.ranking.query import TokenArrays
from server.ranking.request import received
from server.ranking.served import ServedVersion
from server.ranking.store_reads import StoredReads
from server.ranking.users import UserCache, Users
from tests.server import shop
from tests.server.model.models import loaded
from tests.stalling import Line, disturb, stalled
from tests.waiting import eventually


def remaining(seconds: float | None) -> Any:
    """The context of a call that has so much time left."""
    return SimpleNamespace(time_remaining=lambda: seconds)


PATIENT = remaining(None)
SERVED = ServedVersion.bind(loaded(shop.artefact()).parts)


def reads_of(store: Store, url: str, budget_s: float) -> Iterator[StoredReads]:
    store.records.put_users(shop.USERS.items())
    opened = StoredReads(url, budget_s=budget_s)
    eventually(lambda: connects(opened))  # a busy machine may take longer than the budget
    yield opened
    opened.close()


@pytest.fixture
def reads(store: Store, store_url: str) -> Iterator[StoredReads]:
    yield from reads_of(store, store_url, 5.0)


@pytest.fixture
def hasty(store: Store, store_url: str) -> Iterator[StoredReads]:
    """Reads that soon give up, for tests with a store that does not answer."""
    yield from reads_of(store, store_url, 0.2)


def connects(reads: StoredReads) -> bool:
    try:
        reads.connect()
    except StoreUnavailable:
        return False
    return True


def asked(store: Store) -> int:
    """How many records the store was asked for."""
    found = store.client.info("commandstats").get("cmdstat_hmget")
    return int(found["calls"]) if found else 0


class Held:
    """What a call has at hand, such as the version that it is scored by."""


def held_by_a_call(users: Users, together: bool) -> weakref.ref[Held]:
    held, wanted = Held(), SERVED.user_fields
    read = users.read_together(["nobody"], SERVED.name, wanted, 0.05) if together else {}
    _, notes = users.find("nobody", 0, SERVED.name, wanted, PATIENT, read.get("nobody"))
    assert "no answer" in str(notes[0])
    return weakref.ref(held)


@pytest.mark.parametrize("together", [False, True])
def test_failed_read_keeps_nothing_of_its_call(store: Store, hasty: StoredReads, together: bool) -> None:
    users = Users(hasty)
    gc.disable()  # a worker looks for circles rarely
    try:
        with stalled(store):
            assert held_by_a_call(users, together)() is None
    finally:
        gc.enable()


def test_refused_connection_keeps_nothing_of_its_call() -> None:
    def refused() -> weakref.ref[Held]:
        held = Held()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            DirectConnection(StoreConnection(f"redis://127.0.0.1:{port}", 1.0), 1.0).ask_each(
                [(b"", b"")], 1.0
            )
        except StoreUnavailable:
            return weakref.ref(held)
        raise AssertionError("it was not refused")

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()


Tokens = dict[str, list[tuple[bytes, float]]]


def tokens_of(arrays: TokenArrays) -> Tokens:
    """The tokens of each field that has some."""
    starts, begin, x, text = arrays
    found = {}
    for place, field in enumerate(SERVED.model.plan.request_fields):
        if tokens := range(starts[place], starts[place + 1]):
            found[field.name] = [(text[begin[t] : begin[t + 1] - 1].tobytes(), float(x[t])) for t in tokens]
    return found


def expected_tokens(fields: Mapping[str, Value]) -> Tokens:
    plans = SERVED.model.plan.request_fields
    made = {plan.name: [(t.text, t.x) for t in plan.tokens(fields.get(plan.name))] for plan in plans}
    return {name: tokens for name, tokens in made.items() if tokens}


def complete(
    users: Users, cookie: str, context: Any = PATIENT, version: ServedVersion = SERVED, **inline: Any
) -> tuple[dict[str, Value], list[str]]:
    """Features as values, with the user's stored ones beneath; and the notes."""
    wanted = version.user_fields
    user, notes = users.find(cookie, wanted.bits(inline), version.name, wanted, context)
    return {**(user.fields(wanted) if user else {}), **inline}, list(map(str, notes))


def complete_plain(users: Users, cookie: str, **inline: str) -> tuple[Tokens, list[str]]:
    """The same for features as tokens, as the request's reader makes them."""
    request = RankRequest(item_ids=["x"])
    for name, value in inline.items():
        request.user.values[name].text = value
    given = SERVED.plain.read(received(request.SerializeToString()))  # type: ignore[arg-type]
    assert given is not None
    user, notes = users.find(cookie, given.given, SERVED.name, SERVED.user_fields, PATIENT)
    found = user.tokens(SERVED.user_fields).under(given) if user else given.tokens
    return tokens_of(found), list(map(str, notes))


U1 = {"device": "u1", "age": "20", "likes": '["red","blue"]'}
INLINES: list[dict[str, str]] = [{}, {"age": "40"}, {"age": "", "device": "d"}, {"age": "1", "device": "2"}]


@pytest.mark.parametrize("cookie", ["u1", "u2", "nobody", "ü*=%"])
def test_tokens_are_completed_as_texts_are(reads: StoredReads, cookie: str) -> None:
    users = Users(reads)
    for inline in INLINES * 2:  # read, then kept
        fields, problems = complete(users, cookie, **inline)
        features, same = complete_plain(users, cookie, **inline)
        assert cookie != "u1" or fields == U1 | inline, "inline overrides what is stored"
        assert features == expected_tokens(fields)
        assert same == problems == []


def test_a_stored_value_that_does_not_fit_is_left_out_and_told_unless_it_is_overridden(
    store: Store, reads: StoredReads
) -> None:
    store.records.put_users([("odd", {"age": "20", "likes": "[1"})])
    users = Users(reads)
    for _ in range(2):
        features, problems = complete_plain(users, "odd")
        assert features == expected_tokens({"age": "20", "device": "odd"})
        assert [text.partition(": ")[0] for text in problems] == ["user_features"]
        assert "left out likes" in problems[0]


def test_a_user_is_read_once_and_then_kept_while_fresh_and_where_there_is_room(
    store: Store, reads: StoredReads
) -> None:
    users, roomless, stale = Users(reads), Users(reads, users=0), Users(reads, ttl_s=0.0)
    before = asked(store)
    for _ in range(5):
        complete(users, "u1")
        complete_plain(users, "u1")
        assert complete(users, "nobody") == ({"device": "nobody"}, []), "also who is not there"
    assert asked(store) == before + 2
    for _ in range(3):
        complete(roomless, "u1")
    assert asked(store) == before + 5
    complete(stale, "u1")
    store.records.put_users([("u1", {"age": "99"})])
    assert complete(stale, "u1")[0] == {"device": "u1", "age": "99"}


def test_when_the_store_stalls_the_last_known_features_serve_and_the_answer_says_so(
    store: Store, hasty: StoredReads
) -> None:
    users = Users(hasty, ttl_s=0.0)
    eventually(lambda: complete(users, "u1") == (U1, []))
    with stalled(store):
        for _ in range(5):  # the breaker opens meanwhile
            fields, problems = complete(users, "u1", age="40")
            assert fields == U1 | {"age": "40"}
            assert problems[0].startswith("user_features: stale, read ")
            fields, problems = complete(users, "u2", age="40")
            assert fields == {"device": "u2", "age": "40"}
            assert problems[0].startswith("user_features: ")
            assert "stale" not in problems[0]
        features, problems = complete_plain(users, "u1")
    assert features == expected_tokens(U1)
    assert problems[0].startswith("user_features: stale, read ")


def test_a_read_ends_in_time_for_the_deadline_and_a_passed_one_is_no_degraded_answer(
    store: Store, reads: StoredReads
) -> None:
    users = Users(reads)
    with pytest.raises(DeadlinePassed):
        complete(users, "u1", remaining(0.0))
    complete(users, "u2")  # opens this thread's connection
    with stalled(store):
        _, problems = complete(users, "u1", remaining(0.03))
    assert "no answer within 26 ms" in problems[0]


def test_requests_for_one_cookie_at_a_time_ask_once(store: Store, reads: StoredReads) -> None:
    users = Users(reads)
    before = asked(store)
    with ThreadPoolExecutor(8) as pool:
        with stalled(store):
            answers = [pool.submit(complete, users, "u1") for _ in range(8)]
            of_model = users._of_models.get
            eventually(lambda: bool((kept := of_model(shop.NAME)) and "u1" in kept.pending))
            eventually(lambda: all(answer.running() or answer.done() for answer in answers))
        assert all(answer.result()[0]["device"] == "u1" for answer in answers)
    assert asked(store) - before <= 2


def test_who_waits_for_one_in_a_hurry_asks_again_in_its_own_time(store: Store, reads: StoredReads) -> None:
    users = Users(reads)
    complete(users, "u2")  # opens this thread's connection, and is kept
    kept = users._of_models[shop.NAME]
    with ThreadPoolExecutor(2) as pool:
        with stalled(store):
            first = pool.submit(complete, users, "u1", remaining(0.1))
            eventually(lambda: "u1" in kept.pending)
            second = pool.submit(complete, users, "u1")
            assert first.result()[1][0].startswith("user_features: ")
        assert second.result() == (U1, [])


def test_a_version_with_other_fields_does_not_see_what_was_read_for_the_one_before(
    store: Store, reads: StoredReads
) -> None:
    users = Users(reads)
    complete(users, "u1")
    fields = {**shop.spec().fields, "city": shop.spec().fields["age"].model_copy()}
    spec = shop.spec().model_copy(update={"fields": fields})
    other = ServedVersion.bind(loaded(replace(shop.artefact(), spec=spec)).parts)
    store.records.put_users([("u1", {"age": "20", "city": "Kyoto"})])
    assert complete(users, "u1", version=other)[0] == {"device": "u1", "age": "20", "city": "Kyoto"}


def test_answers_never_cross_between_cookies_whatever_the_line_does(store: Store, store_url: str) -> None:
    """Answers come late, in pieces, half, or not at all, under concurrency; none is ever another user's."""
    store.records.put_users((f"c{n}", {"age": f"age-{n}", "likes": f'["{n}"]'}) for n in range(40))
    line = Line(f"{store_url.removeprefix('embedded:')}/valkey.sock")  # which loses, holds back and cuts
    reads = StoredReads(line.url, budget_s=0.03)
    eventually(lambda: connects(reads))  # a busy machine may take longer than the budget
    users = Users(reads, users=20, ttl_s=0.01)
    wrong: list[object] = []
    answered = [0, 0]
    ended = threading.Event()

    def ask(number: int) -> None:
        draw = random.Random(number)
        while not ended.is_set():
            n = draw.randrange(40)
            fields, problems = complete(users, f"c{n}")
            whole = {"device": f"c{n}", "age": f"age-{n}", "likes": f'["{n}"]'}
            answered[bool(problems)] += 1
            if fields != whole and not (problems and fields == {"device": f"c{n}"}):
                wrong.append((n, fields, problems))
            if problems:  # at once: eight callers that spin would leave the line's threads no time
                ended.wait(0.002)

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        try:
            disturb(line, store, random.Random(0), steps=40)
            eventually(lambda: all(answered))  # both came about: whole answers and failures
        finally:
            ended.set()
        assert [each.result() for each in asking] == [None] * 8
    reads.close()
    line.close()
    assert wrong == []


def user(cookie: str) -> StoredUser:
    return StoredUser(cookie, [cookie], 0.0)


@given(st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_whatever_is_put_and_asked_for_the_cache_stays_whole_and_within_its_bound(
    capacity: int, steps: list[tuple[bool, int]]
) -> None:
    cache = UserCache(capacity)
    latest: dict[str, StoredUser] = {}
    for puts, n in steps:
        if puts:
            latest[str(n)] = user(str(n))
            cache.put(latest[str(n)])
            assert (cache.get(str(n)) is latest[str(n)]) == (capacity > 0)
        elif found := cache.get(str(n)):
            assert found is latest[str(n)]
            found.used = True
        cache.check()


def test_who_is_asked_for_outlives_a_flood_of_others() -> None:
    cache = UserCache(1000)
    for n in range(1000):
        cache.put(user(f"regular-{n}"))
    for n in range(10_000):
        if found := cache.get(f"regular-{n % 100}"):
            found.used = True
        if n >= 100:
            cache.put(user(f"passer-by-{n}"))
    assert all(cache.get(f"regular-{n}") for n in range(100))
    assert not any(cache.get(f"regular-{n}") for n in range(100, 1000))
    assert len(cache) == 1000
