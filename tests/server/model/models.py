"""Random specs, models, requests and items; runs of deltas over them; and what a ranker answers to many questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.spec.values import Value
from server.model.columns import Catalogue
from server.model.live_model import LiveModel
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from tests.server import shop
from tests.server.ranked import ranked, ranker_of
from tests.server.slow_ranker import Weights, artefact_of

Records = list[tuple[str, dict[str, Value]]]
VARIANTS = 3
FIELDS = {
    "age": {"side": "user"},
    "likes": {"side": "user", "kind": "set"},
    "score": {"side": "user", "kind": "number"},
    "hour=*%": {"side": "context"},
    "brand": {"side": "item"},
    "tags": {"side": "item", "kind": "set"},
    "price": {"side": "item", "kind": "number"},
    "size": {"side": "item", "kind": "number", "bucket": "log"},
    "user_keys": {"side": "user", "kind": "raw"},
    "item_keys": {"side": "item", "kind": "raw"},
}
CROSSABLE = [name for name, field in FIELDS.items() if field.get("kind") != "raw"]
TEXTS = st.sampled_from(["", "a", "b", "ab", "a*b", "x=y", "5%", "é", "\x00"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "category": TEXTS,
    "set": st.one_of(
        st.lists(TEXTS, max_size=3), st.dictionaries(TEXTS, st.sampled_from([-1.5, 0, 1, 2.0]), max_size=3)
    ),
    "number": st.sampled_from([-2.5, 0, 1, 3, 10]),
    "raw": st.lists(st.sampled_from(["P_1", "P_2", "age=a", "bias"]), max_size=2),
}
SHOP = {
    "age": {"side": "user"},
    "hour": {},
    "brand": {"side": "item"},
    "sku": {"side": "item", "column": "item"},
}
SHOP_WEIGHTS: Weights = {
    b"bias": (-1.0, 1),
    b"age=25": (0.5, 1),
    b"brand=nike": (0.25, 1),
    b"age*brand=25*nike": (2.0, 1),
    b"sku=new": (0.125, 1),
}


def parse(fields: Mapping[str, Any], crosses: list[list[str]] = [], **more: Any) -> ModelSpec:  # noqa: B006
    """A spec of these fields and crosses, and of more sections."""
    document = {"model": {"name": "m"}, "input": {"label": "click", "item": "item"}, "fields": fields}
    document["crosses"] = [{"fields": names} for names in crosses]
    return spec_from_json(json.dumps(document | more))


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    crosses = st.lists(st.sampled_from(CROSSABLE), min_size=2, max_size=4, unique=True)
    some = draw(st.lists(crosses, max_size=6, unique_by=frozenset))
    without = st.lists(
        st.sampled_from([*CROSSABLE, *("*".join(n) for n in some if "hour=*%" not in n)]), max_size=2
    )
    variants = {"base": {"share": 1}} | {
        name: {"share": 0, "without": draw(without)} for name in ("plain", "lean")
    }
    values = draw(st.sampled_from(["single", "per_variant"]))
    return parse(FIELDS, some, variants=variants, learner={"values": values})


def values_of(side: str) -> st.SearchStrategy[dict[str, Value]]:
    """Values of some fields of an "item", or of a "request"."""
    names = [name for name, field in FIELDS.items() if (field["side"] == "item") == (side == "item")]
    return st.fixed_dictionaries(
        {}, optional={name: VALUES[FIELDS[name].get("kind", "category")] for name in names}
    )


@st.composite
def models(draw: st.DrawFn, spec: ModelSpec, known: list[dict[str, Value]]) -> Weights:
    """Weights for some of the keys that these examples make, and for some that none makes."""
    plan = FeaturePlan.of(spec)
    made = {key for example in known for key, _, _ in plan.keys(example)}
    strange = [cross.prefix + rest for cross in plan.crosses for rest in (b"", b"a", b"a*", b"a*b*a*b*a")]
    number = st.floats(-2, 2, width=32, allow_subnormal=False)
    own = spec.learner.values == "per_variant"
    weight = st.tuples(*[number] * VARIANTS) if own else number
    entry = st.one_of(st.none(), st.tuples(weight, st.integers(0, 2**VARIANTS - 1)))
    entries = {key: draw(entry) for key in sorted({*made, *strange})}
    return {key: (_used(*found), found[1]) for key, found in entries.items() if found is not None}


def _used(weight: float | tuple[float, ...], bits: int) -> float | tuple[float, ...]:
    """The weight, or each variant's own, 0 for a variant that does not use the key."""
    if not isinstance(weight, tuple):
        return weight
    return tuple(number if bits >> bit & 1 else 0.0 for bit, number in enumerate(weight))


