"""Random models, runs of deltas over them, and what two rankers answer to many questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec
from server.model.catalogue import Catalogue
from server.model.live_model import LiveModel
from server.model.model import Model
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from tests.server.ranked import ranked
from tests.server.ranking.test_ranker import VARIANTS, models, specs, values_of
from tests.server.slow_ranker import Weights, artefact_of

Records = list[tuple[str, dict[str, Value]]]


@st.composite
def runs(draw: st.DrawFn) -> tuple[ModelSpec, list[Weights], list[dict[str, Value]], Records]:
    """A spec, a model and those that follow it, requests, and items; any key may come, change or go at any step."""
    spec = draw(specs())
    requests = draw(st.lists(values_of("request"), min_size=1, max_size=2))
    items = draw(st.lists(values_of("item"), max_size=4))
    known = [{**request, **item} for request in requests for item in [*items, {}]]
    steps = draw(st.lists(models(spec, known), min_size=2, max_size=5))
    used = [{key: entry for key, entry in step.items() if entry[1]} for step in steps]
    return spec, used, requests, [(str(index), item) for index, item in enumerate(items)]


def fresh_ranker(artefact: Artefact, records: Records) -> Ranker:
    """One built from the snapshot, as if no delta had ever been."""
    model = Model.build(artefact, 1)
    return Ranker(model, Catalogue.build(model.plan, records))


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


def live(spec: ModelSpec, weights: Weights, records: Records) -> LiveModel:
    """A model loaded from a snapshot, version 1."""
    model = LiveModel("m")
    artefact = artefact_of(spec, weights)
    model.load(1, artefact.sha256, artefact, Catalogue.build(FeaturePlan.of(spec), records))
    return model


def follow(model: LiveModel, spec: ModelSpec, steps: Sequence[Weights], version: int = 1) -> None:
    """Bring `model`, which has loaded steps[0], to the last of them by deltas."""
    before = artefact_of(spec, steps[0])
    for number, weights in enumerate(steps[1:], start=version + 1):
        artefact = artefact_of(spec, weights)
        delta = artefact.changes_since(before, version=number - 1)
        model.apply(number, delta.sha256, delta)
        before = artefact
