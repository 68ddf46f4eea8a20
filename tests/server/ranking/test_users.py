"""A user's features: from the request, from memory, from the store, from memory again when the store is away."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ctr.v1.ranking_pb2 import RankRequest
from model_store.errors import StoreUnavailable
from model_store.features.values import Value
from model_store.store import Store
from server.errors import DeadlinePassed
from server.ranking.features import PlainTokens
from server.ranking.query import TokenArrays
from server.ranking.request import received
from server.ranking.served import ServedVersion
from server.ranking.store_reads import StoredReads
from server.ranking.users import Users
from tests.server import shop
from tests.server.model.models import loaded
from tests.stalling import Line, disturb, stalled
from tests.waiting import eventually


def remaining(seconds: float | None) -> Any:
    """The context of a call that has so much time left."""
    return SimpleNamespace(time_remaining=lambda: seconds)


PATIENT = remaining(None)


@pytest.fixture(scope="module")
def served() -> ServedVersion:
    return ServedVersion.bind(loaded(shop.artefact()).parts)


@pytest.fixture
def reads(store: Store, store_url: str) -> Iterator[StoredReads]:
    store.records.put_users(shop.USERS.items())
    opened = StoredReads(store_url, budget_s=5.0)
    opened.connect()
    yield opened
    opened.close()


@pytest.fixture
def hasty(store: Store, store_url: str) -> Iterator[StoredReads]:
    """Reads that soon give up, for tests with a store that does not answer."""
    store.records.put_users(shop.USERS.items())
    opened = StoredReads(store_url, budget_s=0.2)
    eventually(lambda: connects(opened))  # a busy machine may take longer than the budget
    yield opened
    opened.close()


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


def tokens_of(arrays: TokenArrays, served: ServedVersion) -> dict[str, list[tuple[bytes, float]]]:
    """The tokens of each field that has some."""
    starts, begin, x, text = arrays
    found = {}
    for place, field in enumerate(served.model.plan.request_fields):
        tokens = range(starts[place], starts[place + 1])
        if tokens:
            found[field.name] = [(text[begin[t] : begin[t + 1] - 1].tobytes(), float(x[t])) for t in tokens]
    return found


def expected_tokens(fields: dict[str, Value], served: ServedVersion) -> dict[str, list[tuple[bytes, float]]]:
    plans = served.model.plan.request_fields
    made = {plan.name: [(t.text, t.x) for t in plan.tokens(fields.get(plan.name))] for plan in plans}
    return {name: tokens for name, tokens in made.items() if tokens}


def plain(served: ServedVersion, **values: str) -> PlainTokens:
    """What the request reader makes of these features."""
    request = RankRequest(item_ids=["x"])
    for name, value in values.items():
        request.user.values[name].text = value
    read = served.plain.read(received(request.SerializeToString()))  # type: ignore[arg-type]
    assert read is not None
    return read


def complete(
    users: Users, cookie: str, served: ServedVersion, context: Any = PATIENT, **inline: Any
) -> tuple[dict[str, Value], list[str]]:
    """Features as values, with the user's stored ones beneath; and the notes."""
    wanted = served.user_fields
    user, notes = users.find(cookie, wanted.bits(inline), served.name, wanted, context)
    return {**(user.fields(wanted) if user else {}), **inline}, list(map(str, notes))


def complete_plain(
    users: Users, cookie: str, served: ServedVersion, **inline: str
) -> tuple[TokenArrays, list[str]]:
    """The same for features as tokens."""
    wanted, given = served.user_fields, plain(served, **inline)
    user, notes = users.find(cookie, given.given, served.name, wanted, PATIENT)
    return user.tokens(wanted).under(given) if user else given.tokens, list(map(str, notes))


U1 = {"device": "u1", "age": "20", "likes": '["red","blue"]'}


def test_what_is_given_inline_overrides_what_is_stored_field_by_field(
    reads: StoredReads, served: ServedVersion
) -> None:
    users = Users(reads)
    for inline in ({}, {"age": "40"}, {"age": "", "device": "d"}, {}):
        assert complete(users, "u1", served, **inline) == ({**U1, **inline}, [])


@pytest.mark.parametrize("cookie", ["u1", "u2", "nobody", "ü*=%"])
def test_tokens_are_completed_as_texts_are(reads: StoredReads, served: ServedVersion, cookie: str) -> None:
    users = Users(reads)
    inlines: list[dict[str, str]] = [
        {},
        {"age": "40"},
        {"age": "", "device": "d"},
        {"age": "1", "device": "2"},
    ]
    for inline in inlines * 2:  # read, then kept
        fields, problems = complete(users, cookie, served, **inline)
        features, same = complete_plain(users, cookie, served, **inline)
        assert tokens_of(features, served) == expected_tokens(fields, served)
        assert same == problems == []


def test_a_stored_value_that_does_not_fit_is_left_out_and_told_unless_it_is_overridden(
    store: Store, reads: StoredReads, served: ServedVersion
) -> None:
    store.records.put_users([("odd", {"age": "20", "likes": "[1"})])
    users = Users(reads)
    for _ in range(2):
        features, problems = complete_plain(users, "odd", served)
        assert tokens_of(features, served) == expected_tokens({"age": "20", "device": "odd"}, served)
        assert [text.partition(": ")[0] for text in problems] == ["user_features"]
        assert "left out likes" in problems[0]


