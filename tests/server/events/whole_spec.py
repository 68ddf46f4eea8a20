"""A spec with a field of every kind on every side, its items and users; and a joined row as docs/events.md has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.hash_kernels import hash_keys
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.spec.values import Value
from server.events.lines import Lines, Shown
from server.model.columns import Catalogue
from server.model.event_form import Form
from server.model.model import Model
from server.ranking.candidates import LateItems
from server.ranking.explain import item_tokens, request_tokens
from server.ranking.features import StoredUser
from server.ranking.query import Query
from server.ranking.ranker import Ranker
from server.ranking.request import Received
from server.ranking.resolve import Call, Resolver
from server.ranking.scoring_kernels import FIRST_INLINE
from server.ranking.served import ModelHandle, ServedVersion
from server.ranking.store_reads import StoredReads
from trainer.events.columns import Wanted
from trainer.events.events import IMPRESSION
from trainer.events.parse import parse
from trainer.examples.hashing import ExampleMaker
from trainer.formats.batch import Position, RowBatch

Keys = list[tuple[bytes, float, int]]
Hashed = list[tuple[int, float]]

SPEC = """
[model]
name = "whole"
[input]
label = "click"
request = "request"
timestamp = "when"
cookie = "device"
item = "sku"
[fields]
age = { side = "user" }
device = { side = "user" }
likes = { side = "user", kind = "set", separator = "|" }
topics = { side = "user", kind = "set" }
income = { side = "user", kind = "number", bucket = "log" }
seen = { side = "user", kind = "time", part = "weekday", column = "seen_at" }
hour = { side = "context", kind = "time", part = "hour", column = "when" }
distance = { side = "context", kind = "number" }
place = { column = "the place" }
segments = { side = "context", kind = "raw" }
brand = { side = "item" }
model = { side = "item" }
tags = { side = "item", kind = "set" }
words = { side = "item", kind = "set" }
price = { side = "item", kind = "number", bucket = "log" }
weight = { side = "item", kind = "number", column = "kg" }
added = { side = "item", kind = "time", part = "month", format = "epoch_s" }
sku = { side = "item" }
[[crosses]]
fields = ["age", "brand"]
[[crosses]]
fields = ["topics", "tags"]
[[crosses]]
fields = ["distance", "place", "sku"]
"""
ITEMS: dict[str, dict[str, str]] = {
    "i1": {"brand": "50%", "tags": '["a*b","c=d"]', "words": '{"x":0.5,"y":-2}', "price": "9.50", "kg": "3"},
    "i2": {"model": "ü-2", "weight": "0.1", "added": "1700000000", "sku": "another", "colour": "red"},
    "i3": {"brand": "x" * 300, "tags": "a,b", "words": "u,v", "price": "nine", "added": "1e9"},
    "i4": {},
    "i*5=%": {"brand": "", "tags": "[]", "price": "-7", "weight": "1e-3"},
}


def spec() -> ModelSpec:
    parsed = parse_spec(SPEC)
    columns = (field.column or name for name, field in parsed.fields.items())
    return parsed.resolve(["click", "request", "when", "device", "sku", *columns])


def bias_alone(of: ModelSpec) -> Model:
    """A model that knows no key."""
    made = Artefact.from_columns(
        key_data=np.frombuffer(b"bias", np.uint8),
        key_offsets=np.array([0, 4], np.int64),
        weight=np.ones(1, np.float32),
        variants=np.ones(1, np.uint32),
        rate=np.ones(1, np.float32),
        spec=of,
        metrics={},
    )
    return Model.build(made, 7)


def served(with_fragments: bool = True) -> ServedVersion:
    """What serves it: a model that knows no key, over the items."""
    model = bias_alone(spec())
    form = Form(model.spec, model.plan) if with_fragments else None
    catalogue = Catalogue.build(model.plan, ITEMS.items(), form)
    return ServedVersion("whole", 7, "", model, catalogue, Ranker(model, catalogue), 0)


def query(served: ServedVersion, request: RankRequest, user: StoredUser | None, *, plain: bool) -> Query:
    """What a call makes of a request, and of what is stored of its user; with `plain` as tokens."""
    message, users = Received(request.SerializeToString()), Found(user)
    if plain:
        assert served.plain.read(message) is not None
    else:
        message = Received.of(request)
    handle = ModelHandle(served.name, LateItems(Nothing("")))
    handle.serve(served)
    call = Call(message, "r1", None, handle, served)  # type: ignore[arg-type]
    return Resolver(Nothing(""), users).resolve(call)  # type: ignore[arg-type]


class Found:
    """A store with one user."""

    def __init__(self, user: StoredUser | None) -> None:
        self._user = user

    def find(self, cookie: str, *rest: object) -> tuple[StoredUser | None, tuple[str, ...]]:
        return self._user, ()


class Nothing(StoredReads):
    """A store without items."""

    def items(self, ids: Sequence[str], context: object) -> list[dict[str, str] | None]:
        return [None] * len(ids)


def shown(served: ServedVersion, query: Query) -> Shown:
    """The answer to it, as a call leaves it behind."""
    return Shown(1700000000.25, Lines.of(served), query, served.ranker.rank(query))


def joined(event: Mapping[str, Any], item: Mapping[str, Any], spec: ModelSpec) -> dict[str, Value]:
    """The columns of one item's row, by field: the first place that has a value."""
    given = spec.input
    own = {given.request: "request_id", given.timestamp: "ts", given.cookie: "cookie"}

    def places(column: str) -> Iterator[Any]:
        yield item["features"].get(column)
        yield item["id"] if column == given.item else item.get(column)
        yield event["context"].get(column)
        yield event["user"].get(column)
        yield event.get(own.get(column, column))

    plan = FeaturePlan.of(spec)
    return {
        field.name: next((value for value in places(field.column) if value is not None), None)
        for field in plan.fields
    }


