"""What a request was scored on and the line it leaves make the same keys: docs/impressions.md, "The same keys"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import Features, RankRequest
from model_store.errors import FieldValueError
from model_store.features import Token
from server.explaining.tokens import item_tokens, request_tokens
from server.question import Question
from server.receiving.plain_features import PlainFeatures
from server.serving import Serving
from server.user_records.cache import StoredUser
from server.users import drop_misfits
from tests.server.impressions import whole_spec

Keys = list[tuple[bytes, float, int]]
SERVING = whole_spec.serving()
PLAN = SERVING.model.plan

TEXTS = st.sampled_from(["", "a", "50%", "a*b", "x=y", "ü", '"', "[", "1.0", "77", "\n", "true"]) | st.text(
    st.characters(codec="utf-8"), max_size=6
)
NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 77.0, 1e-300, 0.1])
MEMBERS = st.lists(TEXTS, max_size=4)
WEIGHTED = st.dictionaries(TEXTS, st.floats(-8, 8), max_size=3)
TIMES = st.datetimes().map(lambda moment: moment.isoformat())


def features(**kinds: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these features."""
    return st.fixed_dictionaries({}, optional=kinds)


USER = features(
    age=TEXTS | NUMBERS,
    device=TEXTS,
    likes=MEMBERS | TEXTS,
    topics=MEMBERS | WEIGHTED,
    income=NUMBERS,
    seen=TIMES,
)
CONTEXT = features(
    hour=TIMES,
    distance=NUMBERS,
    place=TEXTS,
    segments=MEMBERS,
    session=TEXTS,
    click=TEXTS,
    when=TEXTS,
    sku=TEXTS,
).map(lambda values: {name: value for name, value in values.items() if name != "sku"})
ITEM = features(
    brand=TEXTS | NUMBERS,
    model=TEXTS,
    tags=MEMBERS | WEIGHTED,
    words=WEIGHTED,
    price=NUMBERS,
    weight=NUMBERS,
    added=NUMBERS,
    sku=TEXTS,
    colour=TEXTS,
)
STORED = st.fixed_dictionaries(
    {},
    optional={
        "age": TEXTS,
        "likes": st.sampled_from(["a|b", '["a"]', "|", '{"a":2}', "[", "{"]),
        "topics": st.sampled_from(["a,b*c", '["a=b",7,true,null]', '{"p":0.25,"q":1}', "[1"]),
        "income": st.sampled_from(["1000", "1e3", "-0", "many", "0.1"]),
        "seen": st.sampled_from(["2024-05-01", "yesterday", ""]),
        "device": TEXTS,
    },
)


