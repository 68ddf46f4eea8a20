"""What a request was scored on and the line it leaves make the same keys: docs/impressions.md, "The same keys"."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.impressions.lines import Lines
from server.ranking.features import StoredUser
from server.ranking.query import Query
from tests.server.impressions import whole_spec
from tests.server.impressions.drawn import CONTEXT, ITEM, STORED, USER, features, request
from tests.server.impressions.whole_spec import Keys, hashed, learned_keys, scored_keys

SERVED = whole_spec.served()
PLAN = SERVED.model.plan


def stored(cookie: str, values: dict[str, str]) -> StoredUser | None:
    """What is kept of a user; nobody without a cookie."""
    names = SERVED.user_fields.hash_fields.names
    return StoredUser(cookie, [values.get(name) for name in names], 0.0) if cookie else None


def logged_keys(line: bytes) -> list[Keys]:
    """The keys that the rows of a line make, by the slow reference."""
    event = json.loads(line)
    return [PLAN.keys(whole_spec.joined(event, item, SERVED.model.spec)) for item in event["items"]]


def check(*questions: Query) -> list[dict[str, Any]]:
    """Compare what they were scored on with what their lines say, and give back the events."""
    lines, served = list[bytes](), list[Keys]()
    for asked in questions:
        left = whole_spec.shown(SERVED, asked._replace(request_id=f"r{len(lines)}"))
        lines.append(Lines.of(SERVED).line(left))
        ids = left.ranking.ids
        first = [place for place, item in enumerate(ids) if item not in ids[:place]]
        keys = scored_keys(SERVED, asked, left.ranking.order[first].tolist())
        served += keys
        assert logged_keys(lines[-1]) == keys
        event = json.loads(lines[-1])
        assert [item["position"] - 1 for item in event["items"]] == first
        assert [item["ctr"] for item in event["items"]] == pytest.approx(left.ranking.ctrs[first], abs=1e-15)
        assert [item["id"] for item in event["items"]] == [ids[place] for place in first]
    assert learned_keys(SERVED.model.spec, lines) == [hashed(keys) for keys in served]
    return [json.loads(line) for line in lines]


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
    try:
        asked = whole_spec.query(SERVED, made, stored(cookie, record), plain=False)
    except InvalidRequest:  # a value that does not fit its field
        return
    check(asked, *OTHERS)


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
    check(whole_spec.query(SERVED, made, stored(cookie, record), plain=True))


OTHERS = [
    whole_spec.query(
        SERVED,
        request(
            ["i1", "i2"],
            {"topics": topics, "income": 3.0},
            {"hour": "2024-05-01T08:00:00", "distance": 0.5},
            {},
            "c9",
        ),
        None,
        plain=False,
    )
    for topics in (["a"], {"a": 0.5})
]
"""Impressions that stand in the same block as another."""


def test_what_stands_in_a_line_of_request_record_and_item() -> None:
    """Of the request what the row has no other use for, of a record what fits, of an item its fields."""
    made = request(["i1"], {"new": 2.5}, {"session": "s", "when": "now", "click": "1", "id": "x"}, {}, "")
    (event,) = check(whole_spec.query(SERVED, made, None, plain=False))
    assert event["context"] == {"session": "s", "new": 2.5, "when": ""}
    record = {"age": "30", "income": "many", "likes": "a|b"}
    made = request(["i1", "i2"], {}, {}, {}, "c1")
    (event,) = check(whole_spec.query(SERVED, made, stored("c1", record), plain=True))
    assert event["user"] == {"age": "30", "device": "c1", "likes": ["a", "b"]}
    assert [item["features"] for item in event["items"]] == [
        {"brand": "50%", "model": "", "tags": ["a*b", "c=d"], "words": {"x": 0.5, "y": -2.0}, "price": 9.5},
        {"model": "ü-2", "kg": 0.1, "added": "1700000000", "sku": "another"},
    ]