class Question(NamedTuple):
    """A model, and what it is asked."""

    spec: ModelSpec
    weights: Weights
    request: dict[str, Value]
    items: list[dict[str, Value]]

    @property
    def records(self) -> Records:
        return [(str(index), item) for index, item in enumerate(self.items)]

    @property
    def ids(self) -> list[str]:
        return [item_id for item_id, _ in self.records]

    @property
    def ranker(self) -> Ranker:
        return ranker_of(artefact_of(self.spec, self.weights), self.records)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A spec, a model, a request and items."""
    spec = draw(specs())
    request, items = draw(values_of("request")), draw(st.lists(values_of("item"), max_size=5))
    weights = draw(models(spec, [{**request, **item} for item in [*items, {}]]))
    return Question(spec, weights, request, items)


class Run(NamedTuple):
    """A spec, a model and those that follow it, requests, and items."""

    spec: ModelSpec
    steps: list[Weights]
    requests: list[dict[str, Value]]
    records: Records

    @property
    def ids(self) -> list[str]:
        return [item_id for item_id, _ in self.records]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Models of which any key may come, change or go at any step."""
    spec = draw(specs())
    requests = draw(st.lists(values_of("request"), min_size=1, max_size=2))
    items = draw(st.lists(values_of("item"), max_size=4))
    known = [{**request, **item} for request in requests for item in [*items, {}]]
    steps = draw(st.lists(models(spec, known), min_size=2, max_size=5))
    used = [{key: entry for key, entry in step.items() if entry[1]} for step in steps]
    return Run(spec, used, requests, [(str(index), item) for index, item in enumerate(items)])


def told(ranking: Ranking) -> tuple[Any, ...]:
    """All that an answer says, as values to compare."""
    return ranking.ids, ranking.score, ranking.ctr, ranking.candidates.unknown


def answers(ranker: Ranker, requests: Iterable[dict[str, Value]], records: Records) -> list[tuple[Any, ...]]:
    """Known, unknown and spelled-out items, for every variant."""
    ids = [item_id for item_id, _ in records]
    spelled = [(f"spelled {item_id}", item) for item_id, item in records]
    return [
        told(ranked(ranker, request, [*ids, "unknown"], spelled, variant, top_k))
        for request in requests
        for variant in range(VARIANTS)
        for top_k in (None, 2)
    ]


def loaded(artefact: Artefact, records: Iterable[tuple[str, Mapping[str, Value]]] = ()) -> LiveModel:
    """A model loaded from a snapshot, version 1."""
    model = LiveModel(artefact.spec.model.name)
    plan = FeaturePlan.of(artefact.spec)
    model.load(1, artefact.sha256, artefact, Catalogue.build(plan, records))
    return model


def shop_loaded() -> LiveModel:
    return loaded(shop.artefact(1), shop.ITEMS.items())


def follow(model: LiveModel, artefacts: Sequence[Artefact], version: int = 1) -> Ranker:
    """Bring `model`, which has loaded artefacts[0], to the last of them by deltas. Returns a ranker of it."""
    for number, (before, after) in enumerate(pairwise(artefacts), start=version + 1):
        delta = after.changes_since(before, version=number - 1)
        model.apply(number, delta.sha256, delta)
    return served(model)


def served(model: LiveModel) -> Ranker:
    return ServedVersion.bind(model.parts).ranker
