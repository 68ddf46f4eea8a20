"""Derived fields: what is served is what is learned, over specs, requests and records of any kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import RankRequest
from model_store.features.features import Token
from model_store.spec.spec import ModelSpec
from server.impressions.lines import Lines, Shown
from server.model.catalogue import Catalogue
from server.model.event_form import Form
from server.model.tokens import NO_VALUE, TokenTable
from server.ranking.explain import item_tokens
from server.ranking.query import Query
from server.ranking.ranker import Ranker
from server.ranking.select.filters import CandidateColumns, Texts
from server.ranking.served import ServedVersion
from tests.server.impressions import drawn, whole_spec

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
    derived = {
        "ratio0": scale | {"ratio": ["price", other]},
        "list0": scale | {"list": "min", "of": "ratio0"},
    }
    return resolved(GIVEN | derived)


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Specs with derived fields of every kind, and crosses of them."""
    fields = dict(GIVEN)
    anything = st.sampled_from(OF_ITEMS + OF_REQUESTS)
    ratios = draw(
        st.lists(st.tuples(st.sampled_from(["ratio", "difference"]), anything, anything), max_size=3)
    )
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
    for row, (item_id, features) in enumerate(query.candidates.items):
        expected = item_tokens(served.model, served.catalogue, item_id, features)
        for column, field in enumerate(served.model.plan.item_fields):
            found = tokens_at(table, int(table.values[row, column]))
            assert found == expected[field.name], (item_id, field.name)


def check_columns(served: ServedVersion, query: Query) -> None:
    """Filters, caps and objectives read of a field what each item says."""
    candidates, attributes = query.candidates, served.catalogue.attributes
    plain = CandidateColumns(attributes, candidates.ids, candidates.rows, candidates.items)
    given = (candidates.ids, candidates.rows, candidates.items, candidates.stored, candidates.computed)
    fast = CandidateColumns(attributes, *given)
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
    user = {
        name: value
        for name, value in user.items()
        if name not in spec.fields or spec.fields[name].side != "item"
    }
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
