"""What a request was scored on and the line it leaves make the same keys: docs/events.md, "The same keys".

First a spec with a field of every kind, then derived fields over specs, requests and records of any kind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import RankRequest
from model_store.spec.kinds import Token
from model_store.spec.spec import ModelSpec
from server.errors import InvalidRequest
from server.events.lines import Lines, Shown
from server.model.columns import Catalogue
from server.model.event_form import Form
from server.model.tokens import NO_VALUE, TokenTable
from server.ranking.explain import item_tokens
from server.ranking.features import StoredUser
from server.ranking.query import Query
from server.ranking.ranker import Ranker
from server.ranking.select.filters import CandidateColumns, Texts
from server.ranking.served import ServedVersion
from tests.server.events import drawn, whole_spec
from tests.server.events.drawn import CONTEXT, ITEM, STORED, USER, features, request
from tests.server.events.whole_spec import Keys, hashed, learned_keys, scored_keys

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


MORNING = {"hour": "2024-05-01T08:00:00", "distance": 0.5}
ASKING = [
    request(["i1", "i2"], {"topics": topics, "income": 3.0}, MORNING, {}, "c9")
    for topics in (["a"], {"a": 0.5})
]
OTHERS = [whole_spec.query(SERVED, each, None, plain=False) for each in ASKING]
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


Fields = dict[str, dict[str, Any]]
NUMBER = {"kind": "number"}
GIVEN: Fields = {
    "price": {"side": "item", **NUMBER, "bucket": "log"},
    "stars": {"side": "item", **NUMBER},
    "kg": {"side": "item", **NUMBER, "column": "weight of it"},
    "budget": {"side": "user", **NUMBER, "bucket": "log"},
    "nights": {"side": "context", **NUMBER},
    "city": {"side": "context"},
}
SCALED = {"scale": "standard", "learned": [1.0, 1e-6]}
OF_ITEMS, OF_REQUESTS = ("price", "stars", "kg"), ("budget", "nights")


def resolved(fields: Fields, crosses: Sequence[dict[str, Any]] = ()) -> ModelSpec:
    """The spec of these fields, all of them in the log."""
    document = {
        "model": {"name": "derived"},
        "input": {"label": "click", "request": "request", "item": "id"},
        "fields": fields,
        "crosses": crosses,
    }
    parsed = ModelSpec.model_validate(document)
    columns = (field.column or name for name, field in parsed.fields.items())
    return parsed.resolve(["click", "request", "id", *columns])


def scaled(other: str) -> ModelSpec:
    """A ratio of the price, and the least one of the request; records may give ratios that `scale` makes too large."""
    scale = {"side": "item", **NUMBER, **SCALED}
    ratio = {"ratio0": scale | {"ratio": ["price", other]}}
    return resolved(GIVEN | ratio | {"list0": scale | {"list": "min", "of": "ratio0"}})


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Specs with derived fields of every kind, and crosses of them."""
    fields = dict(GIVEN)
    anything = st.sampled_from(OF_ITEMS + OF_REQUESTS)
    ratio = st.tuples(st.sampled_from(["ratio", "difference"]), anything, anything)
    ratios = draw(st.lists(ratio, max_size=3))
    for number, (way, a, b) in enumerate(ratios):
        side = "item" if {a, b} & set(OF_ITEMS) else draw(st.sampled_from(["user", "context"]))
        fields[f"{way}{number}"] = {"side": side, **NUMBER, way: [a, b]}
    listable = [name for name, field in fields.items() if field.get("side") == "item"]
    measures = st.tuples(st.sampled_from(["rank", "min", "max", "gap"]), st.sampled_from(listable))
    for number, (measure, of) in enumerate(draw(st.lists(measures, max_size=3))):
        best = draw(st.sampled_from([{}, {"best": "max"}])) if measure in ("rank", "gap") else {}
        fields[f"list{number}"] = {"side": "item", **NUMBER, "list": measure, "of": of, **best}
    for number, name in enumerate(each for each in fields if each not in GIVEN):
        fields[name] |= draw(
            st.sampled_from(
                [
                    {},
                    {"bucket": "log"},
                    {"column": f"its column {number}"},
                    {"bucket": [1.0, 2.0, 5.0], "missing": "key"},
                    {"clip": [0.5, 3.0], "missing": "key"},
                    {"scale": "log1p", "main": False},
                    SCALED,
                ]
            )
        )
    derived = [name for name in fields if name not in GIVEN]
    crosses = [{"fields": [name, "city"]} for name in derived if draw(st.booleans())]
    if len(derived) > 1 and draw(st.booleans()):
        crosses.append({"fields": derived[:2]})
    return resolved(fields, crosses)


TEXTS = st.sampled_from(["", "0", "-0", "1", "2", "2.0", "0.1", "1e-300", "-3.5", "1e24", "1e25", "many"])
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 2.0, 7.5, 1e-300]) | st.floats(-100, 100)
NAMES = (*OF_ITEMS, "ratio0", "difference1", "list0", "list1")


def records(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, values))


