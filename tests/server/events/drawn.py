"""Requests of every kind, drawn: texts that keys escape, numbers, times, sets, weighted sets, raw keys, records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import Features, RankRequest

TEXTS = st.sampled_from(["", "a", "50%", "a*b", "x=y", "ü", '"', "[", "1.0", "77", "\n", "true"]) | st.text(
    st.characters(codec="utf-8"), max_size=6
)
NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 77.0, 1e-300, 0.1])
MEMBERS = st.lists(TEXTS, max_size=4)
WEIGHTED = st.dictionaries(TEXTS, st.floats(-8, 8), max_size=3)
TIMES = st.datetimes().map(lambda moment: moment.isoformat())


def features(**kinds: Any) -> st.SearchStrategy[dict[str, Any]]:
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
)
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
STORED = features(
    age=TEXTS,
    likes=st.sampled_from(["a|b", '["a"]', "|", '{"a":2}', "[", "{"]),
    topics=st.sampled_from(["a,b*c", '["a=b",7,true,null]', '{"p":0.25,"q":1}', "[1"]),
    income=st.sampled_from(["1000", "1e3", "-0", "many", "0.1"]),
    seen=st.sampled_from(["2024-05-01", "yesterday", ""]),
    device=TEXTS,
)


def put(into: Features, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "segments":
            into.raw_keys.extend(value)
        elif isinstance(value, str):
            into.values[name].text = value
        elif isinstance(value, float):
            into.values[name].number = value
        elif isinstance(value, list):
            into.values[name].set.SetInParent()
            into.values[name].set.values.extend(value)
        else:
            into.values[name].weighted_set.SetInParent()
            into.values[name].weighted_set.members.update(value)


def request(
    ids: Sequence[str], user: dict[str, Any], context: dict[str, Any], items: dict[str, Any], cookie: str
) -> RankRequest:
    made = RankRequest(item_ids=ids, cookie=cookie)
    put(made.user, user)
    put(made.context, context)
    for item_id, given_features in items.items():
        put(made.items.add(id=item_id).features, given_features)
    return made