def scored_keys(served: ServedVersion, asked: Query, places: Sequence[int]) -> list[Keys]:
    """The keys that each of these candidates was scored on, by the tokens in the ranker's hands."""
    plan, candidates = served.model.plan, asked.candidates
    of_request = request_tokens(plan, asked.features.tokens)
    found = []
    for place in places:
        row = int(candidates.rows[place])
        under = candidates.items[FIRST_INLINE - row][1] if row <= FIRST_INLINE else None
        own = item_tokens(served.model, served.catalogue, candidates.ids[place], under)
        found.append([(key, x, mask) for _, key, x, mask in plan.keys_of(of_request | own)])
    return found


def hashed(keys: Keys) -> Hashed:
    texts = np.frombuffer(b"".join(key for key, _, _ in keys), np.uint8).copy()
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(texts, np.cumsum([0, *(len(key) for key, _, _ in keys)]), hashes)
    return list(zip(hashes.tolist(), [x for _, x, _ in keys], strict=True))


def learned_keys(of: ModelSpec, lines: Sequence[bytes]) -> list[Hashed]:
    """The keys that a trainer hashes of the rows of some lines, read as one block."""
    data = b"".join(line + b"\n" for line in lines)
    events = parse(data, np.cumsum([0, *(len(line) + 1 for line in lines)], dtype=np.int64), Wanted.of(of))
    assert events.bad == {}
    assert (events.kind == IMPRESSION).all()
    rows = events.items.size
    columns = {**events.columns, "click": pa.array([1] * rows)}
    made = ExampleMaker(of).make(RowBatch(columns, np.arange(rows), "join", (), rows, Position("join")))
    assert made.rejects == ()
    hashes, x = made.hashed.hashes.tolist(), made.hashed.x.tolist()
    x = x or [1.0] * len(hashes)
    return [
        list(zip(hashes[first:stop], x[first:stop], strict=True))
        for first, stop in pairwise(made.hashed.starts.tolist())
    ]
