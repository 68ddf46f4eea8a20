"""`ftrie.Ranker` beside a real server: the same answers, explanations and errors for the same model, items and users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrie.client.client import Client, RankFailed
from ftrie.client.messages import AnyOf, Between, NoneOf, Thompson, UpperConfidenceBound
from ftrie.library.ranker import Ranker
from model_store.errors import FtrieError
from model_store.store import Store
from server.errors import status_of
from tests.matrix import examples
from tests.server import shop
from tests.server.conftest import client, server, start  # noqa: F401 (fixtures)
from tests.server.one_process import Server

ITEMS: dict[str, dict[str, str]] = {
    item: {**record, "bid": str(1.0 + number % 5), "seller": f"s{number % 3}"}
    for number, (item, record) in enumerate(shop.ITEMS.items())
} | {
    "no price": {"brand": "b1"},
    "bad price": {"brand": "b2", "price": "dear", "bid": "1e999"},
    "café": {"brand": "b1", "tags": '["red"]', "price": "3", "bid": "2.5", "seller": "s1"},
}
USERS: dict[str, dict[str, str]] = {**shop.USERS, "é": {"age": "40"}, "bad likes": {"likes": "{}x", "age": "20"}}


@pytest.fixture(params=["single", "per_variant"])
def values(request: pytest.FixtureRequest) -> str:
    """How the model holds its weights."""
    return str(request.param)


@pytest.fixture
def shop_store(store: Store, values: str) -> Store:
    """The shop, with more items and users."""
    shop.fill(store, values=values)
    store.records.put_items(ITEMS.items())
    store.records.put_users(USERS.items())
    return store


@pytest.fixture
def ranker(shop_store: Store, values: str) -> Ranker:
    """Over the same model, items and users, without the store."""
    return Ranker(shop.artefact(values=values), ITEMS, USERS, version=1)


# -- requests, most of them sound

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, 2.5, 1e300])
VALUE = (
    TEXT
    | st.sampled_from(['["a"]', '{"a": 1}', "[[]]", "1e400", "", "\ud800"])
    | NUMBERS
    | st.integers(-(10**20), 10**20)
    | st.booleans()
    | st.none()
    | st.lists(TEXT, max_size=3)
    | st.dictionaries(TEXT, NUMBERS, max_size=3)
)
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "age": st.sampled_from(shop.AGES),
    "likes": st.lists(st.sampled_from(["red", "blue", "green", "moon"]), max_size=3)
    | st.dictionaries(st.sampled_from(["red", "blue"]), st.sampled_from([0.5, 1.0, -2.0])),
    "hour": st.sampled_from(shop.HOURS),
    "distance": st.sampled_from([2.5, "2.5", 3, 0.1]),
    "device": st.sampled_from(["u1", "u2", "x"]),
    "brand": st.sampled_from(["b0", "b1", "b2", "nova"]),
    "tags": st.lists(st.sampled_from(["red", "blue"]), max_size=2),
    "price": st.sampled_from([1.5, "3", 96.0, 0]),
    "bid": st.sampled_from([1.0, "7", "none"]),
}


def features(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Values that fit the fields, and one of anything: of two misfits, which a map has in no order, either is named."""
    fitting = st.fixed_dictionaries({}, optional={name: SOUND[name] for name in names})
    junk = st.dictionaries(st.sampled_from([*SOUND, "raw_keys"]) | TEXT, VALUE, max_size=1)
    return st.builds(dict.__or__, fitting, st.just({}) | st.just({}) | st.just({}) | junk)


ID = st.sampled_from([*ITEMS, "unknown"])
FILTER = st.one_of(
    st.builds(AnyOf, st.sampled_from(["brand", "seller", "tags"]), st.lists(st.sampled_from(["b1", "s1", "red"]))),
    st.builds(NoneOf, st.sampled_from(["brand", "seller", "x"]), st.lists(st.sampled_from(["b1", "s1"]), min_size=1)),
    st.builds(Between, st.sampled_from(["bid", "price", ""]), st.none() | NUMBERS, st.none() | NUMBERS),
)
OBJECTIVES = st.sampled_from(
    ["ctr * bid", "ctr * (bid ?? 1)", "score", "uncertainty", "-price", "log(score)", "1 / 0", "bid +", "(" * 40]
)
REQUESTS = st.fixed_dictionaries(
    {"request_id": st.text(min_size=1, max_size=6, alphabet="abcé")},
    optional={
        "candidates": st.lists(ID | TEXT, max_size=8) | st.lists(ID, min_size=1) | st.just(list(ITEMS)),
        "items": st.dictionaries(ID | TEXT, features("brand", "tags", "price", "bid"), max_size=3),
        "user": features("age", "likes", "device"),
        "context": features("hour", "distance"),
        "cookie": st.sampled_from(["", "u1", "u2", "é", "bad likes"]) | TEXT | st.just("long" * 2000),
        "top_k": st.integers(-1, 6) | st.integers(-(2**31), 2**31 - 1) | st.none(),
        "variant": st.sampled_from(["base", "plain", "nope", None]),
        "objective": OBJECTIVES,
        "filters": st.lists(FILTER, max_size=2)
        | st.just({"brand": "b1"})
        | st.just({"seller": ["s1", "s2"], "bid": (2, None)}),
        "caps": st.dictionaries(st.sampled_from(["brand", "seller", "tags", ""]), st.integers(0, 3), max_size=2),
        "exploration": st.builds(UpperConfidenceBound, NUMBERS) | st.builds(Thompson, st.sampled_from([0.5, 3.0])),
    },
)  # fmt: skip


def outcome(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The answer; of an error its status and its text as a server sends it, or its class and text."""
    try:
        answer = ask(*args, **options)
        return replace(answer, unknown_fields=sorted(answer.unknown_fields))  # a map's names, in no order
    except RankFailed as error:
        return error.code, str(error).partition(f"{error.code.name}: ")[2]
    except FtrieError as error:
        if type(error).__module__.startswith("ftrie.client"):
            raise
        return status_of(error), str(error)


@pytest.mark.parametrize("method", ["rank", "explain"])
@settings(examples(250), suppress_health_check=list(HealthCheck))
@given(request=REQUESTS)
def test_an_answer_is_what_a_server_sends_in_every_field(
    client: Client,  # noqa: F811
    ranker: Ranker,
    method: str,
    request: dict[str, Any],
) -> None:
    theirs, ours = outcome(getattr(client, method), **request), outcome(getattr(ranker, method), **request)
    assert repr(ours) == repr(theirs)