def test_a_user_is_read_once_and_then_kept_while_fresh_and_where_there_is_room(
    store: Store, reads: StoredReads, served: ServedVersion
) -> None:
    users, roomless, stale = Users(reads), Users(reads, users=0), Users(reads, ttl_s=0.0)
    before = asked(store)
    for _ in range(5):
        complete(users, "u1", served)
        complete_plain(users, "u1", served)
        assert complete(users, "nobody", served) == ({"device": "nobody"}, []), "also who is not there"
    assert asked(store) == before + 2
    for _ in range(3):
        complete(roomless, "u1", served)
    assert asked(store) == before + 5
    complete(stale, "u1", served)
    store.records.put_users([("u1", {"age": "99"})])
    assert complete(stale, "u1", served)[0] == {"device": "u1", "age": "99"}


def test_when_the_store_stalls_the_last_known_features_serve_and_the_answer_says_so(
    store: Store, hasty: StoredReads, served: ServedVersion
) -> None:
    users = Users(hasty, ttl_s=0.0)
    eventually(lambda: complete(users, "u1", served) == (U1, []))
    with stalled(store):
        for _ in range(5):  # the breaker opens meanwhile
            fields, problems = complete(users, "u1", served, age="40")
            assert fields == U1 | {"age": "40"}
            assert problems[0].startswith("user_features: stale, read ")
            fields, problems = complete(users, "u2", served, age="40")
            assert fields == {"device": "u2", "age": "40"}
            assert problems[0].startswith("user_features: ")
            assert "stale" not in problems[0]
        features, problems = complete_plain(users, "u1", served)
    assert tokens_of(features, served) == expected_tokens(dict(U1), served)
    assert problems[0].startswith("user_features: stale, read ")


def test_a_read_ends_in_time_for_the_deadline_and_a_passed_one_is_no_degraded_answer(
    store: Store, reads: StoredReads, served: ServedVersion
) -> None:
    users = Users(reads)
    with pytest.raises(DeadlinePassed):
        complete(users, "u1", served, remaining(0.0))
    complete(users, "u2", served)  # opens this thread's connection
    with stalled(store):
        _, problems = complete(users, "u1", served, remaining(0.03))
    assert "no answer within 26 ms" in problems[0]


def test_requests_for_one_cookie_at_a_time_ask_once(
    store: Store, reads: StoredReads, served: ServedVersion
) -> None:
    users = Users(reads)
    before = asked(store)
    with ThreadPoolExecutor(8) as pool:
        with stalled(store):
            answers = [pool.submit(complete, users, "u1", served) for _ in range(8)]
            shelf = users._shelves.get
            eventually(lambda: bool((kept := shelf(shop.NAME)) and "u1" in kept.flights))
            eventually(lambda: all(answer.running() or answer.done() for answer in answers))
        assert all(answer.result()[0]["device"] == "u1" for answer in answers)
    assert asked(store) - before <= 2


def test_who_waits_for_a_request_in_a_hurry_asks_again_in_its_own_time(
    store: Store, reads: StoredReads, served: ServedVersion
) -> None:
    users = Users(reads)
    complete(users, "u2", served)  # opens this thread's connection, and a shelf
    shelf = users._shelves[shop.NAME]
    with ThreadPoolExecutor(2) as pool:
        with stalled(store):
            first = pool.submit(complete, users, "u1", served, remaining(0.1))
            eventually(lambda: "u1" in shelf.flights)
            second = pool.submit(complete, users, "u1", served)
            assert first.result()[1][0].startswith("user_features: ")
        assert second.result() == (U1, [])


def test_a_version_with_other_fields_does_not_see_what_was_read_for_the_one_before(
    store: Store, reads: StoredReads, served: ServedVersion
) -> None:
    users = Users(reads)
    complete(users, "u1", served)
    fields = {**shop.spec().fields, "city": shop.spec().fields["age"].model_copy()}
    spec = shop.spec().model_copy(update={"fields": fields})
    other = ServedVersion.bind(loaded(replace(shop.artefact(), spec=spec)).parts)
    store.records.put_users([("u1", {"age": "20", "city": "Kyoto"})])
    assert complete(users, "u1", other)[0] == {"device": "u1", "age": "20", "city": "Kyoto"}


def test_users_may_live_in_another_store(store: Store, store_url: str, served: ServedVersion) -> None:
    url = f"unix://{store_url.removeprefix('embedded:')}/valkey.sock?db=1"
    with Store.open(url) as other:
        other.records.put_users([("u1", {"age": "77"})])
        store.records.put_items([("i", {"brand": "b"})])
        reads = StoredReads(store_url, user_url=url)
        reads.connect()
        assert complete(Users(reads), "u1", served)[0] == {"device": "u1", "age": "77"}
        assert reads.items(["i"], PATIENT) == [{"brand": "b"}]
        reads.close()


def test_answers_never_cross_between_cookies_whatever_the_line_does(
    store: Store, store_url: str, served: ServedVersion
) -> None:
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
            fields, problems = complete(users, f"c{n}", served)
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