def serve(spec: ModelSpec, items: dict[str, dict[str, str]]) -> ServedVersion:
    model = whole_spec.bias_alone(spec)
    catalogue = Catalogue.build(model.plan, items.items(), Form(spec, model.plan))
    head, arrays = catalogue.pack()
    catalogue = Catalogue.unpack(model.plan, json.loads(json.dumps(head)), arrays)
    return ServedVersion("derived", 1, "", model, catalogue, Ranker(model, catalogue), 0)


def check_tokens(served: ServedVersion, query: Query) -> None:
    """What the ranker reads of inline items is what each of them says."""
    table = query.candidates.item_tokens
    if table is None:
        return
    for row, (item_id, own) in enumerate(query.candidates.items):
        expected = item_tokens(served.model, served.catalogue, item_id, own)
        for column, field in enumerate(served.model.plan.item_fields):
            found = tokens_at(table, int(table.values[row, column]))
            assert found == expected[field.name], (item_id, field.name)


def check_columns(served: ServedVersion, query: Query) -> None:
    """Filters, caps and objectives read of a field what each item says."""
    candidates, catalogue = query.candidates, served.catalogue
    plain = CandidateColumns(catalogue, candidates.ids, candidates.rows, candidates.items)
    whole = (candidates.ids, candidates.rows, candidates.items, candidates.stored, candidates.computed)
    fast = CandidateColumns(catalogue, *whole)
    for field in served.model.plan.item_fields:
        assert repr(plain.numbers(field.name).tolist()) == repr(fast.numbers(field.name).tolist())
        assert texts_of(plain.texts(field.name)) == texts_of(fast.texts(field.name))


def texts_of(found: Texts) -> list[tuple[int, bytes]]:
    texts, place = found.distinct
    return list(zip(found.owner.tolist(), [texts[each].as_py() for each in place.tolist()], strict=True))


def tokens_at(table: TokenTable, value: int) -> tuple[Token, ...]:
    tokens = range(table.value_start[value], table.value_start[value + 1]) if value != NO_VALUE else range(0)
    for token in tokens:
        assert table.text[table.begin[token + 1] - 1] == ord("*")
    texts = [table.text[table.begin[token] : table.begin[token + 1] - 1].tobytes() for token in tokens]
    return tuple(Token(text, float(table.x[token])) for token, text in zip(tokens, texts, strict=True))


ASKED: dict[str, Any] = {"inline": {}, "user": {}, "context": {}, "top_k": 3}


@given(
    spec=specs(),
    items=st.dictionaries(st.sampled_from("abcdef"), records(TEXTS), max_size=6),
    named=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True),
    inline=st.dictionaries(st.sampled_from(["a", "b", "new", "other"]), records(FLOATS), max_size=3),
    user=st.fixed_dictionaries({}, optional={"budget": FLOATS, "ratio0": FLOATS}),
    context=st.fixed_dictionaries({}, optional={"nights": FLOATS, "city": st.just("x")}),
    top_k=st.integers(1, 9),
)
@example(
    spec=scaled("stars"),
    items={"a": {"ratio0": "1e24", "price": "2", "stars": "1"}, "b": {"ratio0": "1e24"}},
    **{**ASKED, "named": ["a", "b"]},
)
@example(
    spec=resolved(
        GIVEN | {"difference0": {"side": "item", **NUMBER, "difference": ["price", "stars"], **SCALED}}
    ),
    items={"b": {"price": "0", "stars": "1e24"}},
    **{**ASKED, "named": ["b"]},
)
@example(
    spec=scaled("budget"),
    items={"a": {"ratio0": "1e24", "list0": "1e24", "price": "2"}, "b": {"ratio0": "-1e24"}},
    **{**ASKED, "named": ["a", "b"], "inline": {"a": {"price": 3.0}}, "user": {"budget": 1.0}},
)
def test_what_was_served_is_what_is_learned_by_every_thread(
    spec: ModelSpec,
    items: dict[str, dict[str, str]],
    named: list[str],
    inline: dict[str, dict[str, float]],
    user: dict[str, float],
    context: dict[str, Any],
    top_k: int,
) -> None:
    served = serve(spec, items)
    of_items = {name for name, field in spec.fields.items() if field.side == "item"}
    user = {name: value for name, value in user.items() if name not in of_items}
    made = drawn.request([name for name in named if name not in inline], user, context, inline, "")
    made.top_k = top_k

    def call(request: RankRequest) -> tuple[Query, Shown]:
        query = whole_spec.query(served, request, None, plain=False)
        return query, whole_spec.shown(served, query)

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(call, [made] * 3))
    lines = [Lines.of(served).line(shown) for _, shown in answers]
    assert lines[0] == lines[1] == lines[2]
    query, shown = answers[0]
    check_tokens(served, query)
    check_columns(served, query)
    scored = whole_spec.scored_keys(served, query, shown.ranking.order.tolist())
    assert whole_spec.learned_keys(spec, lines[:1]) == [whole_spec.hashed(keys) for keys in scored]