def put(into: Features, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "segments":
            into.raw_keys.extend(value)
        elif isinstance(value, str):
            into.values[name] = value
        elif isinstance(value, float):
            into.numbers[name] = value
        elif isinstance(value, list):
            into.sets[name].values.extend(value)
        else:
            into.weighted_sets[name].members.update(value)


def request(
    ids: Sequence[str], user: dict[str, Any], context: dict[str, Any], items: dict[str, Any], cookie: str
) -> RankRequest:
    made = RankRequest(item_ids=ids, cookie=cookie)
    put(made.user, user)
    put(made.context, context)
    for item_id, given_features in items.items():
        put(made.items.add(id=item_id).features, given_features)
    return made


def stored(cookie: str, values: dict[str, str]) -> StoredUser | None:
    """What is kept of a user; nobody without a cookie."""
    names = SERVING.wanted.hash_fields.names
    return StoredUser(cookie, [values.get(name) for name in names], 0.0) if cookie else None


def served_keys(serving: Serving, asked: Question, places: Sequence[int]) -> list[Keys]:
    """The keys that each item was scored on, by the tokens in the ranker's hands."""
    if isinstance(asked.fields, PlainFeatures):
        starts, begin, x, text = asked.fields.arrays
        of_request: dict[str, Sequence[Token]] = {
            field.name: [
                Token(text[begin[t] : begin[t + 1] - 1].tobytes(), float(x[t]))
                for t in range(starts[place], starts[place + 1])
            ]
            for place, field in enumerate(PLAN.request_fields)
        }
    else:
        of_request = request_tokens(serving.model, asked.fields)
    ids = [*asked.item_ids, *(item for item, _ in asked.spelled)]
    under = [None] * len(asked.item_ids) + [values for _, values in serving.catalogue.under(asked.spelled)]
    return [
        [
            (key, x, mask)
            for _, key, x, mask in PLAN.keys_of(
                of_request | item_tokens(serving.model, serving.catalogue, ids[place], under[place])
            )
        ]
        for place in places
    ]


def logged_keys(serving: Serving, line: bytes) -> list[Keys]:
    """The keys that the rows of a line make."""
    event = json.loads(line)
    spec = serving.model.spec
    return [PLAN.keys(whole_spec.joined(event, item, spec)) for item in event["items"]]


def check(asked: Question) -> dict[str, Any]:
    """Compare, and give back the event."""
    left = whole_spec.shown(SERVING, asked)
    line = SERVING.lines.line(left)
    assert logged_keys(SERVING, line) == served_keys(SERVING, asked, left.ranking.order.tolist())
    event: dict[str, Any] = json.loads(line)
    assert [item["position"] for item in event["items"]] == list(range(1, len(event["items"]) + 1))
    assert [item["ctr"] for item in event["items"]] == pytest.approx(left.ranking.ctr, rel=1e-11)
    assert [item["id"] for item in event["items"]] == left.ranking.ids
    return event


IDS = st.lists(st.sampled_from([*whole_spec.ITEMS, "unknown", "n=w"]), unique=True)


@given(
    ids=IDS,
    user=USER,
    context=CONTEXT,
    items=st.dictionaries(st.sampled_from(["i1", "i2", "i4", "new"]), ITEM),
    cookie=st.sampled_from(["", "c1", "c*=%"]),
    record=STORED,
)
def test_a_request_and_its_line_make_the_same_keys(
    ids: list[str],
    user: dict[str, Any],
    context: dict[str, Any],
    items: dict[str, Any],
    cookie: str,
    record: dict[str, str],
) -> None:
    made = request(ids if ids or items else ["i1"], user, context, items, cookie)
    asked = whole_spec.question(SERVING, made, stored(cookie, record), plain=False)
    try:
        asked.ask(SERVING)
    except FieldValueError:
        asked.fields, _ = drop_misfits(asked.fields, SERVING)  # type: ignore[arg-type]
    check(asked)


@given(
    ids=IDS,
    user=features(age=st.sampled_from(["", "a", "77", "a b"]), device=st.sampled_from(["", "d"])),
    place=st.sampled_from(["", "x", "somewhere"]),
    cookie=st.sampled_from(["", "c1"]),
    record=STORED,
)
def test_so_do_a_request_that_was_never_python_values_and_its_line(
    ids: list[str], user: dict[str, Any], place: str, cookie: str, record: dict[str, str]
) -> None:
    made = request(ids or ["i1"], user, {"place": place}, {}, cookie)
    check(whole_spec.question(SERVING, made, stored(cookie, record), plain=True))


def test_what_a_model_does_not_know_stands_in_the_context_unless_the_row_has_a_use_for_its_name() -> None:
    made = request(["i1"], {"new": 2.5}, {"session": "s", "when": "now", "click": "1", "id": "x"}, {}, "")
    event = check(whole_spec.question(SERVING, made, None, plain=False))
    assert event["context"] == {"session": "s", "new": 2.5, "when": ""}


def test_a_value_of_a_record_that_does_not_fit_was_not_scored_and_is_not_logged() -> None:
    made = request(["i1"], {}, {}, {}, "c1")
    record = {"age": "30", "income": "many", "likes": "a|b"}
    event = check(whole_spec.question(SERVING, made, stored("c1", record), plain=True))
    assert event["user"] == {"age": "30", "device": "c1", "likes": ["a", "b"]}


def test_a_line_says_of_an_item_what_its_record_says_of_the_models_fields() -> None:
    made = request(["i1", "i2"], {}, {}, {}, "")
    items = check(whole_spec.question(SERVING, made, None, plain=True))["items"]
    assert [item["features"] for item in items] == [
        {"brand": "50%", "model": "", "tags": ["a*b", "c=d"], "words": {"x": 0.5, "y": -2.0}, "price": 9.5},
        {"model": "ü-2", "kg": 0.1, "added": "1700000000", "sku": "another"},
    ]
